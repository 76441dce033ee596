"""Tasks in the reports: what they cost, beside services, and how far they have come."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

SHARE = """
CREATE OR REPLACE VIEW plan_share AS
WITH used AS NOT MATERIALIZED (
    SELECT plan_id, gpu, service, project, false AS is_idle, count(*) AS replicas, sum(sm_percent) AS sm_percent,
           sum(memory_mib) AS memory_mib, sum(power_w::numeric) AS power_w
    FROM plan_replica GROUP BY plan_id, gpu, service, project
    {tasks}
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
       upto AS (PARTITION BY plan_id, gpu ORDER BY is_idle, service{order} ROWS UNBOUNDED PRECEDING)
"""

# One row for all tasks of a project on a GPU; `task_share` divides it.
TASKS = """
    UNION ALL
    SELECT plan_id, gpu, '(tasks)', project, false, 0, sum(sm_percent), sum(memory_mib), sum(power_w::numeric)
    FROM plan_task GROUP BY plan_id, gpu, project
"""

VIEWS = """
CREATE VIEW task_share AS
SELECT t.plan_id, t.gpu, t.task, t.name, t.project, t.kind, t.network, t.sm_percent,
       p.sm_from + sum(t.sm_percent) OVER upto - t.sm_percent AS sm_from,
       p.sm_from + sum(t.sm_percent) OVER upto AS sm_to, p.sm_all, p.sm_used
FROM plan_task t
JOIN plan_share p ON p.plan_id = t.plan_id AND p.gpu = t.gpu AND p.project = t.project AND p.service = '(tasks)'
WINDOW upto AS (PARTITION BY t.plan_id, t.gpu, t.project ORDER BY t.task ROWS UNBOUNDED PRECEDING);
COMMENT ON VIEW task_share IS 'How the part of a GPU that a project''s tasks have in a target is divided between them.';

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

CREATE VIEW report.tasks_by_project_hour AS
SELECT hour, project, count(DISTINCT task) AS tasks, sum(gpu_hours) AS gpu_hours, sum(cost_usd) AS cost_usd,
       sum(whole_gpu_cost_usd) AS whole_gpu_cost_usd
FROM report.cost_by_task_hour GROUP BY hour, project;

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
CROSS JOIN LATERAL (SELECT t.submitted_at + make_interval(secs => t.deadline_after_s) AS deadline_at) AS c
"""

COMMENTS = {
    "cost_by_task_hour": (
        "Cost per hour by task: how the `(tasks)` rows of the reports by service are divided. Rows add up to them "
        "exactly.",
        {
            "hour": "Start of the hour, UTC.",
            "project": "Project (tenant) of the task.",
            "task": "Task, by the name that its team gave it.",
            "kind": "training or offline.",
            "network": "Network that it runs.",
            "gpu_hours": "Hours of whole GPUs, by SM percent.",
            "cost_usd": "Price × time × SM percent.",
            "whole_gpu_cost_usd": "Its part of the GPUs'' whole bills, where nothing is idle.",
        },
    ),
    "tasks_by_project_hour": (
        "What each project''s tasks had and cost per hour.",
        {
            "hour": "Start of the hour, UTC.",
            "project": "Project (tenant) of the tasks.",
            "tasks": "Tasks that had a part of a GPU in that hour.",
            "gpu_hours": "Hours of whole GPUs, by SM percent.",
            "cost_usd": "Price × time × SM percent.",
            "whole_gpu_cost_usd": "Their part of the GPUs'' whole bills, where nothing is idle.",
        },
    ),
    "task_progress": (
        "How far every task has come, also those that are over, for 90 days.",
        {
            "task": "Task, by the name that its team gave it.",
            "run": "1, or more where earlier tasks of that name were deleted.",
            "project": "Project (tenant) of the task.",
            "kind": "training or offline.",
            "network": "Network that it runs.",
            "priority": "Higher goes first among tasks.",
            "state": "queued, starting, running, swapped, failed, finished or cancelled.",
            "done_iterations": "Iterations that are done, as last reported.",
            "iterations": "Iterations until it is done.",
            "done_percent": "The former as percent of the latter.",
            "submitted_at": "When it was submitted.",
            "deadline_at": "When it should be done; null = whenever.",
            "finished_at": "When it was done; null = not yet, or never.",
            "cancelled_at": "When it was cancelled; null = it was not.",
            "is_late": "Whether it was done, or is still open, after its deadline; null without one, or cancelled.",
            "ran_s": "Seconds that its iterations took.",
            "waited_s": "Seconds since its submission in which it did not run.",
            "starts": "How often it was started.",
            "swaps": "How often it was swapped out for services.",
        },
    ),
}

# Columns of earlier views that now speak of tasks, too: their new comments and the ones before.
SERVICE = (
    "Service; `(tasks)` for the training and offline work of a project, `(idle)` for what nobody was given.",
    "Service; `(idle)` for what no service was given.",
)
PROJECT = (
    "Project (tenant) of the service, or of the tasks; `(idle)` for idle rows.",
    "Project (tenant) of the service; `(idle)` for idle rows.",
)
CHANGED = {
    **{(view, "service"): SERVICE for view in ("allocation_hour", "cost_by_service_hour", "energy_by_service_hour")},
    **{
        (view, "project"): PROJECT
        for view in ("allocation_hour", "cost_by_service_hour", "cost_by_project_hour", "energy_by_service_hour")
    },
    ("bill_hour", "hours"): (
        "Hours of that hour in which the GPU carried replicas or tasks; GPUs without any are not billed.",
        "Hours of that hour in which the GPU carried replicas; GPUs without replicas are not billed.",
    ),
    ("gpu_utilisation_hour", "allocated_hours"): (
        "Hours in which the GPU carried replicas or tasks by plan.",
        "Hours in which the GPU carried replicas by plan.",
    ),
    ("gpu_utilisation_hour", "sm_percent"): (
        "SM percent that was given to services and tasks, mean over the allocated hours.",
        "SM percent that was given to services, mean over the allocated hours.",
    ),
}
BILL = "What each GPU cost in each hour: price × time in which it carried replicas{tasks}."


def upgrade() -> None:
    """Give tasks their part of the bill, and views of their own."""
    op.execute(SHARE.format(tasks=TASKS, order=", project"))
    op.execute(VIEWS)
    for view, (meaning, columns) in COMMENTS.items():
        op.execute(f"COMMENT ON VIEW report.{view} IS '{meaning}'")
        for column, text in columns.items():
            op.execute(f"COMMENT ON COLUMN report.{view}.{column} IS '{text}'")
    for (view, column), (text, _) in CHANGED.items():
        op.execute(f"COMMENT ON COLUMN report.{view}.{column} IS '{text}'")
    op.execute(f"COMMENT ON VIEW report.bill_hour IS '{BILL.format(tasks=' or tasks')}'")


def downgrade() -> None:
    """Services pay for everything again."""
    op.execute("DROP VIEW report.task_progress, report.tasks_by_project_hour, report.cost_by_task_hour, task_share")
    op.execute(SHARE.format(tasks="", order=""))
    for (view, column), (_, text) in CHANGED.items():
        op.execute(f"COMMENT ON COLUMN report.{view}.{column} IS '{text}'")
    op.execute(f"COMMENT ON VIEW report.bill_hour IS '{BILL.format(tasks='')}'")
