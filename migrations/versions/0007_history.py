"""What was paid for outlives the inventory: billed GPU types stay, and idle energy does not ask for the GPU."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Prices go with their GPU type, and the bill with the prices. Not validated: what is lost already stays lost.
KEEP_BILLED_TYPES = """
ALTER TABLE plan_gpu ADD CONSTRAINT plan_gpu_type FOREIGN KEY (gpu_type) REFERENCES gpu_type NOT VALID
"""

ENERGY = """
CREATE OR REPLACE VIEW report.energy_by_service_hour AS
WITH weight AS (
    SELECT s.hour, s.gpu, r.project, r.service,
           -- Without a profile the SM percent of the watts above idle stands in.
           sum(s.seconds * coalesce(nullif(r.power_w, 0),
                                    (r.sm_percent / 100 * (g.power_cap_w - g.idle_w))::numeric)) AS watt_seconds
    FROM gpu_segment s
    JOIN plan_share r USING (plan_id, gpu)
    JOIN plan_gpu g USING (plan_id, gpu)
    WHERE NOT r.is_idle
    GROUP BY s.hour, s.gpu, r.project, r.service
), rows AS (
    SELECT hour, gpu, project, service, watt_seconds FROM weight
    UNION ALL
    {idle}
)
SELECT r.hour, r.project, r.service,
       sum(h.energy_j * (r.watt_seconds / nullif(a.watt_seconds, 0))::double precision) / 3600 AS energy_wh
FROM rows r
JOIN gpu_hour_live h USING (hour, gpu)
JOIN (SELECT hour, gpu, sum(watt_seconds) AS watt_seconds FROM rows GROUP BY hour, gpu) AS a USING (hour, gpu)
GROUP BY r.hour, r.project, r.service
"""

# Idle watts as they were when the targets were pushed. A GPU without a target has this row alone: any weight will do.
BY_PLAN = """
    SELECT h.hour, h.gpu, '(idle)', '(idle)',
           (coalesce(s.watt_seconds / s.seconds, 1) * greatest(h.observed_s, s.seconds))::numeric
    FROM gpu_hour_live h
    LEFT JOIN (SELECT hour, gpu, sum(seconds) AS seconds, sum(seconds * g.idle_w::numeric) AS watt_seconds
               FROM gpu_segment JOIN plan_gpu g USING (plan_id, gpu) GROUP BY hour, gpu) AS s
           ON s.hour = h.hour AND s.gpu = h.gpu
"""

BY_INVENTORY = """
    SELECT h.hour, h.gpu, '(idle)', '(idle)',
           (coalesce(t.idle_w, 1) * greatest(h.observed_s, s.seconds))::numeric
    FROM gpu_hour_live h
    LEFT JOIN gpu ON gpu.id = h.gpu
    LEFT JOIN gpu_type t ON t.name = gpu.gpu_type
    LEFT JOIN (SELECT hour, gpu, sum(seconds) AS seconds FROM gpu_segment GROUP BY hour, gpu) AS s
           ON s.hour = h.hour AND s.gpu = h.gpu
"""


def upgrade() -> None:
    """Keep GPU types that were billed; take idle watts from the plans."""
    op.execute(KEEP_BILLED_TYPES)
    op.execute(ENERGY.format(idle=BY_PLAN))


def downgrade() -> None:
    """Let them go again; take idle watts from the inventory."""
    op.execute(ENERGY.format(idle=BY_INVENTORY))
    op.execute("ALTER TABLE plan_gpu DROP CONSTRAINT plan_gpu_type")
