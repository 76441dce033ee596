"""GPUs that are paid for anyway cost while they are idle, too, and budgets say what could be saved."""

import re
from pathlib import Path

from alembic import op

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None

BASELINE = Path(__file__).parents[1] / "baseline" / "7_reports.sql"


def upgrade() -> None:
    """As many are paid for since ever as today, where nothing is known of before."""
    op.execute(_HISTORY)
    op.execute("DROP VIEW report.cost_by_payment_hour")
    op.execute(_COST_BY_PAYMENT)
    op.execute(_BUDGET_STATUS)
    op.execute(
        """
        COMMENT ON COLUMN report.budget_status.avoidable_usd_per_hour IS
            'The part of usd_per_hour that is of GPUs beyond those that are paid for anyway: only while it is too much '
            'does action degrade take from services.';
        COMMENT ON COLUMN report.budget_status.spent_usd IS
            'What was: the rows of cost_by_project_hour, added up, at list price also where GPUs are paid for.';
        """
    )


def downgrade() -> None:
    """Idle GPUs cost nothing, as before."""
    op.execute("DROP VIEW report.budget_status")
    op.get_bind().exec_driver_sql(
        _budget_status_of_before(), execution_options={"no_parameters": True}
    )
    op.execute("DROP VIEW report.cost_by_payment_hour")
    op.execute(_COST_WHILE_USED)
    op.execute("DROP VIEW energy_tariff; DROP VIEW paid_segment; DROP TABLE gpu_paid")


def _budget_status_of_before() -> str:
    """With its comments."""
    sql = BASELINE.read_text(encoding="utf-8")
    found = re.search(
        r"CREATE VIEW report\.budget_status AS.*?(?=\n\n)", sql, re.DOTALL
    )
    assert found is not None
    return found[0]


_HISTORY = """
CREATE TABLE gpu_paid (
    gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
    valid tstzrange NOT NULL CHECK (NOT isempty(valid)),
    paid_count integer NOT NULL CHECK (paid_count >= 0 AND paid_count <= 1000000000),
    PRIMARY KEY (gpu_type, valid),
    EXCLUDE USING gist ((gpu_type::text) WITH =, valid WITH &&)
);
COMMENT ON TABLE gpu_paid IS 'How many GPUs of a type were paid for, used or not, by period, as gpu_price has prices.';
INSERT INTO gpu_paid (gpu_type, valid, paid_count) SELECT name, tstzrange(NULL, NULL), paid_count FROM gpu_type;

-- One row for all GPUs of a type that were registered at one time: fleets are registered by nodes, not by hours.
CREATE VIEW paid_segment AS
SELECT f.gpu_type, hour.hour, cut.seconds, least(c.paid_count, f.gpus) AS gpus,
       round(least(c.paid_count, f.gpus) * p.price_usd_per_hour * cut.seconds / 3600, 12) AS cost_usd
FROM (
    SELECT gpu_type, gpus,
           tstzrange(created_at, lead(created_at) OVER (PARTITION BY gpu_type ORDER BY created_at)) AS valid
    FROM (
        SELECT gpu_type, created_at, sum(count(*)) OVER (PARTITION BY gpu_type ORDER BY created_at) AS gpus
        FROM gpu GROUP BY gpu_type, created_at
    ) AS grown
) AS f
CROSS JOIN as_of
JOIN gpu_paid c ON c.gpu_type = f.gpu_type AND c.valid && f.valid AND c.paid_count > 0
JOIN gpu_price p ON p.gpu_type = f.gpu_type AND p.valid && f.valid
CROSS JOIN LATERAL (SELECT f.valid * c.valid * p.valid * tstzrange(NULL, as_of.at) AS period) AS t
CROSS JOIN LATERAL generate_series(date_trunc('hour', lower(t.period), 'UTC'),
                                   upper(t.period) - interval '1 microsecond', interval '1 hour') AS hour (hour)
CROSS JOIN LATERAL (SELECT extract(epoch FROM least(upper(t.period), hour.hour + interval '1 hour')
                                              - greatest(lower(t.period), hour.hour)) AS seconds) AS cut
WHERE NOT isempty(t.period);
COMMENT ON VIEW paid_segment IS
    'GPUs that are paid for, used or not, cut where their number, the price or the hour changed, each with its cost.';

-- As `app.loop.make_problem.price_usd_per_kwh` has it.
CREATE VIEW energy_tariff AS
SELECT hour_of_day, CASE WHEN row_number() OVER upto = 1 THEN '-infinity' ELSE created_at END AS since,
       lead(created_at, 1, 'infinity') OVER upto AS until,
       (energy_price_usd_per_kwh + carbon_price_usd_per_t / 1000000 * CASE cardinality(carbon_g_per_kwh)
           WHEN 0 THEN 0 WHEN 1 THEN carbon_g_per_kwh[1] ELSE carbon_g_per_kwh[hour_of_day + 1] END
       )::numeric AS usd_per_kwh
FROM policy CROSS JOIN generate_series(0, 23) AS hour_of_day
WINDOW upto AS (PARTITION BY hour_of_day ORDER BY version);
COMMENT ON VIEW energy_tariff IS 'What a kWh cost, its carbon included, by hour of the day in UTC and by policy.';
"""

