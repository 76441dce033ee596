"""How long requests of language models are, as their engines count them, and benchmarks of their servers."""

from alembic import op

revision = "0130"
down_revision = "0129"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Hours of before have none: nobody counted."""
    op.execute(_ADD)


def downgrade() -> None:
    """What was counted is lost."""
    op.execute(_DROP)


_ADD = """
ALTER TABLE service_hour
    ADD prompt_tokens bigint NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    ADD found_tokens bigint NOT NULL DEFAULT 0 CHECK (found_tokens >= 0),
    ADD answer_tokens bigint NOT NULL DEFAULT 0 CHECK (answer_tokens >= 0);
COMMENT ON COLUMN service_hour.prompt_tokens IS 'Tokens of prompts that engines of language models read.';
COMMENT ON COLUMN service_hour.found_tokens IS 'Of these: that they had cached, of earlier prompts that begin alike.';
COMMENT ON COLUMN service_hour.answer_tokens IS 'Tokens that they answered.';

CREATE TABLE token_step (
    service text NOT NULL,
    start timestamptz NOT NULL,
    requests bigint NOT NULL CHECK (requests >= 0),
    prompt_tokens bigint NOT NULL CHECK (prompt_tokens >= 0),
    found_tokens bigint NOT NULL CHECK (found_tokens >= 0),
    answer_tokens bigint NOT NULL CHECK (answer_tokens >= 0),
    PRIMARY KEY (service, start)
);
COMMENT ON TABLE token_step IS
    'What engines of language models counted of their requests in five minutes; how long requests were lately.';

ALTER TABLE network ADD runs jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(runs) = 'array');
COMMENT ON COLUMN network.runs IS 'Of a language model: benchmarks of its servers, as their owner states them.';

DROP VIEW report.tokens_by_service_hour;
CREATE VIEW report.tokens_by_service_hour AS
SELECT h.hour, s.project, h.service, k.output_tokens, round(k.output_tokens / t.seconds, 3) AS tokens_per_s,
       round(h.in_slo / t.seconds, 3) AS goodput_rps, c.cost_usd,
       round(1000000 * c.cost_usd / k.output_tokens, 6) AS usd_per_million_tokens, h.prompt_tokens,
       round(100.0 * h.found_tokens / nullif(h.prompt_tokens, 0), 1) AS found_percent
FROM service_hour h
CROSS JOIN LATERAL (SELECT greatest(h.output_tokens, h.answer_tokens) AS output_tokens) AS k
LEFT JOIN service s ON s.name = h.service
LEFT JOIN (SELECT hour, service, sum(cost_usd) AS cost_usd FROM report.cost_by_service_hour GROUP BY hour, service)
     AS c USING (hour, service)
CROSS JOIN LATERAL (
    SELECT greatest(1, extract(epoch FROM least(now(), h.hour + interval '1 hour') - h.hour)) AS seconds
) AS t
WHERE k.output_tokens > 0;
COMMENT ON VIEW report.tokens_by_service_hour IS
    'Tokens that language models answered, and what a million of them cost, by service and hour; hours without any '
    'are left out.';
COMMENT ON COLUMN report.tokens_by_service_hour.hour IS 'Start of the hour, UTC.';
COMMENT ON COLUMN report.tokens_by_service_hour.project IS 'Project (tenant) of the service.';
COMMENT ON COLUMN report.tokens_by_service_hour.service IS 'Service.';
COMMENT ON COLUMN report.tokens_by_service_hour.output_tokens IS
    'Tokens of answers, as engines count them, or as the nodes'' own routers do where engines tell none.';
COMMENT ON COLUMN report.tokens_by_service_hour.tokens_per_s IS
    'The same per second; of the hour that is not over, since it began.';
COMMENT ON COLUMN report.tokens_by_service_hour.goodput_rps IS
    'Requests per second that kept both SLOs, until the first token and from one to the next.';
COMMENT ON COLUMN report.tokens_by_service_hour.cost_usd IS
    'Price × time of the GPUs that its replicas had, as in cost_by_service_hour.';
COMMENT ON COLUMN report.tokens_by_service_hour.usd_per_million_tokens IS
    '1,000,000 · cost_usd / output_tokens; prompts are paid for by it, too.';
COMMENT ON COLUMN report.tokens_by_service_hour.prompt_tokens IS
    'Tokens of prompts, as engines count them.';
COMMENT ON COLUMN report.tokens_by_service_hour.found_percent IS
    'Of these: that engines had cached, of earlier prompts that begin alike, and did not compute again.';
"""

_DROP = """
DROP VIEW report.tokens_by_service_hour;
DROP TABLE token_step;
ALTER TABLE network DROP runs;
ALTER TABLE service_hour DROP prompt_tokens, DROP found_tokens, DROP answer_tokens;
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
