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


# A node's cap makes plans too old, as its cordon does; what its agent says does not.
REVISES = (
    "DROP TRIGGER node_revises ON node; CREATE TRIGGER node_revises AFTER INSERT OR UPDATE OF {columns} OR DELETE "
    "ON node FOR EACH ROW EXECUTE FUNCTION bump_catalogue()"
)


def upgrade() -> None:
    """Add the columns; before, there were no such limits and no such requests."""
    for (table, column), (kind, comment) in COLUMNS.items():
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        op.execute(f"COMMENT ON COLUMN {table}.{column} IS '{comment}'")
    op.execute(REVISES.format(columns="cordoned, power_cap_w"))


def downgrade() -> None:
    """Forget them."""
    op.execute(REVISES.format(columns="cordoned"))
    for table, column in COLUMNS:
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
