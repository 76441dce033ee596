"""Watts that the cluster and a node may draw, and GPUs whose governor asks for another partition."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

COLUMNS = {
    ("policy", "power_budget_w"): (
        "double precision CHECK (power_budget_w > 0 AND power_budget_w <= 1e9)",
        "Watts that all used GPUs together may draw, idle watts included; null: no limit.",
    ),
    ("node", "power_cap_w"): (
        "double precision CHECK (power_cap_w > 0 AND power_cap_w <= 1e9)",
        "Watts that its used GPUs together may draw, idle watts included; null: no limit.",
    ),
    ("node", "repartition"): (
        "integer[] NOT NULL DEFAULT '{}'",
        "Indices of its GPUs whose governor keeps its limits with no clock and batch that the plan allows.",
    ),
}


def upgrade() -> None:
    """Add the columns; before, there were no such limits and no such requests."""
    for (table, column), (kind, comment) in COLUMNS.items():
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        op.execute(f"COMMENT ON COLUMN {table}.{column} IS '{comment}'")


def downgrade() -> None:
    """Forget them."""
    for table, column in COLUMNS:
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