_COST_BY_PAYMENT = """
CREATE VIEW report.cost_by_payment_hour AS
SELECT hour, gpu_type, sum(used_hours) AS used_hours, max(paid_gpus)::bigint AS paid_gpus,
       sum(standing_usd) AS standing_cost_usd, sum(on_demand_usd) AS on_demand_cost_usd,
       sum(paid_hours) AS paid_hours, sum(energy_wh) AS energy_wh, round(sum(energy_usd), 12) AS energy_cost_usd
FROM (
    -- By how many are paid for, not by those that are registered: of removed nodes the bill stays.
    SELECT b.hour, b.gpu_type, b.used_hours,
           round(b.bill_usd * greatest(0, 1 - c.hours / b.used_hours), 12) AS on_demand_usd, 0::numeric AS paid_gpus,
           0::numeric AS paid_hours, 0::numeric AS standing_usd, 0::double precision AS energy_wh,
           0::numeric AS energy_usd
    FROM (
        SELECT hour, gpu_type, sum(hours) AS used_hours, sum(cost_usd) AS bill_usd
        FROM report.bill_hour GROUP BY hour, gpu_type HAVING sum(hours) > 0
    ) AS b
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(p.paid_count * extract(epoch FROM upper(t.period) - lower(t.period)) / 3600), 0) AS hours
        FROM gpu_paid p
        CROSS JOIN as_of
        CROSS JOIN LATERAL (
            SELECT p.valid * tstzrange(b.hour, least(b.hour + interval '1 hour', as_of.at)) AS period
        ) AS t
        WHERE p.gpu_type = b.gpu_type AND NOT isempty(t.period)
    ) AS c
    UNION ALL
    SELECT hour, gpu_type, 0, 0, gpus, gpus * seconds / 3600, cost_usd, 0, 0 FROM paid_segment
    UNION ALL
    SELECT h.hour, g.gpu_type, 0, 0, 0, 0, 0, h.energy_j / 3600,
           h.energy_j::numeric / 3600000 * coalesce(t.usd_per_kwh, 0)
    FROM gpu_hour_live h
    JOIN gpu g ON g.id = h.gpu
    LEFT JOIN energy_tariff t ON t.hour_of_day = extract(hour FROM h.hour AT TIME ZONE 'UTC')
                             AND t.since <= h.hour AND h.hour < t.until
) AS rows
GROUP BY hour, gpu_type
HAVING sum(used_hours) > 0 OR sum(paid_hours) > 0 OR sum(energy_wh) > 0;
COMMENT ON VIEW report.cost_by_payment_hour IS
    'Cost per hour by GPU type and how it is paid: what stands, used or not, what is rented beside it, and energy. '
    'Standing cost and energy are of the GPUs that are registered now, from when they were: those of removed nodes '
    'count no more, in hours of the past either. How many are paid for is kept by time since revision 0115 of the '
    'database; before it, as many count as then.';
COMMENT ON COLUMN report.cost_by_payment_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.cost_by_payment_hour.gpu_type IS 'GPU type.';
COMMENT ON COLUMN report.cost_by_payment_hour.used_hours IS
    'Hours in which GPUs carried replicas or tasks, summed over GPUs.';
COMMENT ON COLUMN report.cost_by_payment_hour.paid_gpus IS
    'GPUs that are owned or reserved, and paid for whether they are used or not: the most within the hour.';
COMMENT ON COLUMN report.cost_by_payment_hour.standing_cost_usd IS
    'What those cost in the hour: price × time, used or not.';
COMMENT ON COLUMN report.cost_by_payment_hour.on_demand_cost_usd IS
    'The part of the bill that is of GPUs beyond those, by the mean number in use.';
COMMENT ON COLUMN report.cost_by_payment_hour.paid_hours IS 'Hours of GPUs that were paid for, summed over GPUs.';
COMMENT ON COLUMN report.cost_by_payment_hour.energy_wh IS
    'Energy of all registered GPUs of the type in watt hours, measured.';
COMMENT ON COLUMN report.cost_by_payment_hour.energy_cost_usd IS
    'That energy at the policy''s prices of energy and carbon that held when the hour began.';
"""

