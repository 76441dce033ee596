"""Requests that their clients left in time, and streams in which nothing could be measured."""

from alembic import op

revision = "0138"
down_revision = "0137"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Hours of before have none: those who left were counted as rejected."""
    op.execute(_ADD)


def downgrade() -> None:
    """What was counted is lost."""
    op.execute(_DROP)


_VIEW = """
SELECT h.hour, s.project, h.service, h.arrivals AS requests, h.served, h.in_slo, h.rejected,
       round(100.0 * h.in_slo / nullif(h.served + h.rejected, 0), 4) AS attainment_percent,
       v.slo_latency_ms, (100 * v.slo_percentile)::numeric AS slo_percent,
       100.0 * h.in_slo / nullif(h.served + h.rejected, 0) >= (100 * v.slo_percentile)::numeric AS is_met{more}
FROM service_hour h
LEFT JOIN service s ON s.name = h.service
LEFT JOIN LATERAL (SELECT slo_latency_ms, slo_percentile FROM service_version v
                   WHERE v.service = h.service AND v.created_at < h.hour + interval '1 hour'
                   ORDER BY v.generation DESC LIMIT 1) AS v ON true;
"""

_ADD = f"""
ALTER TABLE service_hour
    ADD gone bigint NOT NULL DEFAULT 0 CHECK (gone >= 0),
    ADD unmeasured bigint NOT NULL DEFAULT 0 CHECK (unmeasured >= 0);
CREATE OR REPLACE VIEW report.slo_attainment_hour AS {_VIEW.format(more=", h.gone, h.unmeasured")}
COMMENT ON COLUMN report.slo_attainment_hour.gone IS
    'Requests that their clients left before the SLO''s latency was over: neither served nor misses.';
COMMENT ON COLUMN report.slo_attainment_hour.unmeasured IS
    'Of those served, streams of which no router could tell when the first token came; none is in in_slo.';
"""

_DROP = f"""
DROP VIEW report.slo_attainment_hour;
CREATE VIEW report.slo_attainment_hour AS {_VIEW.format(more="")}
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
ALTER TABLE service_hour DROP gone, DROP unmeasured;
"""
