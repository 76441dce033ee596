"""What plans carry at least for bursts of a service."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


METHODS = (
    "Arrival rates that plans were made for. Method: the technique of the forecast (forecast in rows of older "
    "programs), reserve (more than the forecast, for bursts), kept (nothing was heard: the planned rate stays), or "
    "stated (by a person)."
)
METHODS_BEFORE = (
    "Arrival rates that plans were made for. Method: the technique of the forecast (forecast in rows of older "
    "programs), kept (nothing was heard: the planned rate stays), or stated (by a person)."
)


def upgrade() -> None:
    """Add the column; what was judged before has no reserve."""
    op.execute("ALTER TABLE forecast_choice ADD COLUMN reserve_rps amount NOT NULL DEFAULT 0")
    op.execute(
        "COMMENT ON COLUMN forecast_choice.reserve_rps IS "
        "'Arrival rate that plans carry at least, for bursts that no forecast follows in time.'"
    )
    op.execute(f"COMMENT ON TABLE demand IS '{METHODS}'")


def downgrade() -> None:
    """Forget it."""
    op.execute("ALTER TABLE forecast_choice DROP COLUMN reserve_rps")
    op.execute(f"COMMENT ON TABLE demand IS '{METHODS_BEFORE}'")
