-- Reporting views: cost, SLO attainment, energy, plans, utilisation, health. A public interface, see docs/sql.md: the
-- comments on views and columns are its documentation.

CREATE SCHEMA report;
COMMENT ON SCHEMA report IS 'Documented reporting views: a public interface, see docs/sql.md.';

-- Not public: what the reports are made of.

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
-- NOT MATERIALIZED, so that a plan and a GPU given from outside reach the tables.
CREATE VIEW plan_share AS
WITH used AS NOT MATERIALIZED (
    SELECT plan_id, gpu, service, project, false AS is_idle, count(*) AS replicas, sum(sm_percent) AS sm_percent,
           sum(memory_mib) AS memory_mib, sum(power_w::numeric) AS power_w
    FROM plan_replica GROUP BY plan_id, gpu, service, project
    -- One row for all tasks of a project on a GPU; `task_share` divides it.
    UNION ALL
    SELECT plan_id, gpu, '(tasks)', project, false, 0, sum(sm_percent), sum(memory_mib), sum(power_w::numeric)
    FROM plan_task GROUP BY plan_id, gpu, project
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
       upto AS (PARTITION BY plan_id, gpu ORDER BY is_idle, service, project ROWS UNBOUNDED PRECEDING);
COMMENT ON VIEW plan_share IS 'How a target divides each GPU between its services and what is left idle.';

CREATE VIEW task_share AS
SELECT t.plan_id, t.gpu, t.task, t.name, t.project, t.kind, t.network, t.sm_percent,
       p.sm_from + sum(t.sm_percent) OVER upto - t.sm_percent AS sm_from,
       p.sm_from + sum(t.sm_percent) OVER upto AS sm_to, p.sm_all, p.sm_used
FROM plan_task t
JOIN plan_share p ON p.plan_id = t.plan_id AND p.gpu = t.gpu AND p.project = t.project AND p.service = '(tasks)'
WINDOW upto AS (PARTITION BY t.plan_id, t.gpu, t.project ORDER BY t.task ROWS UNBOUNDED PRECEDING);
COMMENT ON VIEW task_share IS 'How the part of a GPU that a project''s tasks have in a target is divided between them.';

-- A float that was a third of a GPU three times must not need a second one: sums are rounded before they are counted
-- up.
CREATE VIEW whole_gpus AS
SELECT r.plan_id, g.gpu_type, r.project, r.service, ceil(round(sum(r.sm_percent), 6) / 100) AS gpus
FROM (SELECT plan_id, gpu, project, service, sm_percent FROM plan_replica
      UNION ALL SELECT plan_id, gpu, project, '(tasks)', sm_percent FROM plan_task) AS r
JOIN plan_gpu g USING (plan_id, gpu)
GROUP BY r.plan_id, g.gpu_type, r.project, r.service;
COMMENT ON VIEW whole_gpus IS 'Fewest whole GPUs of each type that hold what a service had in a target.';

-- Busy seconds of an hour of which the driver told only a part are those of that part, stretched to the whole.
CREATE VIEW gpu_hour_live AS
SELECT gpu, hour, observed_s, busy_s, energy_j, memory_mib_s FROM gpu_hour
UNION ALL
SELECT gpu, date_trunc('hour', window_start, 'UTC'), sum(window_s),
       sum(window_s * busy_percent / 100) * sum(window_s) / sum(window_s) FILTER (WHERE busy_percent IS NOT NULL),
       sum(energy_j), sum(window_s * memory_used_mib)
FROM gpu_observation WHERE window_start >= (SELECT hours_until FROM roll_up)
GROUP BY gpu, date_trunc('hour', window_start, 'UTC');
COMMENT ON VIEW gpu_hour_live IS 'gpu_hour with the hours that are not rolled up yet.';

CREATE VIEW use_hour_live AS
SELECT gpu, hour, kind, name, service, observed_s, memory_mib_s, memory_known_s, sm_percent_s, sm_known_s, energy_j,
       estimated_j
FROM use_hour
UNION ALL
SELECT gpu, date_trunc('hour', window_start, 'UTC'), kind, name, service, sum(window_s),
       coalesce(sum(window_s * memory_used_mib), 0), coalesce(sum(window_s) FILTER (WHERE memory_used_mib >= 0), 0),
       coalesce(sum(window_s * sm_percent), 0), coalesce(sum(window_s) FILTER (WHERE sm_percent >= 0), 0),
       sum(energy_j), coalesce(sum(energy_j) FILTER (WHERE is_estimated), 0)
FROM use_observation WHERE window_start >= (SELECT hours_until FROM roll_up)
GROUP BY gpu, date_trunc('hour', window_start, 'UTC'), kind, name, service;
COMMENT ON VIEW use_hour_live IS 'use_hour with the hours that are not rolled up yet.';

-- The newest SLO within an hour counts for the whole hour, as in report.slo_attainment_hour.
CREATE VIEW slo_period AS
SELECT service, (100 * slo_percentile)::numeric AS slo_percent,
       CASE WHEN row_number() OVER upto = 1 THEN '-infinity' ELSE created_at END AS since,
       lead(created_at, 1, 'infinity') OVER upto AS until
FROM service_version WINDOW upto AS (PARTITION BY service ORDER BY generation);
COMMENT ON VIEW slo_period IS 'From when until when each percentile of a service''s SLO stood.';

-- Cost. Shares by cumulative rounding: each row gets round(bill · to) - round(bill · from), so rows add up to the bill.

-- Shares are looked up for each segment. That they ask for the hour, which never is null, keeps them behind the hours:
-- those of a segment that the reader's WHERE drops are not worked out.
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
FROM gpu_segment s
CROSS JOIN LATERAL (
    SELECT * FROM plan_share p WHERE p.plan_id = s.plan_id AND p.gpu = s.gpu AND s.hour IS NOT NULL OFFSET 0
) AS r
GROUP BY s.hour, s.gpu, s.gpu_type, r.project, r.service;
COMMENT ON VIEW report.allocation_hour IS
    'Who was given what on each GPU in each hour, and what it cost in three accountings: the base of the cost '
    'reports.';
COMMENT ON COLUMN report.allocation_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.allocation_hour.gpu IS 'GPU, `node/gpu-index`.';
COMMENT ON COLUMN report.allocation_hour.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.allocation_hour.project IS
    'Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.';
COMMENT ON COLUMN report.allocation_hour.service IS
    'Service; `(tasks)` for the training and offline work of a project, `(idle)` for what nobody was given.';
COMMENT ON COLUMN report.allocation_hour.replicas IS 'Most replicas of the service on the GPU in that hour.';
COMMENT ON COLUMN report.allocation_hour.hours IS
    'Hours of that hour in which the service had replicas there (idle rows: anybody).';
COMMENT ON COLUMN report.allocation_hour.sm_percent IS
    'SM percent that the service had there, mean over those hours.';
COMMENT ON COLUMN report.allocation_hour.memory_mib IS
    'GPU memory that the service had there, mean over those hours.';
COMMENT ON COLUMN report.allocation_hour.cost_usd IS
    'Price × time × SM percent; idle SM percent is the `(idle)` row. Rows add up to the bill exactly.';
COMMENT ON COLUMN report.allocation_hour.whole_gpu_cost_usd IS
    'The GPU''s whole bill divided over its services by SM percent; none is idle. Adds up too.';
COMMENT ON COLUMN report.allocation_hour.memory_cost_usd IS
    'Price × time × share of GPU memory; idle memory is the `(idle)` row. Adds up too.';

CREATE VIEW report.bill_hour AS
SELECT hour, gpu, gpu_type, sum(seconds) / 3600 AS hours, sum(bill_usd) AS cost_usd
FROM gpu_segment GROUP BY hour, gpu, gpu_type;
COMMENT ON VIEW report.bill_hour IS
    'What each GPU cost in each hour: price × time in which it carried replicas or tasks.';
COMMENT ON COLUMN report.bill_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.bill_hour.gpu IS 'GPU, `node/gpu-index`.';
COMMENT ON COLUMN report.bill_hour.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.bill_hour.hours IS
    'Hours of that hour in which the GPU carried replicas or tasks; GPUs without any are not billed.';
COMMENT ON COLUMN report.bill_hour.cost_usd IS 'Price × time: the bill, to the pico-dollar (10⁻¹² USD).';

CREATE VIEW report.cost_by_service_hour AS
SELECT hour, project, service, sum(hours * sm_percent / 100) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd
FROM report.allocation_hour GROUP BY hour, project, service;
COMMENT ON VIEW report.cost_by_service_hour IS 'Cost per hour by service; idle cost is a row of its own.';
COMMENT ON COLUMN report.cost_by_service_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_by_service_hour.project IS
    'Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.';
COMMENT ON COLUMN report.cost_by_service_hour.service IS
    'Service; `(tasks)` for the training and offline work of a project, `(idle)` for what nobody was given.';
COMMENT ON COLUMN report.cost_by_service_hour.gpu_hours IS 'Hours of whole GPUs, by SM percent.';
COMMENT ON COLUMN report.cost_by_service_hour.cost_usd IS
    'Price × time × SM percent; idle SM percent is the `(idle)` row. Rows add up to the bill exactly.';
COMMENT ON COLUMN report.cost_by_service_hour.whole_gpu_cost_usd IS
    'The GPU''s whole bill divided over its services by SM percent; none is idle. Adds up too.';
COMMENT ON COLUMN report.cost_by_service_hour.memory_cost_usd IS
    'Price × time × share of GPU memory; idle memory is the `(idle)` row. Adds up too.';

CREATE VIEW report.cost_by_project_hour AS
SELECT hour, project, sum(gpu_hours) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd
FROM report.cost_by_service_hour GROUP BY hour, project;
COMMENT ON VIEW report.cost_by_project_hour IS
    'Cost per hour by project (tenant); idle cost is a row of its own.';
COMMENT ON COLUMN report.cost_by_project_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_by_project_hour.project IS
    'Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.';
COMMENT ON COLUMN report.cost_by_project_hour.gpu_hours IS 'Hours of whole GPUs, by SM percent.';
COMMENT ON COLUMN report.cost_by_project_hour.cost_usd IS
    'Price × time × SM percent; idle SM percent is the `(idle)` row. Rows add up to the bill exactly.';
COMMENT ON COLUMN report.cost_by_project_hour.whole_gpu_cost_usd IS
    'The GPU''s whole bill divided over its services by SM percent; none is idle. Adds up too.';
COMMENT ON COLUMN report.cost_by_project_hour.memory_cost_usd IS
    'Price × time × share of GPU memory; idle memory is the `(idle)` row. Adds up too.';

CREATE VIEW report.cost_by_gpu_type_hour AS
SELECT hour, gpu_type, sum(hours * sm_percent / 100) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd, sum(memory_cost_usd) AS memory_cost_usd,
       sum(cost_usd) FILTER (WHERE service = '(idle)') AS idle_cost_usd,
       sum(memory_cost_usd) FILTER (WHERE service = '(idle)') AS idle_memory_cost_usd
FROM report.allocation_hour GROUP BY hour, gpu_type;
COMMENT ON VIEW report.cost_by_gpu_type_hour IS
    'Cost per hour by GPU type: each accounting gives the bill, with its idle part beside it.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.gpu_hours IS 'Hours of whole GPUs, by SM percent.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.cost_usd IS
    'Price × time × SM percent; idle SM percent is the `(idle)` row. Rows add up to the bill exactly.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.whole_gpu_cost_usd IS
    'The GPU''s whole bill divided over its services by SM percent; none is idle. Adds up too.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.memory_cost_usd IS
    'Price × time × share of GPU memory; idle memory is the `(idle)` row. Adds up too.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.idle_cost_usd IS 'Part of cost_usd that no service was given.';
COMMENT ON COLUMN report.cost_by_gpu_type_hour.idle_memory_cost_usd IS
    'Part of memory_cost_usd that no service was given.';

CREATE VIEW report.cost_by_task_hour AS
SELECT s.hour, r.project, r.name AS task, r.kind, r.network, sum(s.seconds * r.sm_percent) / 360000 AS gpu_hours,
       sum(round(s.bill_usd * r.sm_to / r.sm_all, 12) - round(s.bill_usd * r.sm_from / r.sm_all, 12)) AS cost_usd,
       sum(round(s.bill_usd * r.sm_to / r.sm_used, 12)
           - round(s.bill_usd * r.sm_from / r.sm_used, 12)) AS whole_gpu_cost_usd
FROM gpu_segment s
CROSS JOIN LATERAL (
    SELECT * FROM task_share t WHERE t.plan_id = s.plan_id AND t.gpu = s.gpu AND s.hour IS NOT NULL OFFSET 0
) AS r
GROUP BY s.hour, r.project, r.task, r.name, r.kind, r.network;
COMMENT ON VIEW report.cost_by_task_hour IS
    'Cost per hour by task: how the `(tasks)` rows of the reports by service are divided. Rows add up to them '
    'exactly.';
COMMENT ON COLUMN report.cost_by_task_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_by_task_hour.project IS 'Project (tenant) of the task.';
COMMENT ON COLUMN report.cost_by_task_hour.task IS 'Task, by the name that its team gave it.';
COMMENT ON COLUMN report.cost_by_task_hour.kind IS 'training or offline.';
COMMENT ON COLUMN report.cost_by_task_hour.network IS 'Network that it runs.';
COMMENT ON COLUMN report.cost_by_task_hour.gpu_hours IS 'Hours of whole GPUs, by SM percent.';
COMMENT ON COLUMN report.cost_by_task_hour.cost_usd IS 'Price × time × SM percent.';
COMMENT ON COLUMN report.cost_by_task_hour.whole_gpu_cost_usd IS
    'Its part of the GPUs'' whole bills, where nothing is idle.';

CREATE VIEW report.tasks_by_project_hour AS
SELECT hour, project, count(DISTINCT task) AS tasks, sum(gpu_hours) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd
FROM report.cost_by_task_hour GROUP BY hour, project;
COMMENT ON VIEW report.tasks_by_project_hour IS 'What each project''s tasks had and cost per hour.';
COMMENT ON COLUMN report.tasks_by_project_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.tasks_by_project_hour.project IS 'Project (tenant) of the tasks.';
COMMENT ON COLUMN report.tasks_by_project_hour.tasks IS 'Tasks that had a part of a GPU in that hour.';
COMMENT ON COLUMN report.tasks_by_project_hour.gpu_hours IS 'Hours of whole GPUs, by SM percent.';
COMMENT ON COLUMN report.tasks_by_project_hour.cost_usd IS 'Price × time × SM percent.';
COMMENT ON COLUMN report.tasks_by_project_hour.whole_gpu_cost_usd IS
    'Their part of the GPUs'' whole bills, where nothing is idle.';

-- GPUs of one type in one target have the same segments, so one of them stands for each that there would have been.
CREATE VIEW report.cost_without_sharing_hour AS
SELECT s.hour, w.project, w.service, sum(w.gpus * s.seconds) / 3600 AS gpu_hours, sum(w.gpus * s.usd) AS cost_usd
FROM (SELECT plan_id, gpu_type, hour, sum(seconds) / count(DISTINCT gpu) AS seconds,
             sum(bill_usd) / count(DISTINCT gpu) AS usd
      FROM gpu_segment GROUP BY plan_id, gpu_type, hour) AS s
CROSS JOIN LATERAL (
    SELECT * FROM whole_gpus g WHERE g.plan_id = s.plan_id AND g.gpu_type = s.gpu_type AND s.hour IS NOT NULL OFFSET 0
) AS w
GROUP BY s.hour, w.project, w.service;
COMMENT ON VIEW report.cost_without_sharing_hour IS
    'What each hour would have cost without sharing: every service, and the tasks of each project, alone on '
    'the fewest whole GPUs of the same types that hold the SM percents that they had. A lower limit of such a '
    'fleet''s cost: it is packed perfectly, changes GPUs as often as the plans did, and starts for nothing.';
COMMENT ON COLUMN report.cost_without_sharing_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_without_sharing_hour.project IS
    'Project (tenant) of the service, or of the tasks.';
COMMENT ON COLUMN report.cost_without_sharing_hour.service IS
    'Service; `(tasks)` for the training and offline work of a project.';
COMMENT ON COLUMN report.cost_without_sharing_hour.gpu_hours IS 'Hours of whole GPUs.';
COMMENT ON COLUMN report.cost_without_sharing_hour.cost_usd IS 'Price × time × whole GPUs.';

-- The cluster's sum has the idle rows in it, and so is the bill. "Now" is what the control plane wrote down last.
CREATE VIEW report.budget_status AS
SELECT b.name AS budget, b.project, b.period, b.action, p.since, p.until, b.limit_usd, s.spent_usd,
       round(100 * s.spent_usd / b.limit_usd, 4) AS spent_percent, r.usd_per_hour,
       s.spent_usd + r.usd_per_hour * extract(epoch FROM p.until - p.at) / 3600 AS projected_usd
FROM budget b
CROSS JOIN as_of
CROSS JOIN LATERAL (SELECT coalesce(as_of.at, b.created_at) AS at) AS n
CROSS JOIN LATERAL (
    SELECT n.at, date_trunc(b.period, n.at, 'UTC') AS since,
           (date_trunc(b.period, n.at AT TIME ZONE 'UTC') + CAST('1 ' || b.period AS interval)) AT TIME ZONE 'UTC'
               AS until
) AS p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(c.cost_usd), 0) AS spent_usd FROM report.cost_by_project_hour c
    WHERE c.hour >= p.since AND c.hour < p.until AND (b.project IS NULL OR c.project = b.project)
) AS s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(g.price_usd_per_hour * s.sm_percent / s.sm_all), 0) AS usd_per_hour
    FROM target t
    JOIN plan_share s USING (plan_id)
    JOIN plan_gpu u USING (plan_id, gpu)
    JOIN gpu_price g ON g.gpu_type = u.gpu_type AND upper_inf(g.valid)
    WHERE upper_inf(t.valid) AND (b.project IS NULL OR s.project = b.project)
) AS r;
COMMENT ON VIEW report.budget_status IS
    'What every budget has left in its present period, by the newest moment that the control plane wrote '
    'down.';
