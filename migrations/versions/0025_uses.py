"""Who used what of the GPUs: by replica and window, by hour, in the energy report, and overuse that goes on."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE use_observation (
    gpu resource_name NOT NULL,
    window_start timestamptz NOT NULL,
    window_s positive_amount NOT NULL,
    kind text NOT NULL CHECK (kind IN ('replica', 'task', 'others', 'idle')),
    name text NOT NULL,
    service text NOT NULL,
    memory_used_mib amount,
    sm_percent amount CHECK (sm_percent <= 100),
    energy_j amount NOT NULL,
    is_estimated boolean NOT NULL
) PARTITION BY RANGE (window_start);
CREATE INDEX use_observation_by_time ON use_observation USING brin (window_start);
COMMENT ON TABLE use_observation IS
    'What one replica or task, processes of others, or nobody used of a GPU over one window; where agents measure it.';

CREATE TABLE use_hour (
    gpu resource_name NOT NULL,
    hour timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    kind text NOT NULL,
    name text NOT NULL,
    service text NOT NULL,
    observed_s amount NOT NULL,
    memory_mib_s amount NOT NULL,
    memory_known_s amount NOT NULL,
    sm_percent_s amount NOT NULL,
    sm_known_s amount NOT NULL,
    energy_j amount NOT NULL,
    estimated_j amount NOT NULL,
    PRIMARY KEY (gpu, hour, kind, name, service)
);
CREATE INDEX use_hour_by_hour ON use_hour (hour);
COMMENT ON TABLE use_hour IS 'Roll-up of use_observation, together with gpu_hour.';

CREATE TABLE overuse (
    gpu resource_name NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    quantity text NOT NULL,
    service text NOT NULL,
    granted amount NOT NULL,
    used amount NOT NULL,
    is_estimated boolean NOT NULL,
    begun_at timestamptz NOT NULL,
    PRIMARY KEY (gpu, kind, name, quantity)
);
COMMENT ON TABLE overuse IS 'Replicas and tasks that use more than they were granted now; the audit has begin and end.';

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
"""

PARTITIONS = """
CREATE OR REPLACE FUNCTION ensure_observation_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    parent text;
    part text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('plimsoll partitions'));
    FOREACH parent IN ARRAY ARRAY['observation', 'service_observation', 'gpu_observation', 'replica_observation'{uses}]
    LOOP
        part := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
        IF to_regclass(part) IS NULL THEN
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, parent);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, part,
                           day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION drop_observation_days(before date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    part record;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('plimsoll partitions'));
    FOR part IN
        SELECT child.oid::regclass AS name
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = ANY (ARRAY['observation', 'service_observation', 'gpu_observation',
                                     'replica_observation'{uses}]::regclass[])
          AND to_date(right(child.relname, 8), 'YYYYMMDD') < before
        ORDER BY child.relname
    LOOP
        EXECUTE format('DROP TABLE %s', part.name);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
"""

# Days that there are already.
ENSURE_DAYS = """
SELECT ensure_observation_day(to_date(right(child.relname, 8), 'YYYYMMDD'))
FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = 'observation'::regclass
ORDER BY child.relname
"""

WEIGHTS = """
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
           (coalesce(s.watt_seconds / s.seconds, 1) * greatest(h.observed_s, s.seconds))::numeric
    FROM gpu_hour_live h
    LEFT JOIN (SELECT hour, gpu, sum(seconds) AS seconds, sum(seconds * g.idle_w::numeric) AS watt_seconds
               FROM gpu_segment JOIN plan_gpu g USING (plan_id, gpu) GROUP BY hour, gpu) AS s
           ON s.hour = h.hour AND s.gpu = h.gpu
)
"""
BY_PLAN = f"""
CREATE VIEW report.energy_by_service_hour AS
{WEIGHTS}
SELECT r.hour, r.project, r.service,
       sum(h.energy_j * (r.watt_seconds / nullif(a.watt_seconds, 0))::double precision) / 3600 AS energy_wh
FROM rows r
JOIN gpu_hour_live h USING (hour, gpu)
JOIN (SELECT hour, gpu, sum(watt_seconds) AS watt_seconds FROM rows GROUP BY hour, gpu) AS a USING (hour, gpu)
GROUP BY r.hour, r.project, r.service
"""

