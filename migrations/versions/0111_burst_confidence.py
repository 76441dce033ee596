"""The policy says how sure plans are that no more bursts come than they keep room for."""

from alembic import op

revision = "0111"
down_revision = "0110"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions of before keep their headroom, and get today's default beside it."""
    op.execute(
        """
        ALTER TABLE policy ADD COLUMN burst_confidence amount NOT NULL DEFAULT 0.8 CHECK (burst_confidence < 1);
        COMMENT ON COLUMN policy.burst_confidence IS
            'That no more bursts come than plans keep room for (solvers.forecast.reserve); 0: they keep none.';
        """
    )


def downgrade() -> None:
    """Plans keep no room for bursts but their headroom."""
    op.execute("ALTER TABLE policy DROP COLUMN burst_confidence")
