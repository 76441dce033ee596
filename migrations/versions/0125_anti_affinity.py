"""Labels of services that may not share a GPU."""

from alembic import op

revision = "0125"
down_revision = "0124"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Until now every service might share a GPU with every other."""
    op.execute(
        """
        ALTER TABLE service_version ADD anti_affinity text[] NOT NULL DEFAULT '{}';
        COMMENT ON COLUMN service_version.anti_affinity IS
            'Ascending; services with a common one of these never share a GPU.';
        """
    )


def downgrade() -> None:
    """They may share GPUs again."""
    op.execute("ALTER TABLE service_version DROP anti_affinity")
