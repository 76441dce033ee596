"""How busy a GPU was may be unknown, as the driver does not say of a MIG slice: null, not 0."""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# Busy seconds of an hour of which the driver told only a part are those of that part, stretched to the whole.
KNOWN = """
CREATE OR REPLACE VIEW gpu_hour_live AS
SELECT gpu, hour, observed_s, busy_s, energy_j, memory_mib_s FROM gpu_hour
UNION ALL
SELECT gpu, date_trunc('hour', window_start, 'UTC'), sum(window_s),
       sum(window_s * busy_percent / 100) * sum(window_s) / sum(window_s) FILTER (WHERE busy_percent IS NOT NULL),
       sum(energy_j), sum(window_s * memory_used_mib)
FROM gpu_observation WHERE window_start >= (SELECT hours_until FROM roll_up)
GROUP BY gpu, date_trunc('hour', window_start, 'UTC')
"""
BEFORE = """
CREATE OR REPLACE VIEW gpu_hour_live AS
SELECT gpu, hour, observed_s, busy_s, energy_j, memory_mib_s FROM gpu_hour
UNION ALL
SELECT gpu, date_trunc('hour', window_start, 'UTC'), sum(window_s), sum(window_s * busy_percent / 100),
       sum(energy_j), sum(window_s * memory_used_mib)
FROM gpu_observation WHERE window_start >= (SELECT hours_until FROM roll_up)
GROUP BY gpu, date_trunc('hour', window_start, 'UTC')
"""
COLUMN = "report.gpu_utilisation_hour.busy_percent"
MEANING = "Share of the observed time in which at least one replica executed"
UNKNOWN = "null where the driver does not say, as of MIG slices"


def upgrade() -> None:
    """Let it be null."""
    op.execute("ALTER TABLE gpu_observation ALTER COLUMN busy_percent DROP NOT NULL")
    op.execute("ALTER TABLE gpu_hour ALTER COLUMN busy_s DROP NOT NULL")
    op.execute(KNOWN)
    op.execute(f"COMMENT ON COLUMN gpu_observation.busy_percent IS 'Null: {UNKNOWN.removeprefix('null ')}.'")
    op.execute(f"COMMENT ON COLUMN {COLUMN} IS '{MEANING}; {UNKNOWN}.'")


def downgrade() -> None:
    """What is not known becomes 0 again."""
    op.execute(f"COMMENT ON COLUMN {COLUMN} IS '{MEANING}.'")
    op.execute("COMMENT ON COLUMN gpu_observation.busy_percent IS NULL")
    op.execute(BEFORE)
    for table, column in (("gpu_observation", "busy_percent"), ("gpu_hour", "busy_s")):
        op.execute(f"UPDATE {table} SET {column} = 0 WHERE {column} IS NULL")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL")
