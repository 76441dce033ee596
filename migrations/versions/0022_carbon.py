"""What carbon costs, and how much of it the grid emits."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

COLUMNS = {
    "carbon_price_usd_per_t": (
        "double precision NOT NULL DEFAULT 0 CHECK (carbon_price_usd_per_t >= 0 AND carbon_price_usd_per_t <= 1e9)",
        "Price of a tonne of carbon dioxide, which plans add to that of energy.",
    ),
    "carbon_g_per_kwh": (
        "double precision[] NOT NULL DEFAULT '{}' "
        "CHECK (cardinality(carbon_g_per_kwh) IN (0, 1, 24) AND 0 <= ALL (carbon_g_per_kwh))",
        "Grams that the grid emits per kWh: one figure, or one per hour of the day in UTC; empty: not known.",
    ),
}


def upgrade() -> None:
    """Add the settings; before, carbon cost nothing."""
    for column, (kind, comment) in COLUMNS.items():
        op.execute(f"ALTER TABLE policy ADD COLUMN {column} {kind}")
        op.execute(f"COMMENT ON COLUMN policy.{column} IS '{comment}'")


def downgrade() -> None:
    """Forget them."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE policy DROP COLUMN {column}")
