"""Error budgets: what each service may still miss, and how fast it uses that up."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

INDEX = "CREATE INDEX service_hour_by_hour ON service_hour (hour)"

# The newest SLO within an hour counts for the whole hour, as in report.slo_attainment_hour.
SLO_PERIOD = """
CREATE VIEW slo_period AS
SELECT service, (100 * slo_percentile)::numeric AS slo_percent,
       CASE WHEN row_number() OVER upto = 1 THEN '-infinity' ELSE created_at END AS since,
       lead(created_at, 1, 'infinity') OVER upto AS until
FROM service_version WINDOW upto AS (PARTITION BY service ORDER BY generation);
COMMENT ON VIEW slo_period IS 'From when until when each percentile of a service''s SLO stood.';
"""

# Windows of the loop are kept for six hours only: longer periods begin with a full hour. Of the shorter ones only what
# lies before their first full hour is summed from windows, the rest from hours.
# Limits of the burn rate are those of Google's SRE workbook, chapter 5, table 5-8: over each long period together with
# a short one, so that an alert ends soon after its cause.
VIEW = """
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
FROM rate WINDOW whole AS (PARTITION BY project, service)
"""

MEANING = (
    "Error budget of every service that is there, over 5 and 30 minutes, 1 and 6 hours, 3 and 30 days up to the newest "
    "moment that the control plane wrote down; over 30 days: 100 - budget_used_percent is what is left."
)
COLUMNS = {
    "project": "Project (tenant) of the service.",
    "service": "Service.",
    "period": "5 min, 30 min, 1 h, 6 h, 3 d or 30 d.",
    "period_s": "The same in seconds, to sort by.",
    "since": "When it begins; days begin with a full hour.",
    "until": "When it ends.",
    "counted_since": "Start of the first hour or window in it that has counts; null = none has.",
    "slo_latency_ms": "The SLO's latency, as it is now.",
    "slo_percent": "The SLO's percentile as percent of requests, as it is now.",
    "finished": "Requests that finished, were refused, or were lost.",
    "misses": "Those of them that did not finish within the SLO's latency.",
    "allowed_misses": "Misses that the SLO's percentile leaves of these requests, each hour by the SLO that it had.",
    "burn_rate": "misses / allowed_misses: at 1 the budget lasts exactly as long as the period; null without requests.",
    "budget_used_percent": "100 · misses / allowed_misses of 30 days: how much of the whole budget this period used.",
    "alert_burn_rate": "Burn rate that calls for a person; null: this period is not watched.",
    "is_alerting": "Whether burn_rate is above it, and that of a shorter period, too (1 h: 5 min; 6 h: 30 min; 3 d: "
    "6 h); null where it is not watched.",
}


def upgrade() -> None:
    """Make the views and say what each column means."""
    for statement in (INDEX, SLO_PERIOD, VIEW):
        op.execute(statement)
    op.execute(f"COMMENT ON VIEW report.slo_budget IS '{MEANING}'")
    for column, text in COLUMNS.items():
        escaped = text.replace("'", "''")
        op.execute(f"COMMENT ON COLUMN report.slo_budget.{column} IS '{escaped}'")


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP VIEW report.slo_budget, slo_period")
    op.execute("DROP INDEX service_hour_by_hour")
