"""Tokens that language models answered, and what they cost."""

from alembic import op

revision = "0129"
down_revision = "0128"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Hours of before have none: nobody counted."""
    op.execute(_ADD)


def downgrade() -> None:
    """What was counted is lost."""
    op.execute(_DROP)


_ADD = """
ALTER TABLE service_hour ADD output_tokens bigint NOT NULL DEFAULT 0 CHECK (output_tokens >= 0);

CREATE VIEW report.tokens_by_service_hour AS
SELECT h.hour, s.project, h.service, h.output_tokens, round(h.output_tokens / t.seconds, 3) AS tokens_per_s,
       round(h.in_slo / t.seconds, 3) AS goodput_rps, c.cost_usd,
       round(1000000 * c.cost_usd / h.output_tokens, 6) AS usd_per_million_tokens
FROM service_hour h
LEFT JOIN service s ON s.name = h.service
LEFT JOIN (SELECT hour, service, sum(cost_usd) AS cost_usd FROM report.cost_by_service_hour GROUP BY hour, service)
     AS c USING (hour, service)
CROSS JOIN LATERAL (
    SELECT greatest(1, extract(epoch FROM least(now(), h.hour + interval '1 hour') - h.hour)) AS seconds
) AS t
WHERE h.output_tokens > 0;
COMMENT ON VIEW report.tokens_by_service_hour IS
    'Tokens that language models answered, and what a million of them cost, by service and hour; hours without any '
    'are left out.';
COMMENT ON COLUMN report.tokens_by_service_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.tokens_by_service_hour.project IS 'Project (tenant) of the service.';
COMMENT ON COLUMN report.tokens_by_service_hour.service IS 'Service.';
COMMENT ON COLUMN report.tokens_by_service_hour.output_tokens IS
    'Tokens in answers that finished, as the nodes'' own routers count them; prompts are not in it.';
COMMENT ON COLUMN report.tokens_by_service_hour.tokens_per_s IS
    'The same per second; of the hour that is not over, since it began.';
COMMENT ON COLUMN report.tokens_by_service_hour.goodput_rps IS
    'Requests per second that kept both SLOs, until the first token and from one to the next.';
COMMENT ON COLUMN report.tokens_by_service_hour.cost_usd IS
    'Price × time of the GPUs that its replicas had, as in cost_by_service_hour.';
COMMENT ON COLUMN report.tokens_by_service_hour.usd_per_million_tokens IS
    '1,000,000 · cost_usd / output_tokens; prompts are paid for by it, too.';
"""

_DROP = """
DROP VIEW report.tokens_by_service_hour;
ALTER TABLE service_hour DROP output_tokens;
"""
