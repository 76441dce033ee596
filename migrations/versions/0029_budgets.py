"""Budgets: what a project, or the whole cluster, may cost in an hour, a day or a month."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE budget (
    name resource_name PRIMARY KEY,
    project resource_name REFERENCES project ON DELETE CASCADE,
    period text NOT NULL CHECK (period IN ('hour', 'day', 'month')),
    limit_usd numeric NOT NULL CHECK (limit_usd > 0 AND limit_usd < 'Infinity'),
    action text NOT NULL CHECK (action IN ('warn', 'block_new')),
    created_at timestamptz NOT NULL,
    told_since timestamptz,
    told_percent integer NOT NULL DEFAULT 0 CHECK (told_percent IN (0, 80, 100))
);
COMMENT ON TABLE budget IS 'What may be spent; nothing that runs is ever stopped for it.';
COMMENT ON COLUMN budget.project IS 'Null: the whole cluster, idle time included.';
COMMENT ON COLUMN budget.told_percent IS 'What the audit said last, in the period that began at told_since.';
"""

# The cluster's sum has the idle rows in it, and so is the bill. "Now" is what the control plane wrote down last.
VIEW = """
CREATE VIEW report.budget_status AS
SELECT b.name AS budget, b.project, b.period, b.action, p.since, p.until, b.limit_usd, s.spent_usd,
       round(100 * s.spent_usd / b.limit_usd, 4) AS spent_percent, r.usd_per_hour,
       s.spent_usd + r.usd_per_hour * extract(epoch FROM p.until - p.at) / 3600 AS projected_usd
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
    SELECT coalesce(sum(g.price_usd_per_hour * s.sm_percent / s.sm_all), 0) AS usd_per_hour
    FROM target t
    JOIN plan_share s USING (plan_id)
    JOIN plan_gpu u USING (plan_id, gpu)
    JOIN gpu_price g ON g.gpu_type = u.gpu_type AND upper_inf(g.valid)
    WHERE upper_inf(t.valid) AND (b.project IS NULL OR s.project = b.project)
) AS r
"""
MEANING = "What every budget has left in its present period, by the newest moment that the control plane wrote down."
COLUMNS = {
    "budget": "Name of the budget.",
    "project": "Project that it limits; null: the whole cluster, idle time included.",
    "period": "hour, day or month; they begin with those of UTC.",
    "action": "warn: events at 80 and 100 %; block_new: also no new services and tasks from 100 % on.",
    "since": "Start of the present period.",
    "until": "Its end.",
    "limit_usd": "What may be spent in it.",
    "spent_usd": "What was: the rows of cost_by_project_hour, added up.",
    "spent_percent": "The latter as percent of the former.",
    "usd_per_hour": "What the plan in force costs it per hour, at the prices of now.",
    "projected_usd": "Spent, and the plan in force until the period ends.",
}


def upgrade() -> None:
    """Make the table and its report."""
    op.execute(TABLE)
    op.execute(VIEW)
    op.execute(f"COMMENT ON VIEW report.budget_status IS '{MEANING}'")
    for column, text in COLUMNS.items():
        op.execute(f"COMMENT ON COLUMN report.budget_status.{column} IS '{text}'")


def downgrade() -> None:
    """Remove them."""
    op.execute("DROP VIEW report.budget_status")
    op.execute("DROP TABLE budget")
