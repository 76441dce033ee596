"""Budgets of which the least important services are planned for less, and how far down each of them went."""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

COMMENTS = {
    "protected_priority": "With action degrade: services of this priority and above lose nothing.",
    "degrade_step": "Steps down the ladder of priorities; 0: every service is planned for all its demand.",
    "degrade_at": "When it went its last step, down or back.",
}
ACTION = (
    "warn: events at 80 and 100 %; block_new: also no new services and tasks from 100 % on; degrade: also the least "
    "important services are planned for less."
)
BEFORE = "warn: events at 80 and 100 %; block_new: also no new services and tasks from 100 % on."


def upgrade() -> None:
    """Allow the action, and keep what it did."""
    _allow("'warn', 'block_new', 'degrade'")
    op.execute("ALTER TABLE budget ADD COLUMN protected_priority positive_amount NOT NULL DEFAULT 100")
    op.execute("ALTER TABLE budget ADD COLUMN degrade_step integer NOT NULL DEFAULT 0 CHECK (degrade_step >= 0)")
    op.execute("ALTER TABLE budget ADD COLUMN degrade_at timestamptz")
    for column, text in COMMENTS.items():
        op.execute(f"COMMENT ON COLUMN budget.{column} IS '{text}'")
    op.execute(f"COMMENT ON COLUMN report.budget_status.action IS '{ACTION}'")


def downgrade() -> None:
    """Only warn where services got less."""
    op.execute(f"COMMENT ON COLUMN report.budget_status.action IS '{BEFORE}'")
    op.execute("UPDATE budget SET action = 'warn' WHERE action = 'degrade'")
    for column in COMMENTS:
        op.execute(f"ALTER TABLE budget DROP COLUMN {column}")
    _allow("'warn', 'block_new'")


def _allow(actions: str) -> None:
    op.execute("ALTER TABLE budget DROP CONSTRAINT budget_action_check")
    op.execute(f"ALTER TABLE budget ADD CONSTRAINT budget_action_check CHECK (action IN ({actions}))")
