"""Parameters of policies, set by operators."""

from alembic import op

revision = "0123"
down_revision = "0122"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing was set until now."""
    op.execute(
        """
        ALTER TABLE policy ADD parameters jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(parameters) = 'object');
        COMMENT ON COLUMN policy.parameters IS
            'Parameters by policy, e.g. {"hetsev": {"queues": 8}}; {} = the defaults.';
        """
    )


def downgrade() -> None:
    """Policies then decide as by default."""
    op.execute("ALTER TABLE policy DROP parameters")
