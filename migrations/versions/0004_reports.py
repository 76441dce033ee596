"""Reporting views: cost, SLO attainment, energy, plans, utilisation, health. A public interface."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Not public: what the reports are made of.
GROUND = """
CREATE SCHEMA report;
COMMENT ON SCHEMA report IS 'Documented reporting views: a public interface, see docs/sql.md.';

-- The control plane's clock may run faster than the wall's (demo), so no report asks for now().
CREATE VIEW as_of AS
SELECT greatest((SELECT at FROM plan ORDER BY id DESC LIMIT 1),
                (SELECT max(last_seen_at) FROM node),
                (SELECT lower(valid) FROM target ORDER BY generation DESC LIMIT 1)) AS at;
COMMENT ON VIEW as_of IS 'The newest moment that the control plane wrote down: open periods are counted up to here.';

CREATE VIEW gpu_segment AS
SELECT t.plan_id, g.gpu, g.gpu_type, hour.hour, cut.seconds,
       -- Pico-dollars: the one place where cost is rounded; all shares of a segment add up to this figure exactly.
       round(p.price_usd_per_hour * cut.seconds / 3600, 12) AS bill_usd
FROM target t
JOIN plan_gpu g USING (plan_id)
CROSS JOIN as_of
JOIN gpu_price p ON p.gpu_type = g.gpu_type AND p.valid && t.valid
CROSS JOIN LATERAL (SELECT t.valid * p.valid * tstzrange(NULL, as_of.at) AS period) AS c
CROSS JOIN LATERAL generate_series(date_trunc('hour', lower(c.period), 'UTC'),
                                   upper(c.period) - interval '1 microsecond', interval '1 hour') AS hour (hour)
CROSS JOIN LATERAL (SELECT extract(epoch FROM least(upper(c.period), hour.hour + interval '1 hour')
                                              - greatest(lower(c.period), hour.hour)) AS seconds) AS cut
WHERE NOT isempty(c.period);
COMMENT ON VIEW gpu_segment IS
    'GPUs that carried replicas, cut where the target, the price or the hour changed, each with its bill.';

