"""The interval of the forecast that a plan was made for is kept, so that it can be held against what came."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

MEANINGS = {"low_rps": "5th", "high_rps": "95th"}


def upgrade() -> None:
    """Two columns; null in rows of older programs."""
    op.execute("ALTER TABLE demand ADD COLUMN low_rps double precision, ADD COLUMN high_rps double precision")
    for column, place in MEANINGS.items():
        meaning = f"{place} percentile of the forecast behind it; null where it is no forecast."
        op.execute(f"COMMENT ON COLUMN demand.{column} IS '{meaning}'")


def downgrade() -> None:
    """Forget them."""
    op.execute("ALTER TABLE demand DROP COLUMN low_rps, DROP COLUMN high_rps")