COMMENT ON COLUMN report.budget_status.budget IS 'Name of the budget.';
COMMENT ON COLUMN report.budget_status.project IS
    'Project that it limits; null: the whole cluster, idle time included.';
COMMENT ON COLUMN report.budget_status.period IS 'hour, day or month; they begin with those of UTC.';
COMMENT ON COLUMN report.budget_status.action IS
    'warn: events at 80 and 100 %; block_new: also no new services and tasks from 100 % on; degrade: also the '
    'least important services are planned for less.';
COMMENT ON COLUMN report.budget_status.since IS 'Start of the present period.';
COMMENT ON COLUMN report.budget_status.until IS 'Its end.';
COMMENT ON COLUMN report.budget_status.limit_usd IS 'What may be spent in it.';
COMMENT ON COLUMN report.budget_status.spent_usd IS 'What was: the rows of cost_by_project_hour, added up.';
COMMENT ON COLUMN report.budget_status.spent_percent IS 'The latter as percent of the former.';
COMMENT ON COLUMN report.budget_status.usd_per_hour IS
    'What the plan in force costs it per hour, at the prices of now.';
COMMENT ON COLUMN report.budget_status.projected_usd IS 'Spent, and the plan in force until the period ends.';

-- Service levels.

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
COMMENT ON VIEW report.slo_attainment_hour IS 'How many requests met their SLO, by service and hour.';
COMMENT ON COLUMN report.slo_attainment_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.slo_attainment_hour.project IS
    'Project (tenant) of the service; `(idle)` for idle rows.';
