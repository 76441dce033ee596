"""How willing policies are to rearrange what runs for the sake of cost."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COLUMNS = {
    "hysteresis": (0.03, 1, "Fraction of the cost that a rearrangement must save beyond the price of its starts."),
    "move_budget": (0.1, 1, "Replicas that one plan may start to save cost, as a fraction of those that run."),
    "min_dwell_s": (60, 86400, "Seconds for which an arrangement stays before it may be rearranged to save cost."),
}


def upgrade() -> None:
    """Add the settings; versions of before get the defaults."""
    for column, (default, most, comment) in COLUMNS.items():
        check = f"CHECK ({column} BETWEEN 0 AND {most})"
        op.execute(f"ALTER TABLE policy ADD COLUMN {column} double precision NOT NULL DEFAULT {default} {check}")
        op.execute(f"COMMENT ON COLUMN policy.{column} IS '{comment}'")


def downgrade() -> None:
    """Forget them."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE policy DROP COLUMN {column}")
