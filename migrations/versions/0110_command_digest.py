"""Commands carry a digest, by which a node's command is told from another one of the same generation."""

from alembic import op

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Commands of before have none, and are compared with nothing."""
    op.execute(
        """
        ALTER TABLE command ADD COLUMN digest text NOT NULL DEFAULT '';
        COMMENT ON COLUMN command.digest IS
            'Of the body, as agents report it (agents.base.protocol.digest_of); empty: made before there were any.';
        """
    )


def downgrade() -> None:
    """A number that is used twice goes unnoticed, as before."""
    op.execute("ALTER TABLE command DROP COLUMN digest")