COMMENT ON COLUMN report.slo_attainment_hour.service IS 'Service; `(idle)` for what no service was given.';
COMMENT ON COLUMN report.slo_attainment_hour.requests IS 'Requests that arrived.';
COMMENT ON COLUMN report.slo_attainment_hour.served IS 'Requests that finished.';
COMMENT ON COLUMN report.slo_attainment_hour.in_slo IS 'Requests that finished within the SLO''s latency.';
COMMENT ON COLUMN report.slo_attainment_hour.rejected IS
    'Requests that were refused or lost; each is a miss.';
COMMENT ON COLUMN report.slo_attainment_hour.attainment_percent IS
    '100 · in_slo / (served + rejected); null when nothing finished.';
COMMENT ON COLUMN report.slo_attainment_hour.slo_latency_ms IS
    'The SLO''s latency, of the newest generation within the hour.';
COMMENT ON COLUMN report.slo_attainment_hour.slo_percent IS 'The SLO''s percentile as percent of requests.';
COMMENT ON COLUMN report.slo_attainment_hour.is_met IS
    'Whether attainment_percent reaches slo_percent; null when nothing finished.';

-- Windows of the loop are kept for six hours only: longer periods begin with a full hour. Of the shorter ones only what
-- lies before their first full hour is summed from steps of five minutes and from windows, the rest from hours.
-- Limits of the burn rate are those of Google's SRE workbook, chapter 5, table 5-8: over each long period together with
-- a short one, so that an alert ends soon after its cause.
-- Steps in which a service's SLO changed are summed from their windows, as each of those counts by the SLO that stood
-- at its end. Counts are added up before they meet the SLO's percentile: adding whole numbers is cheap.
CREATE VIEW report.slo_budget AS
WITH wanted (period, period_s, alert_burn_rate) AS (
    VALUES ('5 min', 300, NULL), ('30 min', 1800, NULL), ('1 h', 3600, 14.4), ('6 h', 21600, 6.0),
           ('3 d', 259200, 1.0), ('30 d', 2592000, NULL)
), began AS (
    SELECT w.*, as_of.at AS until,
           CASE WHEN w.period_s > 21600 THEN date_trunc('hour', as_of.at - make_interval(secs => w.period_s), 'UTC')
                ELSE as_of.at - make_interval(secs => w.period_s) END AS since
    FROM wanted w CROSS JOIN as_of
), cut AS MATERIALIZED (
    SELECT *, date_trunc('hour', since + interval '1 hour' - interval '1 microsecond', 'UTC') AS first_hour,
           date_bin('5 minutes', since + interval '5 minutes' - interval '1 microsecond', 'epoch') AS first_step
    FROM began
), slo AS MATERIALIZED (
    SELECT * FROM slo_period
), step AS MATERIALIZED (
    SELECT c.period, t.*, EXISTS (SELECT FROM slo s WHERE s.service = t.service AND s.since > t.start
                                  AND s.since < t.last_end) AS is_split
    FROM cut c JOIN service_step t ON t.start >= c.first_step AND t.start < c.first_hour
), part AS (
    SELECT c.period, h.service, h.hour AS since, h.hour + interval '1 hour' AS until, h.served, h.in_slo, h.rejected
    FROM cut c JOIN service_hour h ON h.hour >= c.first_hour
    UNION ALL
    SELECT period, service, first_start, last_end, served, in_slo, rejected FROM step WHERE NOT is_split
    UNION ALL
    SELECT t.period, w.service, w.window_start, w.window_start + make_interval(secs => w.window_s), w.served, w.in_slo,
           w.rejected
    FROM step t JOIN service_window w ON w.service = t.service AND w.window_start >= t.start
                                     AND w.window_start < t.start + interval '5 minutes'
    WHERE t.is_split
    UNION ALL
    SELECT c.period, w.service, w.window_start, w.window_start + make_interval(secs => w.window_s), w.served, w.in_slo,
           w.rejected
    FROM cut c JOIN service_window w ON w.window_start >= c.since AND w.window_start < least(c.first_step, c.first_hour)
), counted AS (
    SELECT p.service, p.period, s.slo_percent, min(p.since) AS counted_since,
           sum(p.served + p.rejected) AS finished, sum(p.served + p.rejected - p.in_slo) AS misses
    FROM part p
    JOIN slo s ON s.service = p.service AND s.since < p.until AND s.until >= p.until
    GROUP BY p.service, p.period, s.slo_percent
), total AS (
    SELECT service, period, min(counted_since) AS counted_since, sum(finished) AS finished, sum(misses) AS misses,
           sum(finished * (100 - slo_percent) / 100) AS allowed_misses
    FROM counted GROUP BY service, period
), rate AS (
    SELECT s.project, s.name AS service, c.period, c.period_s, c.since, c.until, t.counted_since,
           v.slo_latency_ms, (100 * v.slo_percentile)::numeric AS slo_percent,
           coalesce(t.finished, 0) AS finished, coalesce(t.misses, 0) AS misses,
           coalesce(t.allowed_misses, 0) AS allowed_misses, c.alert_burn_rate,
           t.misses / nullif(t.allowed_misses, 0) AS burn_rate
    FROM service s
    JOIN service_version v ON v.service = s.name AND v.generation = s.generation
    CROSS JOIN cut c
    LEFT JOIN total t ON t.service = s.name AND t.period = c.period
    WHERE s.deleted_at IS NULL
)
SELECT project, service, period, period_s, since, until, counted_since, slo_latency_ms, slo_percent, finished, misses,
       allowed_misses, round(burn_rate, 4) AS burn_rate,
       round(100 * misses / nullif(max(allowed_misses) FILTER (WHERE period = '30 d') OVER whole, 0), 4)
           AS budget_used_percent,
       alert_burn_rate,
       CASE WHEN alert_burn_rate IS NOT NULL THEN coalesce(burn_rate > alert_burn_rate, false) AND coalesce(
           CASE period WHEN '1 h' THEN max(burn_rate) FILTER (WHERE period = '5 min') OVER whole
                       WHEN '6 h' THEN max(burn_rate) FILTER (WHERE period = '30 min') OVER whole
                       ELSE max(burn_rate) FILTER (WHERE period = '6 h') OVER whole END > alert_burn_rate, false)
       END AS is_alerting
