"""Simulations that were asked for over the API, what became of them, and their reports."""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE simulation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    asked_by text NOT NULL,
    name text NOT NULL,
    example text,
    document jsonb NOT NULL,
    policies text[] NOT NULL CHECK (cardinality(policies) BETWEEN 1 AND 5),
    seeds integer[] NOT NULL CHECK (cardinality(seeds) >= 1),
    duration_s double precision NOT NULL CHECK (duration_s > 0),
    state text NOT NULL CHECK (state IN ('queued', 'running', 'finished', 'failed', 'cancelled')),
    progress double precision NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
    tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    runner text,
    lease_until timestamptz,
    error text,
    summary jsonb,
    report_html bytea,
    report_json bytea,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'running') = (runner IS NOT NULL)),
    CHECK ((state IN ('finished', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((state = 'finished') = (summary IS NOT NULL AND report_html IS NOT NULL))
);
CREATE UNIQUE INDEX simulation_one_runs ON simulation (state) WHERE state = 'running';
CREATE INDEX simulation_queue ON simulation (id) WHERE state = 'queued';
COMMENT ON TABLE simulation IS 'Simulations that were asked for over the API; the newest ones are kept.';
COMMENT ON COLUMN simulation.example IS 'Name of the shipped scenario; null: the caller sent one.';
COMMENT ON COLUMN simulation.document IS 'The scenario as it is run, defaults filled in.';
COMMENT ON COLUMN simulation.tries IS 'How often a runner began with it.';
COMMENT ON COLUMN simulation.lease_until IS
    'By the clock of the database; a running one whose lease is over has lost its runner.';
COMMENT ON COLUMN simulation.report_html IS 'Compressed by gzip.';
COMMENT ON COLUMN simulation.report_json IS 'Compressed by gzip; null where it was too long to be kept.';
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLE)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP TABLE simulation")
