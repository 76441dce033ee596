"""A service may ask that no part of its error budget is counted on."""

from alembic import op

revision = "0134"
down_revision = "0133"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions of before let plans spend it."""
    op.execute(
        """
        ALTER TABLE service_version ADD COLUMN slo_budget text NOT NULL DEFAULT 'spend'
            CHECK (slo_budget IN ('spend', 'keep'));
        COMMENT ON COLUMN service_version.slo_budget IS
            'Whether plans are as tight as the requests allow that may be late, or count on none of them.';
        """
    )


def downgrade() -> None:
    """All of them let plans spend it."""
    op.execute("ALTER TABLE service_version DROP COLUMN slo_budget")
