"""Error budgets from sums of five minutes: a load reads no more than a few minutes of the loop's windows.

What a controller of an earlier version adds between this revision and its own end is missing in periods of up to six
hours, not in those of days.
"""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE service_step (
    service resource_name NOT NULL,
    start timestamptz NOT NULL CHECK (start = date_bin('5 minutes', start, 'epoch')),
    first_start timestamptz NOT NULL,
    last_end timestamptz NOT NULL,
    served bigint NOT NULL,
    in_slo bigint NOT NULL,
    rejected bigint NOT NULL,
    PRIMARY KEY (service, start)
) WITH (fillfactor = 70);
CREATE INDEX service_step_by_time ON service_step (start);
COMMENT ON TABLE service_step IS
    'The rows of service_window that start within five minutes, summed as they come in; kept as long as those.';
"""

FILL = """
LOCK TABLE service_window IN SHARE MODE;
INSERT INTO service_step
SELECT service, date_bin('5 minutes', window_start, 'epoch'), min(window_start),
       max(window_start + make_interval(secs => window_s)), sum(served), sum(in_slo), sum(rejected)
FROM service_window GROUP BY 1, 2;
"""

HEAD = """
CREATE OR REPLACE VIEW report.slo_budget AS
WITH wanted (period, period_s, alert_burn_rate) AS (
    VALUES ('5 min', 300, NULL), ('30 min', 1800, NULL), ('1 h', 3600, 14.4), ('6 h', 21600, 6.0),
           ('3 d', 259200, 1.0), ('30 d', 2592000, NULL)
), began AS (
    SELECT w.*, as_of.at AS until,
           CASE WHEN w.period_s > 21600 THEN date_trunc('hour', as_of.at - make_interval(secs => w.period_s), 'UTC')
                ELSE as_of.at - make_interval(secs => w.period_s) END AS since
    FROM wanted w CROSS JOIN as_of
), """

# The same figures as before, read from less. Steps in which a service's SLO changed are summed from their windows, as
# each of those counts by the SLO that stood at its end. Counts are added up before they meet the SLO's percentile:
# adding whole numbers is cheap.
PARTS = """cut AS MATERIALIZED (
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
"""

# As revision 0027 made it.
PARTS_BEFORE = """cut AS MATERIALIZED (
    SELECT *, date_trunc('hour', since + interval '1 hour' - interval '1 microsecond', 'UTC') AS first_hour FROM began
), part AS (
    SELECT c.period, h.service, h.hour AS since, h.hour + interval '1 hour' AS until, h.served, h.in_slo, h.rejected
    FROM cut c JOIN service_hour h ON h.hour >= c.first_hour
    UNION ALL
    SELECT c.period, w.service, w.window_start, w.window_start + make_interval(secs => w.window_s), w.served, w.in_slo,
           w.rejected
    FROM cut c JOIN service_window w ON w.window_start >= c.since AND w.window_start < c.first_hour
), total AS (
    SELECT p.service, p.period, min(p.since) AS counted_since, sum(p.served + p.rejected) AS finished,
           sum(p.served + p.rejected - p.in_slo) AS misses,
           sum((p.served + p.rejected) * (100 - s.slo_percent) / 100) AS allowed_misses
    FROM part p
    JOIN slo_period s ON s.service = p.service AND s.since < p.until AND s.until >= p.until
    GROUP BY p.service, p.period
"""

TAIL = """), rate AS (
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
FROM rate WINDOW whole AS (PARTITION BY project, service)
"""


def upgrade() -> None:
    """Make the sums, fill them, and read the view from them."""
    for statement in (TABLE, FILL, HEAD + PARTS + TAIL):
        op.execute(statement)


def downgrade() -> None:
    """Read the view from windows again."""
    op.execute(HEAD + PARTS_BEFORE + TAIL)
    op.execute("DROP TABLE service_step")