FROM rate WINDOW whole AS (PARTITION BY project, service);
COMMENT ON VIEW report.slo_budget IS
    'Error budget of every service that is there, over 5 and 30 minutes, 1 and 6 hours, 3 and 30 days up to '
    'the newest moment that the control plane wrote down; over 30 days: 100 - budget_used_percent is what is '
    'left.';
COMMENT ON COLUMN report.slo_budget.project IS 'Project (tenant) of the service.';
COMMENT ON COLUMN report.slo_budget.service IS 'Service.';
COMMENT ON COLUMN report.slo_budget.period IS '5 min, 30 min, 1 h, 6 h, 3 d or 30 d.';
COMMENT ON COLUMN report.slo_budget.period_s IS 'The same in seconds, to sort by.';
COMMENT ON COLUMN report.slo_budget.since IS 'When it begins; days begin with a full hour.';
COMMENT ON COLUMN report.slo_budget.until IS 'When it ends.';
COMMENT ON COLUMN report.slo_budget.counted_since IS
    'Start of the first hour or window in it that has counts; null = none has.';
COMMENT ON COLUMN report.slo_budget.slo_latency_ms IS 'The SLO''s latency, as it is now.';
COMMENT ON COLUMN report.slo_budget.slo_percent IS
    'The SLO''s percentile as percent of requests, as it is now.';
