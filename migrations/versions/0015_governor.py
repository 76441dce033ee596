"""Who turns clocks and batches on the nodes within a plan."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the setting; versions of before have no governor."""
    op.execute("ALTER TABLE policy ADD COLUMN governor text CHECK (char_length(governor) BETWEEN 1 AND 63)")
    op.execute(
        "COMMENT ON COLUMN policy.governor IS "
        "'Who turns clocks and batches on the nodes within the plan; null: nobody.'"
    )


def downgrade() -> None:
    """Forget it."""
    op.execute("ALTER TABLE policy DROP COLUMN governor")