-- Rows of one GPU by service, '(idle)' last; *_from and *_to are its place on the scale from 0 to *_all.
CREATE VIEW plan_share AS
WITH used AS (
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
       upto AS (PARTITION BY plan_id, gpu ORDER BY is_idle, service ROWS UNBOUNDED PRECEDING);
COMMENT ON VIEW plan_share IS 'How a target divides each GPU between its services and what is left idle.';

CREATE VIEW gpu_hour_live AS
SELECT gpu, hour, observed_s, busy_s, energy_j, memory_mib_s FROM gpu_hour
UNION ALL
SELECT gpu, date_trunc('hour', window_start, 'UTC'), sum(window_s), sum(window_s * busy_percent / 100),
       sum(energy_j), sum(window_s * memory_used_mib)
FROM gpu_observation WHERE window_start >= (SELECT hours_until FROM roll_up)
GROUP BY gpu, date_trunc('hour', window_start, 'UTC');
COMMENT ON VIEW gpu_hour_live IS 'gpu_hour with the hours that are not rolled up yet.';
"""

# Shares by cumulative rounding: each row gets round(bill · to) - round(bill · from), so rows add up to the bill.
COST = """
CREATE VIEW report.allocation_hour AS
SELECT s.hour, s.gpu, s.gpu_type, r.project, r.service, max(r.replicas) AS replicas,
       sum(s.seconds) / 3600 AS hours,
       sum(s.seconds * r.sm_percent) / sum(s.seconds) AS sm_percent,
       sum(s.seconds * r.memory_mib) / sum(s.seconds) AS memory_mib,
       sum(round(s.bill_usd * r.sm_to / r.sm_all, 12) - round(s.bill_usd * r.sm_from / r.sm_all, 12)) AS cost_usd,
       sum(CASE WHEN r.is_idle THEN 0 ELSE round(s.bill_usd * r.sm_to / r.sm_used, 12)
                                         - round(s.bill_usd * r.sm_from / r.sm_used, 12) END) AS whole_gpu_cost_usd,
       sum(round(s.bill_usd * r.memory_to / r.memory_all, 12)
           - round(s.bill_usd * r.memory_from / r.memory_all, 12)) AS memory_cost_usd
FROM gpu_segment s JOIN plan_share r USING (plan_id, gpu)
GROUP BY s.hour, s.gpu, s.gpu_type, r.project, r.service;

CREATE VIEW report.bill_hour AS
SELECT hour, gpu, gpu_type, sum(seconds) / 3600 AS hours, sum(bill_usd) AS cost_usd
FROM gpu_segment GROUP BY hour, gpu, gpu_type;

CREATE VIEW report.cost_by_service_hour AS
SELECT hour, project, service, sum(hours * sm_percent / 100) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd
FROM report.allocation_hour GROUP BY hour, project, service;

CREATE VIEW report.cost_by_project_hour AS
SELECT hour, project, sum(gpu_hours) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd
FROM report.cost_by_service_hour GROUP BY hour, project;

CREATE VIEW report.cost_by_gpu_type_hour AS
SELECT hour, gpu_type, sum(hours * sm_percent / 100) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd,
       sum(cost_usd) FILTER (WHERE service = '(idle)') AS idle_cost_usd,
       sum(memory_cost_usd) FILTER (WHERE service = '(idle)') AS idle_memory_cost_usd
FROM report.allocation_hour GROUP BY hour, gpu_type;
"""

REST = """
CREATE VIEW report.slo_attainment_hour AS
SELECT h.hour, s.project, h.service, h.arrivals AS requests, h.served, h.in_slo, h.rejected,
       round(100.0 * h.in_slo / nullif(h.served + h.rejected, 0), 4) AS attainment_percent,
       v.slo_latency_ms, (100 * v.slo_percentile)::numeric AS slo_percent,
       100.0 * h.in_slo / nullif(h.served + h.rejected, 0) >= (100 * v.slo_percentile)::numeric AS is_met
FROM service_hour h
LEFT JOIN service s ON s.name = h.service
LEFT JOIN LATERAL (SELECT slo_latency_ms, slo_percentile FROM service_version v
                   WHERE v.service = h.service AND v.created_at < h.hour + interval '1 hour'
                   ORDER BY v.generation DESC LIMIT 1) AS v ON true;

CREATE VIEW report.energy_by_service_hour AS
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
    SELECT h.hour, h.gpu, '(idle)', '(idle)',
           (coalesce(t.idle_w, 1) * greatest(h.observed_s, s.seconds))::numeric
    FROM gpu_hour_live h
    LEFT JOIN gpu ON gpu.id = h.gpu
    LEFT JOIN gpu_type t ON t.name = gpu.gpu_type
    LEFT JOIN (SELECT hour, gpu, sum(seconds) AS seconds FROM gpu_segment GROUP BY hour, gpu) AS s
           ON s.hour = h.hour AND s.gpu = h.gpu
)
SELECT r.hour, r.project, r.service,
       sum(h.energy_j * (r.watt_seconds / nullif(a.watt_seconds, 0))::double precision) / 3600 AS energy_wh
FROM rows r
JOIN gpu_hour_live h USING (hour, gpu)
JOIN (SELECT hour, gpu, sum(watt_seconds) AS watt_seconds FROM rows GROUP BY hour, gpu) AS a USING (hour, gpu)
GROUP BY r.hour, r.project, r.service;

CREATE VIEW report.gpu_utilisation_hour AS
SELECT h.hour, h.gpu, gpu.node, gpu.gpu_type, h.observed_s / 3600 AS observed_hours,
       100 * h.busy_s / h.observed_s AS busy_percent, h.energy_j / h.observed_s AS power_w,
       h.energy_j / 3600 AS energy_wh, h.memory_mib_s / h.observed_s AS memory_used_mib,
       coalesce(a.hours, 0) AS allocated_hours, coalesce(a.sm_percent, 0) AS sm_percent
FROM gpu_hour_live h
LEFT JOIN gpu ON gpu.id = h.gpu
LEFT JOIN (SELECT hour, gpu, max(hours) FILTER (WHERE service = '(idle)') AS hours,
                  sum(hours * sm_percent) FILTER (WHERE service <> '(idle)')
                  / max(hours) FILTER (WHERE service = '(idle)') AS sm_percent
           FROM report.allocation_hour GROUP BY hour, gpu) AS a ON a.hour = h.hour AND a.gpu = h.gpu
WHERE h.observed_s > 0;

