"""Tokens that replaced one another are one family; starts of agents are counted by the hour."""

from alembic import op

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Who replaced whom before is not known: every token that is there is the first of its own family.

    Null rather than its own id, so that the program before this one can still make tokens.
    """
    op.execute(
        """
        ALTER TABLE token ADD COLUMN root text REFERENCES token,
                          ADD COLUMN rotated_at timestamptz;
        COMMENT ON COLUMN token.root IS 'The first token of its family; null: it is that itself.';
        COMMENT ON COLUMN token.rotated_at IS 'When another token took its place; null: none did.';
        CREATE INDEX token_root ON token (root) WHERE root IS NOT NULL;
        DROP INDEX token_node;
        CREATE INDEX token_node ON token (node) WHERE node IS NOT NULL;
        CREATE INDEX agent_boot_first_seen ON agent_boot (node, first_seen_at);
        """
    )


def downgrade() -> None:
    """Families fall apart: each of their tokens is then revoked by itself."""
    op.execute(
        """
        DROP INDEX agent_boot_first_seen, token_node;
        CREATE INDEX token_node ON token (node) WHERE revoked_at IS NULL;
        ALTER TABLE token DROP COLUMN root, DROP COLUMN rotated_at;
        """
    )