COMMENT ON COLUMN report.slo_budget.finished IS 'Requests that finished, were refused, or were lost.';
COMMENT ON COLUMN report.slo_budget.misses IS 'Those of them that did not finish within the SLO''s latency.';
COMMENT ON COLUMN report.slo_budget.allowed_misses IS
    'Misses that the SLO''s percentile leaves of these requests, each hour by the SLO that it had.';
COMMENT ON COLUMN report.slo_budget.burn_rate IS
    'misses / allowed_misses: at 1 the budget lasts exactly as long as the period; null without requests.';
COMMENT ON COLUMN report.slo_budget.budget_used_percent IS
    '100 · misses / allowed_misses of 30 days: how much of the whole budget this period used.';
COMMENT ON COLUMN report.slo_budget.alert_burn_rate IS
    'Burn rate that calls for a person; null: this period is not watched.';
COMMENT ON COLUMN report.slo_budget.is_alerting IS
    'Whether burn_rate is above it, and that of a shorter period, too (1 h: 5 min; 6 h: 30 min; 3 d: 6 h); '
    'null where it is not watched.';

-- Energy and use.

-- Of each GPU's hour, what agents attributed goes to whom they saw using it, the rest by planned watts.
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
    -- Idle watts as they were when the targets were pushed. A GPU without a target has this row alone: any weight will
    -- do.
    SELECT h.hour, h.gpu, '(idle)', '(idle)',
           (coalesce(s.watt_seconds / s.seconds, 1) * greatest(h.observed_s, s.seconds))::numeric
    FROM gpu_hour_live h
    LEFT JOIN (SELECT hour, gpu, sum(seconds) AS seconds, sum(seconds * g.idle_w::numeric) AS watt_seconds
               FROM gpu_segment JOIN plan_gpu g USING (plan_id, gpu) GROUP BY hour, gpu) AS s
           ON s.hour = h.hour AND s.gpu = h.gpu
), seen AS (
    SELECT hour, gpu, sum(energy_j) AS energy_j FROM use_hour_live GROUP BY hour, gpu
), shares AS (
    SELECT r.hour, r.project, r.service,
           greatest(0, h.energy_j - coalesce(seen.energy_j, 0))
           * (r.watt_seconds / nullif(a.watt_seconds, 0))::double precision AS planned_j,
           0::double precision AS seen_j, 0::double precision AS estimated_j
    FROM rows r
    JOIN gpu_hour_live h USING (hour, gpu)
    JOIN (SELECT hour, gpu, sum(watt_seconds) AS watt_seconds FROM rows GROUP BY hour, gpu) AS a USING (hour, gpu)
    LEFT JOIN seen USING (hour, gpu)
    UNION ALL
    SELECT u.hour, CASE u.kind WHEN 'replica' THEN s.project WHEN 'task' THEN t.project ELSE u.name END,
           CASE u.kind WHEN 'replica' THEN u.service WHEN 'task' THEN '(tasks)' ELSE u.name END,
           0, u.energy_j, u.estimated_j
    FROM use_hour_live u
    LEFT JOIN service s ON u.kind = 'replica' AND s.name = u.service
    LEFT JOIN task t ON u.kind = 'task' AND t.id = u.name
)
SELECT hour, project, service,
       (sum(planned_j) + sum(seen_j)) / 3600 AS energy_wh,
       sum(seen_j) / 3600 AS attributed_wh, sum(planned_j) > 0 OR sum(estimated_j) > 0 AS is_estimated
