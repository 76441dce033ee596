-- report.slo_budget from every window and hour, without the sums of five minutes: what those are held against.
CREATE VIEW all_windows AS
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
