"""Prices of a plan's relaxation, so that what a request or a GPU more costs can be told without solving again."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; plans of before have none."""
    op.execute("ALTER TABLE plan ADD COLUMN prices jsonb")


def downgrade() -> None:
    """Forget the prices."""
    op.execute("ALTER TABLE plan DROP COLUMN prices")