# Of each GPU's hour, what agents attributed goes to whom they saw using it, the rest by planned watts as before.
BY_USE = f"""
CREATE OR REPLACE VIEW report.energy_by_service_hour AS
{WEIGHTS}, seen AS (
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
FROM shares GROUP BY hour, project, service
"""

USE_VIEW = """
CREATE VIEW report.use_hour AS
SELECT u.hour, u.gpu, gpu.node, u.kind, u.name, nullif(u.service, '') AS service, u.observed_s / 3600 AS observed_hours,
       u.memory_mib_s / nullif(u.memory_known_s, 0) AS memory_used_mib,
       u.sm_percent_s / nullif(u.sm_known_s, 0) AS sm_percent, u.energy_j / 3600 AS energy_wh,
       u.estimated_j > 0 AS is_estimated
FROM use_hour_live u LEFT JOIN gpu ON gpu.id = u.gpu
"""

COMMENTS = {
    "hour": "Start of the hour, UTC.",
    "gpu": "GPU, `node/gpu-index`.",
    "node": "Node; null when it is gone.",
    "kind": "replica, task, others (processes that are not the node''s), or idle (what nobody used).",
    "name": "Replica or task; `(others)` and `(idle)`.",
    "service": "Service of a replica, else null.",
    "observed_hours": "Hours in which the agent saw it there.",
    "memory_used_mib": "GPU memory of its processes, mean over those hours; null where the driver does not tell.",
    "sm_percent": "Share of the GPU''s SMs that it kept busy, mean over those hours; null where it is not known.",
    "energy_wh": "Its share of the GPU''s measured energy: of idle watts by the SM percent that it was granted, of the "
    "rest by SM use. Rows of a GPU add up to its energy.",
    "is_estimated": "Whether SM use, and so energy, was worked out from the server''s own busy time or an MPS share at "
    "some time in the hour. NVML measures the energy of no process: also other rows are shares.",
}
ENERGY = "Measured energy of each GPU, {how}. Rows add up to the measured energy."
PLANNED = (
    "divided by planned watts: services by the watts above idle of their replicas, `(idle)` by the idle watts of the "
    "GPU type"
)
SEEN = (
    "divided by what agents saw replicas use (see use_hour), and where they did not by planned watts: services by the "
    "watts above idle of their replicas, `(idle)` by the idle watts of the GPU type"
)
ENERGY_COLUMNS = {
    "attributed_wh": "Part of energy_wh that agents attributed; the rest was divided by planned watts.",
    "is_estimated": "Whether planned watts, or an estimate of SM use, stand behind some of it.",
}
OLD_COLUMNS = {
    "hour": "Start of the hour, UTC.",
    "project": "Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.",
    "service": "Service; `(tasks)` for the training and offline work of a project, `(idle)` for what nobody was given.",
    "energy_wh": "Energy in watt hours.",
}


def upgrade() -> None:
    """Make the tables and views, and partitions for the days that there are."""
    op.execute(TABLES)
    for part in (PARTITIONS.replace("{uses}", ", 'use_observation'"), ENSURE_DAYS, BY_USE, USE_VIEW):
        op.execute(part)
    _comment("energy_by_service_hour", ENERGY.format(how=SEEN), ENERGY_COLUMNS)
    _comment(
        "use_hour",
        "What each replica and task, others, and nobody used of each GPU, by hour, as agents saw it.",
        COMMENTS,
    )


def downgrade() -> None:
    """Divide energy by planned watts alone again."""
    op.execute("DROP VIEW report.use_hour, report.energy_by_service_hour")
    op.execute(BY_PLAN)
    _comment("energy_by_service_hour", ENERGY.format(how=PLANNED), OLD_COLUMNS)
    op.execute("DROP VIEW use_hour_live")
    op.execute("DROP TABLE overuse, use_hour")
    op.execute("DROP TABLE use_observation CASCADE")
    op.execute(PARTITIONS.replace("{uses}", ""))


def _comment(view: str, meaning: str, columns: dict[str, str]) -> None:
    op.execute(f"COMMENT ON VIEW report.{view} IS '{meaning}'")
    for column, text in columns.items():
        op.execute(f"COMMENT ON COLUMN report.{view}.{column} IS '{text}'")
