"""Ready questions in SQL: docs/sql.md shows them, and a test asks each as a reader would."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """What is asked, in words and in SQL over the schema `report`."""

    words: str
    sql: str


QUESTIONS = (
    SqlQuestion(
        "What do 1,000 requests of each service cost this month, dearest first?",
        """
SELECT c.service, r.requests, c.usd, round(1000 * c.usd / nullif(r.requests, 0), 4) AS usd_per_1000_requests
FROM (SELECT service, sum(cost_usd) AS usd FROM report.cost_by_service_hour
      WHERE hour >= date_trunc('month', now(), 'UTC') AND service NOT IN ('(idle)', '(tasks)') GROUP BY service) AS c
LEFT JOIN (SELECT service, sum(requests) AS requests FROM report.slo_attainment_hour
           WHERE hour >= date_trunc('month', now(), 'UTC') GROUP BY service) AS r USING (service)
ORDER BY usd_per_1000_requests DESC NULLS LAST, service;
""",
    ),
    SqlQuestion(
        "What do a million tokens of each language model cost this month, prompts included?",
        """
SELECT service, sum(output_tokens) AS tokens, sum(cost_usd) AS usd,
       round(1000000 * sum(cost_usd) / sum(output_tokens), 2) AS usd_per_million_tokens
FROM report.tokens_by_service_hour WHERE hour >= date_trunc('month', now(), 'UTC')
GROUP BY service ORDER BY usd_per_million_tokens DESC NULLS LAST, service;
""",
    ),
    SqlQuestion(
        "Who would pay for what is idle, if everybody paid for the idle part of the GPUs that they are on?",
        """
SELECT project, sum(cost_usd) AS own_usd, sum(whole_gpu_cost_usd - cost_usd) AS idle_usd
FROM report.cost_by_project_hour
WHERE hour >= date_trunc('month', now(), 'UTC') AND project <> '(idle)'
GROUP BY project ORDER BY idle_usd DESC, project;
""",
    ),
    SqlQuestion(
        "What did sharing GPUs save this month, against whole GPUs for each service?",
        """
SELECT b.usd AS bill_usd, w.usd AS without_sharing_usd, w.usd - b.usd AS saved_usd,
       round(100 * (w.usd - b.usd) / nullif(w.usd, 0), 1) AS saved_percent
FROM (SELECT coalesce(sum(cost_usd), 0) AS usd FROM report.bill_hour
      WHERE hour >= date_trunc('month', now(), 'UTC')) AS b,
     (SELECT coalesce(sum(cost_usd), 0) AS usd FROM report.cost_without_sharing_hour
      WHERE hour >= date_trunc('month', now(), 'UTC')) AS w;
""",
    ),
    SqlQuestion(
        "What did a tighter SLO cost? Each SLO that a service had, with what 1,000 requests cost under it. Demand and "
        "prices changed as well: `plimsoll what-if` holds them still.",
        """
SELECT s.service, s.slo_latency_ms, count(*) AS hours, sum(s.requests) AS requests, sum(c.cost_usd) AS usd,
       round(1000 * sum(c.cost_usd) / nullif(sum(s.requests), 0), 4) AS usd_per_1000_requests
FROM report.slo_attainment_hour s
JOIN report.cost_by_service_hour c USING (hour, project, service)
GROUP BY s.service, s.slo_latency_ms ORDER BY s.service, s.slo_latency_ms;
""",
    ),
    SqlQuestion(
        "How restless are the plans? Plans that came into force each day, with the replicas that they moved.",
        """
SELECT date_trunc('day', in_force_from, 'UTC') AS day, count(*) AS plans, sum(replicas_started) AS replicas_started,
       sum(replicas_stopped) AS replicas_stopped
FROM report.plan_history WHERE in_force_from IS NOT NULL GROUP BY 1 ORDER BY 1;
""",
    ),
    SqlQuestion(
        "How much energy does a request take, by service, this month?",
        """
SELECT e.service, r.requests, round(e.wh::numeric, 6) AS energy_wh,
       round((3600 * e.wh / nullif(r.requests, 0))::numeric, 6) AS joules_per_request
FROM (SELECT service, sum(energy_wh) AS wh FROM report.energy_by_service_hour
      WHERE hour >= date_trunc('month', now(), 'UTC') AND service NOT IN ('(idle)', '(tasks)') GROUP BY service) AS e
JOIN (SELECT service, sum(requests) AS requests FROM report.slo_attainment_hour
      WHERE hour >= date_trunc('month', now(), 'UTC') GROUP BY service) AS r USING (service)
ORDER BY joules_per_request DESC NULLS LAST, e.service;
""",
    ),
    SqlQuestion(
        "Which tasks are late, or were?",
        """
SELECT project, task, run, state, round(done_percent::numeric, 1) AS done_percent, deadline_at, finished_at
FROM report.task_progress WHERE is_late ORDER BY deadline_at, task, run;
""",
    ),
    SqlQuestion(
        "Which predictions are the worst, against what is served?",
        """
SELECT network, gpu_type, provenance, round(error_percent::numeric, 1) AS error_percent,
       round(correction_percent::numeric, 1) AS correction_percent, is_alarmed, readings
FROM report.fit_health ORDER BY error_percent DESC NULLS LAST, network, gpu_type LIMIT 10;
""",
    ),
    SqlQuestion(
        "Which budgets will not last, if the plan in force stays?",
        """
SELECT budget, coalesce(project, '(whole cluster)') AS project, period, limit_usd, spent_usd,
       round(projected_usd, 2) AS projected_usd, until
FROM report.budget_status WHERE projected_usd > limit_usd ORDER BY projected_usd / limit_usd DESC, budget;
""",
    ),
    SqlQuestion(
        "Which GPUs are given away, yet stand still? Most idle first, of the last 24 hours.",
        """
SELECT gpu, gpu_type, round(avg(sm_percent), 1) AS given_sm_percent,
       round(avg(busy_percent)::numeric, 1) AS busy_percent
FROM report.gpu_utilisation_hour
WHERE hour >= now() - interval '24 hours' AND allocated_hours > 0 AND observed_hours > 0
GROUP BY gpu, gpu_type ORDER BY busy_percent, gpu LIMIT 20;
""",
    ),
    SqlQuestion(
        "Which services use up their error budget of 30 days?",
        """
SELECT project, service, slo_latency_ms, slo_percent, finished, misses, round(budget_used_percent, 1) AS used_percent
FROM report.slo_budget WHERE period = '30 d' AND misses > 0 ORDER BY budget_used_percent DESC NULLS LAST, service;
""",
    ),
    SqlQuestion(
        "Which hours were the dearest this month, and how much of each was idle?",
        """
SELECT hour, sum(cost_usd) AS usd, sum(idle_cost_usd) AS idle_usd
FROM report.cost_by_gpu_type_hour WHERE hour >= date_trunc('month', now(), 'UTC')
GROUP BY hour ORDER BY usd DESC, hour LIMIT 10;
""",
    ),
)


def chapter() -> str:
    """All of them as a chapter of docs/sql.md."""
    parts = [f"\n{each.words}\n\n{_indented(each.sql)}\n" for each in QUESTIONS]
    return "\n## Ready questions\n" + "".join(parts)


def _indented(sql: str) -> str:
    return "\n".join(f"    {line}" for line in sql.strip().splitlines())
