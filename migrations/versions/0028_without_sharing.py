"""What it would have cost without sharing: every service on whole GPUs of its own."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

# A float that was a third of a GPU three times must not need a second one: sums are rounded before they are counted up.
WHOLE = """
CREATE VIEW whole_gpus AS
SELECT r.plan_id, g.gpu_type, r.project, r.service, ceil(round(sum(r.sm_percent), 6) / 100) AS gpus
FROM (SELECT plan_id, gpu, project, service, sm_percent FROM plan_replica
      UNION ALL SELECT plan_id, gpu, project, '(tasks)', sm_percent FROM plan_task) AS r
JOIN plan_gpu g USING (plan_id, gpu)
GROUP BY r.plan_id, g.gpu_type, r.project, r.service;
COMMENT ON VIEW whole_gpus IS 'Fewest whole GPUs of each type that hold what a service had in a target.';
"""

# GPUs of one type in one target have the same segments, so one of them stands for each that there would have been.
VIEW = """
CREATE VIEW report.cost_without_sharing_hour AS
SELECT s.hour, w.project, w.service, sum(w.gpus * s.seconds) / 3600 AS gpu_hours, sum(w.gpus * s.usd) AS cost_usd
FROM (SELECT plan_id, gpu_type, hour, sum(seconds) / count(DISTINCT gpu) AS seconds,
             sum(bill_usd) / count(DISTINCT gpu) AS usd
      FROM gpu_segment GROUP BY plan_id, gpu_type, hour) AS s
CROSS JOIN LATERAL (
    SELECT * FROM whole_gpus g WHERE g.plan_id = s.plan_id AND g.gpu_type = s.gpu_type AND s.hour IS NOT NULL OFFSET 0
) AS w
GROUP BY s.hour, w.project, w.service
"""

MEANING = (
    "What each hour would have cost without sharing: every service, and the tasks of each project, alone on the fewest "
    "whole GPUs of the same types that hold the SM percents that they had. A lower limit of such a fleet''s cost: it "
    "is packed perfectly, changes GPUs as often as the plans did, and starts for nothing."
)
COLUMNS = {
    "hour": "Start of the hour, UTC.",
    "project": "Project (tenant) of the service, or of the tasks.",
    "service": "Service; `(tasks)` for the training and offline work of a project.",
    "gpu_hours": "Hours of whole GPUs.",
    "cost_usd": "Price × time × whole GPUs.",
}


def upgrade() -> None:
    """Make the views and say what each column means."""
    op.execute(WHOLE)
    op.execute(VIEW)
    op.execute(f"COMMENT ON VIEW report.cost_without_sharing_hour IS '{MEANING}'")
    for column, text in COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN report.cost_without_sharing_hour.{column} IS '{text}'")


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP VIEW report.cost_without_sharing_hour, whole_gpus")