# A plan's GPUs are counted by type, once, and not for each of their shares.
_BUDGET_STATUS = """
CREATE OR REPLACE VIEW report.budget_status AS
SELECT b.name AS budget, b.project, b.period, b.action, p.since, p.until, b.limit_usd, s.spent_usd,
       round(100 * s.spent_usd / b.limit_usd, 4) AS spent_percent, r.usd_per_hour,
       s.spent_usd + r.usd_per_hour * extract(epoch FROM p.until - p.at) / 3600 AS projected_usd,
       r.avoidable_usd_per_hour
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
    SELECT coalesce(sum(k.usd), 0) AS usd_per_hour,
           coalesce(sum(k.usd * greatest(0, 1 - g.paid_count::numeric / k.used)), 0) AS avoidable_usd_per_hour
    FROM (
        SELECT u.gpu_type, count(DISTINCT u.gpu) AS used,
               sum(g.price_usd_per_hour * s.sm_percent / s.sm_all)
                   FILTER (WHERE b.project IS NULL OR s.project = b.project) AS usd
        FROM target t
        JOIN plan_share s USING (plan_id)
        JOIN plan_gpu u USING (plan_id, gpu)
        JOIN gpu_price g ON g.gpu_type = u.gpu_type AND upper_inf(g.valid)
        WHERE upper_inf(t.valid)
        GROUP BY u.gpu_type
    ) AS k
    JOIN gpu_type g ON g.name = k.gpu_type
) AS r
"""

_COST_WHILE_USED = """
CREATE VIEW report.cost_by_payment_hour AS
SELECT b.hour, b.gpu_type, b.used_hours, f.gpus AS paid_gpus,
       f.gpus * p.price_usd_per_hour AS standing_cost_usd,
       round(b.bill_usd * greatest(0, 1 - f.gpus / b.used_hours), 12) AS on_demand_cost_usd
FROM (
    SELECT hour, gpu_type, sum(hours) AS used_hours, sum(cost_usd) AS bill_usd
    FROM report.bill_hour GROUP BY hour, gpu_type HAVING sum(hours) > 0
) AS b
JOIN (
    SELECT t.name, least(t.paid_count, (SELECT count(*) FROM gpu g WHERE g.gpu_type = t.name)) AS gpus
    FROM gpu_type t
) AS f ON f.name = b.gpu_type
JOIN gpu_price p ON p.gpu_type = b.gpu_type AND p.valid @> b.hour
"""