CREATE VIEW report.plan_history AS
SELECT p.id AS plan_id, p.at, p.state, p.policy, p.policy_version, p.status, p.method, p.cost_usd_per_hour,
       p.lower_bound_usd_per_hour, p.gap_percent, p.seconds, p.generation,
       lower(t.valid) AS in_force_from, upper(t.valid) AS in_force_until,
       CASE WHEN t.plan_id IS NOT NULL THEN (
           SELECT count(*) FROM plan_replica n WHERE n.plan_id = p.id AND NOT EXISTS (
               SELECT FROM plan_replica o WHERE o.plan_id = b.plan_id AND o.gpu = n.gpu AND o.replica = n.replica)
       ) END AS replicas_started,
       CASE WHEN t.plan_id IS NOT NULL THEN (
           SELECT count(*) FROM plan_replica o WHERE o.plan_id = b.plan_id AND NOT EXISTS (
               SELECT FROM plan_replica n WHERE n.plan_id = p.id AND n.gpu = o.gpu AND n.replica = o.replica)
       ) END AS replicas_stopped,
       (SELECT count(*) FROM plan_violation v WHERE v.plan_id = p.id) AS violations, p.reason
FROM plan p
LEFT JOIN target t ON t.plan_id = p.id
LEFT JOIN target b ON b.generation = p.parent;

CREATE VIEW report.node_health AS
SELECT n.id AS node, n.cordoned, n.last_seen_at, extract(epoch FROM as_of.at - n.last_seen_at) AS silent_s,
       n.agent_version, n.clock_skew_s, c.generation AS wanted_generation,
       n.observed_generation, a.status AS last_ack, a.detail AS last_ack_detail,
       g.gpus, g.unhealthy_gpus, n.problems
FROM node n
CROSS JOIN as_of
LEFT JOIN LATERAL (SELECT max(generation) AS generation FROM command WHERE node = n.id) AS c ON true
LEFT JOIN LATERAL (SELECT status, detail FROM acknowledgement WHERE node = n.id
                   ORDER BY generation DESC LIMIT 1) AS a ON true
LEFT JOIN LATERAL (SELECT count(*) AS gpus, count(*) FILTER (WHERE NOT healthy) AS unhealthy_gpus
                   FROM gpu WHERE gpu.node = n.id) AS g ON true;