FROM shares GROUP BY hour, project, service;
COMMENT ON VIEW report.energy_by_service_hour IS
    'Measured energy of each GPU, divided by what agents saw replicas use (see use_hour), and where they did '
    'not by planned watts: services by the watts above idle of their replicas, `(idle)` by the idle watts of '
    'the GPU type. Rows add up to the measured energy.';
COMMENT ON COLUMN report.energy_by_service_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.energy_by_service_hour.project IS
    'Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.';
COMMENT ON COLUMN report.energy_by_service_hour.service IS
    'Service; `(tasks)` for the training and offline work of a project, `(idle)` for what nobody was given.';
COMMENT ON COLUMN report.energy_by_service_hour.energy_wh IS 'Energy in watt hours.';
COMMENT ON COLUMN report.energy_by_service_hour.attributed_wh IS
    'Part of energy_wh that agents attributed; the rest was divided by planned watts.';
COMMENT ON COLUMN report.energy_by_service_hour.is_estimated IS
    'Whether planned watts, or an estimate of SM use, stand behind some of it.';

CREATE VIEW report.use_hour AS
SELECT u.hour, u.gpu, gpu.node, u.kind, u.name, nullif(u.service, '') AS service, u.observed_s / 3600 AS observed_hours,
       u.memory_mib_s / nullif(u.memory_known_s, 0) AS memory_used_mib,
       u.sm_percent_s / nullif(u.sm_known_s, 0) AS sm_percent, u.energy_j / 3600 AS energy_wh,
       u.estimated_j > 0 AS is_estimated
FROM use_hour_live u LEFT JOIN gpu ON gpu.id = u.gpu;
COMMENT ON VIEW report.use_hour IS
    'What each replica and task, others, and nobody used of each GPU, by hour, as agents saw it.';
COMMENT ON COLUMN report.use_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.use_hour.gpu IS 'GPU, `node/gpu-index`.';
COMMENT ON COLUMN report.use_hour.node IS 'Node; null when it is gone.';
COMMENT ON COLUMN report.use_hour.kind IS
    'replica, task, others (processes that are not the node''s), or idle (what nobody used).';
COMMENT ON COLUMN report.use_hour.name IS 'Replica or task; `(others)` and `(idle)`.';
COMMENT ON COLUMN report.use_hour.service IS 'Service of a replica, else null.';
COMMENT ON COLUMN report.use_hour.observed_hours IS 'Hours in which the agent saw it there.';
COMMENT ON COLUMN report.use_hour.memory_used_mib IS
    'GPU memory of its processes, mean over those hours; null where the driver does not tell.';
COMMENT ON COLUMN report.use_hour.sm_percent IS
    'Share of the GPU''s SMs that it kept busy, mean over those hours; null where it is not known.';
COMMENT ON COLUMN report.use_hour.energy_wh IS
    'Its share of the GPU''s measured energy: of idle watts by the SM percent that it was granted, of the '
    'rest by SM use. Rows of a GPU add up to its energy.';
COMMENT ON COLUMN report.use_hour.is_estimated IS
    'Whether SM use, and so energy, was worked out from the server''s own busy time or an MPS share at some '
    'time in the hour. NVML measures the energy of no process: also other rows are shares.';

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
COMMENT ON VIEW report.gpu_utilisation_hour IS
    'How busy each GPU was, what it drew and how much of it was given away, by hour.';
COMMENT ON COLUMN report.gpu_utilisation_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.gpu_utilisation_hour.gpu IS 'GPU, `node/gpu-index`.';
COMMENT ON COLUMN report.gpu_utilisation_hour.node IS 'Node.';
COMMENT ON COLUMN report.gpu_utilisation_hour.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.gpu_utilisation_hour.observed_hours IS 'Hours that the node''s agent reported on.';
COMMENT ON COLUMN report.gpu_utilisation_hour.busy_percent IS
    'Share of the observed time in which at least one replica executed; null where the driver does not say, '
    'as of MIG slices.';
