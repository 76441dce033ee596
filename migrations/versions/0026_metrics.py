"""Where agents' metrics are, and counts of services that no agent of ours serves."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

PUSHED = """
CREATE TABLE pushed_window (
    service resource_name NOT NULL,
    source resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    received_at timestamptz NOT NULL,
    arrivals bigint NOT NULL CHECK (arrivals >= 0),
    served bigint NOT NULL CHECK (served >= 0),
    in_slo bigint NOT NULL CHECK (in_slo >= 0 AND in_slo <= served),
    rejected bigint NOT NULL CHECK (rejected >= 0),
    sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
    PRIMARY KEY (service, source, window_start)
);
CREATE INDEX pushed_window_by_time ON pushed_window (window_start);
COMMENT ON TABLE pushed_window IS
    'Counts that were pushed for a service, each window of a source once; the sums are elsewhere.';
COMMENT ON COLUMN pushed_window.source IS 'Who pushes: one name for each gateway or server that counts by itself.';
COMMENT ON COLUMN pushed_window.sha256 IS 'Of the whole body, so that a repetition is told from a contradiction.';
"""


def upgrade() -> None:
    """Add the column and the table."""
    op.execute(
        "ALTER TABLE node ADD COLUMN metrics_address text NOT NULL DEFAULT '' CHECK (length(metrics_address) <= 261)"
    )
    op.execute("COMMENT ON COLUMN node.metrics_address IS 'host:port of its agent''s /metrics; empty: it has none.'")
    op.execute(PUSHED)


def downgrade() -> None:
    """Remove them; sums stay."""
    op.execute("DROP TABLE pushed_window")
    op.execute("ALTER TABLE node DROP COLUMN metrics_address")
