"""What was still to be answered at the end of a window: a service whose requests wait is not at rest."""

from alembic import op

revision = "0136"
down_revision = "0135"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The windows of before are over within minutes."""
    op.execute(
        """
        ALTER TABLE service_window ADD COLUMN pending bigint NOT NULL DEFAULT 0;
        COMMENT ON COLUMN service_window.pending IS
            'Requests without an answer at the end of each reading, and replicas that were starting then; summed.';
        """
    )


def downgrade() -> None:
    """Nothing else was changed."""
    op.execute("ALTER TABLE service_window DROP COLUMN pending")
