"""Room follows from each service's error budget: one setting in place of two, and what was learned of each service."""

from alembic import op

revision = "0132"
down_revision = "0131"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions of before get the default; reserves are kept as floors until they are judged again, within minutes."""
    op.execute(
        """
        ALTER TABLE policy DROP COLUMN headroom, DROP COLUMN burst_confidence,
            ADD COLUMN target_attainment amount NOT NULL DEFAULT 0 CHECK (target_attainment <= 1);
        COMMENT ON COLUMN policy.target_attainment IS
            'Share of the requests that is to be in time where that is more than the percentile of a service''s SLO.';
        ALTER TABLE forecast_choice ADD COLUMN room_factor positive_amount NOT NULL DEFAULT 1,
            ADD COLUMN burst_at timestamptz;
        ALTER TABLE forecast_choice RENAME COLUMN reserve_rps TO floor_rps;
        COMMENT ON COLUMN forecast_choice.room_factor IS
            'The multiple of the followed rate that plans carry (solvers.forecast.room).';
        COMMENT ON COLUMN forecast_choice.floor_rps IS
            'Arrival rate that plans carry at least, for bursts that no forecast follows in time.';
        COMMENT ON COLUMN forecast_choice.burst_at IS
            'Until when windows were judged that have a burst in them, the newest; null: none has.';
        """
    )


def downgrade() -> None:
    """Plans of before get the room that was the default."""
    op.execute(
        """
        ALTER TABLE policy DROP COLUMN target_attainment,
            ADD COLUMN headroom positive_amount NOT NULL DEFAULT 1.1 CHECK (headroom >= 1),
            ADD COLUMN burst_confidence amount NOT NULL DEFAULT 0.8 CHECK (burst_confidence < 1);
        ALTER TABLE policy ALTER COLUMN headroom DROP DEFAULT;
        COMMENT ON COLUMN policy.burst_confidence IS
            'That no more bursts come than plans keep room for (solvers.forecast.reserve); 0: they keep none.';
        ALTER TABLE forecast_choice DROP COLUMN room_factor, DROP COLUMN burst_at;
        ALTER TABLE forecast_choice RENAME COLUMN floor_rps TO reserve_rps;
        COMMENT ON COLUMN forecast_choice.reserve_rps IS
            'Arrival rate that plans carry at least, for bursts that no forecast follows in time.';
        """
    )
