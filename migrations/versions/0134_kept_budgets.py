"""A service may ask that no part of its error budget is counted on; from which rate on its load bursts is known."""

from alembic import op

revision = "0134"
down_revision = "0133"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions of before let plans spend it; bursts are known when services are judged again, within minutes."""
    op.execute(
        """
        ALTER TABLE service_version ADD COLUMN slo_budget text NOT NULL DEFAULT 'spend'
            CHECK (slo_budget IN ('spend', 'keep'));
        COMMENT ON COLUMN service_version.slo_budget IS
            'Whether plans are as tight as the requests allow that may be late, or count on none of them.';
        ALTER TABLE forecast_choice ADD COLUMN burst_rps double precision NOT NULL DEFAULT 'Infinity';
        COMMENT ON COLUMN forecast_choice.burst_rps IS
            'Beyond this rate what is followed is a burst, in which plans save nothing.';
        """
    )


def downgrade() -> None:
    """All of them let plans spend it."""
    op.execute(
        """
        ALTER TABLE service_version DROP COLUMN slo_budget;
        ALTER TABLE forecast_choice DROP COLUMN burst_rps;
        """
    )
