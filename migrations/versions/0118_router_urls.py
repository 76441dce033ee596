"""Where a node's router takes requests, so that callers and gateways find it."""

from alembic import op

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Agents say it with every report."""
    op.execute(
        """
        ALTER TABLE node ADD router_url text NOT NULL DEFAULT '' CHECK (length(router_url) <= 300);
        COMMENT ON COLUMN node.router_url IS
            'Base URL at which the node takes requests, as its agent says; empty: others cannot reach it.';
        """
    )


def downgrade() -> None:
    """Nobody asks for them any more."""
    op.execute("ALTER TABLE node DROP router_url")
