"""Parameters of policies that their operator has set."""

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
            'What is set of policies, by policy, e.g. {"hetsev": {"queues": 8}}; {} = as by default.';
        """
    )


def downgrade() -> None:
    """Policies then decide as by default."""
    op.execute("ALTER TABLE policy DROP parameters")
