"""Training stalls: what a task adds to the 99th percentile of a service's batches."""

from alembic import op

revision = "0124"
down_revision = "0123"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No profile knows of stalls yet; the shipped catalogue states its own when it is installed again."""
    op.execute(
        """
        ALTER TABLE profile_point ADD stall_ms amount NOT NULL DEFAULT 0;
        COMMENT ON COLUMN profile_point.stall_ms IS
            'Of training: what it adds to the 99th percentile of a neighbour''s batches beyond their mean''s growth.';
        """
    )


def downgrade() -> None:
    """Tasks are then placed by their factor alone."""
    op.execute("ALTER TABLE profile_point DROP stall_ms")