COMMENT ON COLUMN report.gpu_utilisation_hour.power_w IS 'Mean measured power.';
COMMENT ON COLUMN report.gpu_utilisation_hour.energy_wh IS 'Energy in watt hours, measured.';
COMMENT ON COLUMN report.gpu_utilisation_hour.memory_used_mib IS 'Mean measured memory in use.';
COMMENT ON COLUMN report.gpu_utilisation_hour.allocated_hours IS
    'Hours in which the GPU carried replicas or tasks by plan.';
COMMENT ON COLUMN report.gpu_utilisation_hour.sm_percent IS
    'SM percent that was given to services and tasks, mean over the allocated hours.';

-- Decisions, tasks, nodes and predictions.

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
COMMENT ON VIEW report.plan_history IS 'Every decision with its cost, proven bound, gap, time and moves.';
COMMENT ON COLUMN report.plan_history.plan_id IS 'The plan.';
COMMENT ON COLUMN report.plan_history.at IS 'When it was decided.';
COMMENT ON COLUMN report.plan_history.state IS
    'proposed, approved, target, superseded, refused, rejected, kept or lost.';
COMMENT ON COLUMN report.plan_history.policy IS 'Policy that made it.';
COMMENT ON COLUMN report.plan_history.policy_version IS 'Version of the operator''s settings.';
COMMENT ON COLUMN report.plan_history.status IS
    'optimal, feasible, greedy or kept: how good the solver says it is.';
COMMENT ON COLUMN report.plan_history.method IS 'What produced the answer.';
COMMENT ON COLUMN report.plan_history.cost_usd_per_hour IS 'Cost per hour of the plan.';
COMMENT ON COLUMN report.plan_history.lower_bound_usd_per_hour IS
    'Proven bound: no plan for the same problem costs less. Null = none was proven.';
COMMENT ON COLUMN report.plan_history.gap_percent IS 'Distance from the bound.';
COMMENT ON COLUMN report.plan_history.seconds IS 'Time that planning took.';
COMMENT ON COLUMN report.plan_history.generation IS
    'Generation of the target that it became or would have become.';
COMMENT ON COLUMN report.plan_history.in_force_from IS 'When it became the target; null = never.';
COMMENT ON COLUMN report.plan_history.in_force_until IS
    'When another one did; null = it is in force, or never was.';
COMMENT ON COLUMN report.plan_history.replicas_started IS
    'Replicas that the previous target did not have there; null = never in force.';
COMMENT ON COLUMN report.plan_history.replicas_stopped IS
    'Replicas of the previous target that it does not have there; null = never in force.';
COMMENT ON COLUMN report.plan_history.violations IS 'Rules that the checker found broken.';
COMMENT ON COLUMN report.plan_history.reason IS 'Why it was kept or refused.';

CREATE VIEW report.task_progress AS
SELECT t.name AS task, t.run, t.project, t.kind, t.network, t.priority,
       CASE WHEN t.finished_at IS NOT NULL THEN 'finished' WHEN t.cancelled_at IS NOT NULL THEN 'cancelled'
            WHEN t.state = 'swapping' THEN 'swapped' ELSE coalesce(t.state, 'queued') END AS state,
       t.done_iterations, t.iterations, 100 * t.done_iterations / t.iterations AS done_percent,
       t.submitted_at, c.deadline_at, t.finished_at, t.cancelled_at,
       CASE WHEN t.cancelled_at IS NULL OR t.finished_at IS NOT NULL
            THEN coalesce(t.finished_at, as_of.at) > c.deadline_at END AS is_late,
       t.ran_s, greatest(0, CAST(extract(epoch FROM coalesce(t.finished_at, t.cancelled_at, as_of.at) - t.submitted_at)
                                 AS double precision) - t.ran_s) AS waited_s,
       t.starts, t.swaps
FROM task t
CROSS JOIN as_of
CROSS JOIN LATERAL (SELECT t.submitted_at + make_interval(secs => t.deadline_after_s) AS deadline_at) AS c;
COMMENT ON VIEW report.task_progress IS 'How far every task has come, also those that are over, for 90 days.';
COMMENT ON COLUMN report.task_progress.task IS 'Task, by the name that its team gave it.';
COMMENT ON COLUMN report.task_progress.run IS '1, or more where earlier tasks of that name were deleted.';
COMMENT ON COLUMN report.task_progress.project IS 'Project (tenant) of the task.';
COMMENT ON COLUMN report.task_progress.kind IS 'training or offline.';
COMMENT ON COLUMN report.task_progress.network IS 'Network that it runs.';
COMMENT ON COLUMN report.task_progress.priority IS 'Higher goes first among tasks.';
COMMENT ON COLUMN report.task_progress.state IS
    'queued, starting, running, swapped, failed, finished or cancelled.';
COMMENT ON COLUMN report.task_progress.done_iterations IS 'Iterations that are done, as last reported.';
COMMENT ON COLUMN report.task_progress.iterations IS 'Iterations until it is done.';
COMMENT ON COLUMN report.task_progress.done_percent IS 'The former as percent of the latter.';
COMMENT ON COLUMN report.task_progress.submitted_at IS 'When it was submitted.';
COMMENT ON COLUMN report.task_progress.deadline_at IS 'When it should be done; null = whenever.';
COMMENT ON COLUMN report.task_progress.finished_at IS 'When it was done; null = not yet, or never.';
COMMENT ON COLUMN report.task_progress.cancelled_at IS 'When it was cancelled; null = it was not.';
COMMENT ON COLUMN report.task_progress.is_late IS
    'Whether it was done, or is still open, after its deadline; null without one, or cancelled.';
