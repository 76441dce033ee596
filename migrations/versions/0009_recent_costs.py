"""Costs of a few hours are read from their targets alone, not from the targets of all times."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Inlined, so that a plan and a GPU given from outside reach the tables.
SHARE = """
CREATE OR REPLACE VIEW plan_share AS
WITH used AS {materialized} (
    SELECT plan_id, gpu, service, project, false AS is_idle, count(*) AS replicas, sum(sm_percent) AS sm_percent,
           sum(memory_mib) AS memory_mib, sum(power_w::numeric) AS power_w
    FROM plan_replica GROUP BY plan_id, gpu, service, project
), rows AS (
    SELECT * FROM used
    UNION ALL
    SELECT plan_id, gpu, '(idle)', '(idle)', true, 0, greatest(0, 100 - sum(sm_percent)),
           greatest(0, min(g.memory_mib::numeric) - sum(u.memory_mib)), min(g.idle_w::numeric)
    FROM used u JOIN plan_gpu g USING (plan_id, gpu) GROUP BY plan_id, gpu
)
SELECT plan_id, gpu, service, project, is_idle, replicas, sm_percent, memory_mib, power_w,
       sum(sm_percent) OVER upto - sm_percent AS sm_from, sum(sm_percent) OVER upto AS sm_to,
       sum(sm_percent) OVER whole AS sm_all,
       sum(memory_mib) OVER upto - memory_mib AS memory_from, sum(memory_mib) OVER upto AS memory_to,
       sum(memory_mib) OVER whole AS memory_all,
       sum(sm_percent) FILTER (WHERE NOT is_idle) OVER whole AS sm_used
FROM rows
WINDOW whole AS (PARTITION BY plan_id, gpu),
       upto AS (PARTITION BY plan_id, gpu ORDER BY is_idle, service ROWS UNBOUNDED PRECEDING)
"""

ALLOCATION = """
CREATE OR REPLACE VIEW report.allocation_hour AS
SELECT s.hour, s.gpu, s.gpu_type, r.project, r.service, max(r.replicas) AS replicas,
       sum(s.seconds) / 3600 AS hours,
       sum(s.seconds * r.sm_percent) / sum(s.seconds) AS sm_percent,
       sum(s.seconds * r.memory_mib) / sum(s.seconds) AS memory_mib,
       sum(round(s.bill_usd * r.sm_to / r.sm_all, 12) - round(s.bill_usd * r.sm_from / r.sm_all, 12)) AS cost_usd,
       sum(CASE WHEN r.is_idle THEN 0 ELSE round(s.bill_usd * r.sm_to / r.sm_used, 12)
                                         - round(s.bill_usd * r.sm_from / r.sm_used, 12) END) AS whole_gpu_cost_usd,
       sum(round(s.bill_usd * r.memory_to / r.memory_all, 12)
           - round(s.bill_usd * r.memory_from / r.memory_all, 12)) AS memory_cost_usd
FROM gpu_segment s {shares}
GROUP BY s.hour, s.gpu, s.gpu_type, r.project, r.service
"""

# Shares are looked up for each segment. That they ask for the hour, which never is null, keeps them behind the hours:
# those of a segment that the reader's WHERE drops are not worked out.
PER_SEGMENT = """CROSS JOIN LATERAL (
    SELECT * FROM plan_share p WHERE p.plan_id = s.plan_id AND p.gpu = s.gpu AND s.hour IS NOT NULL OFFSET 0
) AS r"""
ALL_AT_ONCE = "JOIN plan_share r USING (plan_id, gpu)"


def upgrade() -> None:
    """Work shares out segment by segment."""
    op.execute(SHARE.format(materialized="NOT MATERIALIZED"))
    op.execute(ALLOCATION.format(shares=PER_SEGMENT))


def downgrade() -> None:
    """Work them out for all segments first."""
    op.execute(SHARE.format(materialized="MATERIALIZED"))
    op.execute(ALLOCATION.format(shares=ALL_AT_ONCE))
