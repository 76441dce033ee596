"""GPUs that an operator acquits of the critical errors that they told: kept until their agent reports them healthy."""

from alembic import op

revision = "0138"
down_revision = "0135"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody was acquitted before."""
    op.execute(
        """
        ALTER TABLE gpu ADD COLUMN acquitted_at timestamptz;
        COMMENT ON COLUMN gpu.acquitted_at IS
            'When an operator acquitted it of critical errors, while it is not healthy since; else null.';
        """
    )


def downgrade() -> None:
    """Acquittals that no agent has carried out yet are lost."""
    op.execute("ALTER TABLE gpu DROP COLUMN acquitted_at")
