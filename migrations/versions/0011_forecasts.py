"""Arrival rates over weeks, and how each service is forecast."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# No foreign keys to the services: a rate stays when its service goes, as other readings do.
RATES = """
CREATE TABLE service_rate (
    service resource_name NOT NULL,
    start timestamptz NOT NULL CHECK (extract(epoch FROM start)::bigint % 300 = 0),
    heard_s positive_amount NOT NULL CHECK (heard_s <= 300),
    arrivals amount NOT NULL,
    PRIMARY KEY (service, start)
);
CREATE INDEX service_rate_by_start ON service_rate USING brin (start);
COMMENT ON TABLE service_rate IS
    'Requests of a service in five minutes: summed from service_window, or from a trace; kept for weeks, for seasons.';
COMMENT ON COLUMN service_rate.heard_s IS
    'Seconds of the five minutes that somebody reported of; no row: nothing was heard, which is not a rate of 0.';

ALTER TABLE roll_up ADD COLUMN rates_until timestamptz NOT NULL DEFAULT '-infinity';
COMMENT ON TABLE roll_up IS
    'How far gpu_hour reaches: hours before hours_until, from observations received before received_until; '
    'service_rate: windows before rates_until.';
"""

CHOICES = """
CREATE TABLE forecast_choice (
    service resource_name PRIMARY KEY,
    technique text NOT NULL,
    seasons jsonb NOT NULL,
    margin positive_amount NOT NULL CHECK (margin >= 1),
    scores jsonb NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX forecast_choice_by_time ON forecast_choice (at);
COMMENT ON TABLE forecast_choice IS 'The technique that forecasts each service, and how each did in back-tests.';
COMMENT ON COLUMN forecast_choice.seasons IS 'What the technique needs to know of the time of day; [] for most.';
COMMENT ON COLUMN forecast_choice.margin IS 'Factor on the spread of the forecast, so that quantiles are kept.';
COMMENT ON COLUMN forecast_choice.at IS 'Windows before this moment were judged.';
"""

DEMAND = "COMMENT ON TABLE demand IS '{}'"
BY_TECHNIQUE = (
    "Arrival rates that plans were made for. Method: the technique of the forecast (forecast in rows of older "
    "programs), kept (nothing was heard: the planned rate stays), or stated (by a person)."
)
BEFORE = "Arrival rates that plans were made for (method forecast), or that a person stated (method stated)."
ROLL_UP_BEFORE = "How far gpu_hour reaches: hours before hours_until, from observations received before received_until."


def upgrade() -> None:
    """Make the tables."""
    op.execute(RATES)
    op.execute(CHOICES)
    op.execute(DEMAND.format(BY_TECHNIQUE))


def downgrade() -> None:
    """Remove them."""
    op.execute(DEMAND.format(BEFORE))
    op.execute("DROP TABLE forecast_choice, service_rate")
    op.execute("ALTER TABLE roll_up DROP COLUMN rates_until")
    op.execute(f"COMMENT ON TABLE roll_up IS '{ROLL_UP_BEFORE}'")
