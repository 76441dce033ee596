"""Agents' tokens belong to one node, which a join token enrols; shared agents' tokens end."""

from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody can say whose an unbound token was: it ends here, and its nodes enrol."""
    op.execute(
        """
        ALTER TABLE token ADD COLUMN node resource_name;
        ALTER TABLE token ADD COLUMN uses_left integer;
        UPDATE token SET revoked_at = now() WHERE scope = 'agent' AND revoked_at IS NULL;
        ALTER TABLE token DROP CONSTRAINT token_scope_check;
        ALTER TABLE token ADD CONSTRAINT token_scope_check
            CHECK (scope IN ('viewer', 'operator', 'admin', 'agent', 'join'));
        ALTER TABLE token ADD CONSTRAINT token_node_check CHECK (node IS NULL OR scope IN ('agent', 'join'));
        ALTER TABLE token ADD CONSTRAINT token_agent_check
            CHECK (scope <> 'agent' OR node IS NOT NULL OR revoked_at IS NOT NULL);
        ALTER TABLE token ADD CONSTRAINT token_uses_check
            CHECK ((scope = 'join') = (uses_left IS NOT NULL) AND uses_left >= 0);
        CREATE INDEX token_node ON token (node) WHERE revoked_at IS NULL;
        """
    )


def downgrade() -> None:
    """Join tokens go, and nodes' own tokens end: without their node they would be every node's."""
    op.execute(
        """
        DELETE FROM token WHERE scope = 'join';
        UPDATE token SET revoked_at = now() WHERE scope = 'agent' AND revoked_at IS NULL;
        ALTER TABLE token DROP CONSTRAINT token_scope_check;
        ALTER TABLE token ADD CONSTRAINT token_scope_check
            CHECK (scope IN ('viewer', 'operator', 'admin', 'agent'));
        ALTER TABLE token DROP COLUMN node, DROP COLUMN uses_left;
        """
    )
