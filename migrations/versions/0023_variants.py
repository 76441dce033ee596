"""Networks that may serve a service, and how accurate they must be at least."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

COLUMNS = {
    "variants": (
        "jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(variants) = 'array')",
        "Networks that may serve it, as [network, accuracy] pairs, its own among them; empty: its own alone.",
    ),
    "accuracy_floor": (
        "double precision NOT NULL DEFAULT 0 CHECK (accuracy_floor >= 0 AND accuracy_floor <= 1)",
        "Variants below it are never chosen.",
    ),
}


def upgrade() -> None:
    """Add the fields; services of before have no variants."""
    for column, (kind, comment) in COLUMNS.items():
        op.execute(f"ALTER TABLE service_version ADD COLUMN {column} {kind}")
        op.execute(f"COMMENT ON COLUMN service_version.{column} IS '{comment}'")


def downgrade() -> None:
    """Forget them."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE service_version DROP COLUMN {column}")