COMMENT ON COLUMN report.task_progress.ran_s IS 'Seconds that its iterations took.';
COMMENT ON COLUMN report.task_progress.waited_s IS 'Seconds since its submission in which it did not run.';
COMMENT ON COLUMN report.task_progress.starts IS 'How often it was started.';
COMMENT ON COLUMN report.task_progress.swaps IS 'How often it was swapped out for services.';

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
COMMENT ON VIEW report.node_health IS 'What is known of each node and its agent now.';
COMMENT ON COLUMN report.node_health.node IS 'Node.';
COMMENT ON COLUMN report.node_health.cordoned IS 'Whether it receives nothing new.';
COMMENT ON COLUMN report.node_health.last_seen_at IS 'When its agent was last heard; null = never.';
COMMENT ON COLUMN report.node_health.silent_s IS
    'Seconds since then, up to the newest moment that the control plane wrote down.';
COMMENT ON COLUMN report.node_health.agent_version IS 'Version of its agent.';
COMMENT ON COLUMN report.node_health.clock_skew_s IS
    'Seconds by which its clock is ahead at the last report; delay makes it negative.';
COMMENT ON COLUMN report.node_health.wanted_generation IS 'Generation of its newest command.';
COMMENT ON COLUMN report.node_health.observed_generation IS 'Generation of the command that it has in force.';
COMMENT ON COLUMN report.node_health.last_ack IS
    'What became of its newest acknowledged command: applied, applying, refused or failed.';
COMMENT ON COLUMN report.node_health.last_ack_detail IS 'Why.';
COMMENT ON COLUMN report.node_health.gpus IS 'GPUs.';
COMMENT ON COLUMN report.node_health.unhealthy_gpus IS 'GPUs that its agent calls unhealthy.';
COMMENT ON COLUMN report.node_health.problems IS 'What the node says it cannot do.';

CREATE VIEW report.fit_quality AS
SELECT coalesce(network, '(all)') AS network, gpu_type, quantity, technique, version,
       100 * training_error AS training_error_percent,
       100 * cross_validated_error AS cross_validated_error_percent,
       100 * cross_validated_error_p90 AS cross_validated_error_percent_p90,
       sample_count AS samples, source, created_at
FROM fit WHERE is_current;
COMMENT ON VIEW report.fit_quality IS
    'The fits in force: which technique was chosen for each network and GPU type, and how wrong it is.';
COMMENT ON COLUMN report.fit_quality.network IS
    'Network; `(all)` for what is fitted over all networks of a GPU type.';
COMMENT ON COLUMN report.fit_quality.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.fit_quality.quantity IS
    'latency_ms, interference, stranger_interference, power_w or memory_mib.';
COMMENT ON COLUMN report.fit_quality.technique IS 'The technique with the least cross-validated error.';
COMMENT ON COLUMN report.fit_quality.version IS 'Grows with every fit of the same quantity.';
COMMENT ON COLUMN report.fit_quality.training_error_percent IS
    'Mean error on the samples that it was fitted to.';
COMMENT ON COLUMN report.fit_quality.cross_validated_error_percent IS
    'Mean error on samples held out in turn; null: too few.';
COMMENT ON COLUMN report.fit_quality.cross_validated_error_percent_p90 IS '90th percentile of that error.';
COMMENT ON COLUMN report.fit_quality.samples IS 'Samples that it was fitted to.';
COMMENT ON COLUMN report.fit_quality.source IS 'Where they came from, or who asked for the fit.';
COMMENT ON COLUMN report.fit_quality.created_at IS 'When it was fitted.';

CREATE VIEW report.fit_health AS
SELECT h.network, h.gpu_type, p.version AS profile_version, p.provenance,
       100 * (exp((now #>> '{mean,0}')::double precision) - 1) AS correction_percent,
       100 * sqrt(greatest((now #>> '{covariance,0,0}')::double precision, 0)) AS uncertainty_percent,
       100 * (now ->> 'error')::double precision AS error_percent,
       100 * (now ->> 'band')::double precision AS band_percent,
       now ->> 'alarm_since_s' IS NOT NULL AS is_alarmed,
       to_timestamp((now ->> 'alarm_since_s')::double precision) AS alarm_since,
       (now ->> 'readings')::bigint AS readings,
       to_timestamp((now ->> 'seen_until_s')::double precision) AS seen_until
FROM fit_health h JOIN profile p ON p.id = h.profile_id AND p.is_current;
COMMENT ON VIEW report.fit_health IS 'How the operating points in force hold against what is served now.';
COMMENT ON COLUMN report.fit_health.network IS 'Network.';
COMMENT ON COLUMN report.fit_health.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.fit_health.profile_version IS 'Version of the operating points that are in force.';
COMMENT ON COLUMN report.fit_health.provenance IS 'measured, scaled or estimated.';
COMMENT ON COLUMN report.fit_health.correction_percent IS
    'By how much all stated times are too short; negative: too long.';
COMMENT ON COLUMN report.fit_health.uncertainty_percent IS 'Standard deviation of that correction.';
COMMENT ON COLUMN report.fit_health.error_percent IS
    'Mean error of the corrected times over the last few periods.';
COMMENT ON COLUMN report.fit_health.band_percent IS 'Errors above it, two periods in a row, raise the alarm.';
COMMENT ON COLUMN report.fit_health.is_alarmed IS
    'Whether the drift alarm stands; planning keeps more room then.';
COMMENT ON COLUMN report.fit_health.alarm_since IS 'Since when; null: it does not stand.';
COMMENT ON COLUMN report.fit_health.readings IS 'Readings of replicas that it was learned from.';
COMMENT ON COLUMN report.fit_health.seen_until IS 'End of the last period that had readings.';

-- The read-only role for reports.
-- Roles belong to the whole server: another database may have made it, and a managed server may not let us.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        CREATE ROLE plimsoll_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role plimsoll_reader was not created (no CREATEROLE); create it, then grant it USAGE on schema '
                     'report and SELECT on its views';
END $$;

-- Views run with their owner's rights: the reader needs none on the tables behind them.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'plimsoll_reader') THEN
        GRANT USAGE ON SCHEMA report TO plimsoll_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA report TO plimsoll_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA report GRANT SELECT ON TABLES TO plimsoll_reader;
    END IF;
END $$;
