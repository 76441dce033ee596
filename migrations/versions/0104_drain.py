"""Nodes may be drained by a deadline."""

from alembic import op

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A node that drains is cordoned: `cordoned` is what revises the catalogue and wakes the loop."""
    op.execute(
        """
        ALTER TABLE node ADD COLUMN drain_at timestamptz CHECK (drain_at IS NULL OR cordoned);
        COMMENT ON COLUMN node.drain_at IS 'By when all that runs there must have left; null: it may stay.';
        """
    )


def downgrade() -> None:
    """Draining nodes stay cordoned."""
    op.execute("ALTER TABLE node DROP COLUMN drain_at")