"""

COLUMNS = {
    "hour": "Start of the hour, UTC.",
    "gpu": "GPU, `node/gpu-index`.",
    "gpu_type": "GPU type.",
    "node": "Node.",
    "project": "Project (tenant) of the service; `(idle)` for idle rows.",
    "service": "Service; `(idle)` for what no service was given.",
    "hours": "Hours of that hour in which the GPU carried replicas; GPUs without replicas are not billed.",
    "replicas": "Most replicas of the service on the GPU in that hour.",
    "sm_percent": "SM percent that the service had there, mean over those hours.",
    "memory_mib": "GPU memory that the service had there, mean over those hours.",
    "gpu_hours": "Hours of whole GPUs, by SM percent.",
    "cost_usd": "Price × time × SM percent; idle SM percent is the `(idle)` row. Rows add up to the bill exactly.",
    "whole_gpu_cost_usd": "The GPU's whole bill divided over its services by SM percent; none is idle. Adds up too.",
    "memory_cost_usd": "Price × time × share of GPU memory; idle memory is the `(idle)` row. Adds up too.",
    "idle_cost_usd": "Part of cost_usd that no service was given.",
    "idle_memory_cost_usd": "Part of memory_cost_usd that no service was given.",
    "requests": "Requests that arrived.",
    "served": "Requests that finished.",
    "in_slo": "Requests that finished within the SLO's latency.",
    "rejected": "Requests that were refused or lost; each is a miss.",
    "attainment_percent": "100 · in_slo / (served + rejected); null when nothing finished.",
    "slo_latency_ms": "The SLO's latency, of the newest generation within the hour.",
    "slo_percent": "The SLO's percentile as percent of requests.",
    "is_met": "Whether attainment_percent reaches slo_percent; null when nothing finished.",
    "energy_wh": "Energy in watt hours, measured.",
    "observed_hours": "Hours that the node's agent reported on.",
    "busy_percent": "Share of the observed time in which at least one replica executed.",
    "power_w": "Mean measured power.",
    "memory_used_mib": "Mean measured memory in use.",
    "allocated_hours": "Hours in which the GPU carried replicas by plan.",
    "plan_id": "The plan.",
    "at": "When it was decided.",
    "state": "proposed, approved, target, superseded, refused, rejected, kept or lost.",
    "policy": "Policy that made it.",
    "policy_version": "Version of the operator's settings.",
    "status": "optimal, feasible, greedy or kept: how good the solver says it is.",
    "method": "What produced the answer.",
    "cost_usd_per_hour": "Cost per hour of the plan.",
    "lower_bound_usd_per_hour": "Proven bound: no plan for the same problem costs less. Null = none was proven.",
    "gap_percent": "Distance from the bound.",
    "seconds": "Time that planning took.",
    "generation": "Generation of the target that it became or would have become.",
    "in_force_from": "When it became the target; null = never.",
    "in_force_until": "When another one did; null = it is in force, or never was.",
    "replicas_started": "Replicas that the previous target did not have there; null = never in force.",
    "replicas_stopped": "Replicas of the previous target that it does not have there; null = never in force.",
    "violations": "Rules that the checker found broken.",
    "reason": "Why it was kept or refused.",
    "cordoned": "Whether it receives nothing new.",
    "last_seen_at": "When its agent was last heard; null = never.",
    "silent_s": "Seconds since then, up to the newest moment that the control plane wrote down.",
    "agent_version": "Version of its agent.",
    "clock_skew_s": "Seconds by which its clock is ahead at the last report; delay makes it negative.",
    "wanted_generation": "Generation of its newest command.",
    "observed_generation": "Generation of the command that it has in force.",
    "last_ack": "What became of its newest acknowledged command: applied, applying, refused or failed.",
    "last_ack_detail": "Why.",
    "gpus": "GPUs.",
    "unhealthy_gpus": "GPUs that its agent calls unhealthy.",
    "problems": "What the node says it cannot do.",
}

VIEWS = {
    "allocation_hour": "Who was given what on each GPU in each hour, and what it cost in three accountings: the base "
    "of the cost reports.",
    "bill_hour": "What each GPU cost in each hour: price × time in which it carried replicas.",
    "cost_by_service_hour": "Cost per hour by service; idle cost is a row of its own.",
    "cost_by_project_hour": "Cost per hour by project (tenant); idle cost is a row of its own.",
    "cost_by_gpu_type_hour": "Cost per hour by GPU type: each accounting gives the bill, with its idle part beside it.",
    "slo_attainment_hour": "How many requests met their SLO, by service and hour.",
    "energy_by_service_hour": "Measured energy of each GPU, divided by planned watts: services by the watts above idle "
    "of their replicas, `(idle)` by the idle watts of the GPU type. Rows add up to the measured energy.",
    "gpu_utilisation_hour": "How busy each GPU was, what it drew and how much of it was given away, by hour.",
    "plan_history": "Every decision with its cost, proven bound, gap, time and moves.",
    "node_health": "What is known of each node and its agent now.",
}

# Columns that mean something else in one view than the common text says.
SPECIAL = {
    ("allocation_hour", "hours"): "Hours of that hour in which the service had replicas there (idle rows: anybody).",
    ("bill_hour", "cost_usd"): "Price × time: the bill, to the pico-dollar (10⁻¹² USD).",
    ("energy_by_service_hour", "energy_wh"): "Energy in watt hours.",
    ("gpu_utilisation_hour", "sm_percent"): "SM percent that was given to services, mean over the allocated hours.",
}


def upgrade() -> None:
    """Make the views and say what each column means."""
    for part in (GROUND, COST, REST):
        op.execute(part)
    for view, comment in VIEWS.items():
        op.execute(f"COMMENT ON VIEW report.{view} IS '{comment}'")
        for column in _columns(view):
            text = SPECIAL.get((view, column), COLUMNS[column])
            op.get_bind().exec_driver_sql(f"COMMENT ON COLUMN report.{view}.{column} IS '{_quoted(text)}'")


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP SCHEMA report CASCADE")
    op.execute("DROP VIEW gpu_hour_live, plan_share, gpu_segment, as_of")


def _columns(view: str) -> list[str]:
    found = op.get_bind().exec_driver_sql(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (f"report.{view}",),
    )
    return [row[0] for row in found]


def _quoted(text: str) -> str:
    return text.replace("'", "''")
