"""One GPU's readings by an index: its hour is read without everybody's.

The newest days get it as long as they are small together; others stay as they are until they are forgotten: an index of
a day of a thousand GPUs takes minutes, in which no observation could come in.
"""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

SMALL_BYTES = 1 << 30
"""About ten million rows, indexed in less than a minute."""

INDEX = f"""
CREATE INDEX gpu_observation_by_gpu ON ONLY gpu_observation (gpu, window_start);
DO $$
DECLARE
    part regclass;
    whole_bytes bigint := 0;
BEGIN
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'gpu_observation'::regclass
                ORDER BY inhrelid::regclass::text DESC LOOP
        whole_bytes := whole_bytes + pg_relation_size(part);
        EXIT WHEN whole_bytes >= {SMALL_BYTES};
        EXECUTE format('CREATE INDEX %I ON %s (gpu, window_start)', part::text || '_by_gpu', part);
        EXECUTE format('ALTER INDEX gpu_observation_by_gpu ATTACH PARTITION %I', part::text || '_by_gpu');
    END LOOP;
END $$;
"""


def upgrade() -> None:
    """Make it for the newest days and for all to come."""
    op.execute(INDEX)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP INDEX gpu_observation_by_gpu")
