"""Tokens of people who log in at an identity provider say who it is."""

from alembic import op

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A login is a token that always ends and whose secret nobody knows; only sessions lead to it."""
    op.execute(
        """
        ALTER TABLE token ADD COLUMN person text CHECK (char_length(person) BETWEEN 1 AND 400);
        ALTER TABLE token ADD CONSTRAINT token_login_check CHECK (
            person IS NULL OR (scope IN ('viewer', 'operator', 'admin') AND expires_at IS NOT NULL)
        );
        CREATE INDEX token_person ON token (person) WHERE person IS NOT NULL;
        COMMENT ON COLUMN token.person IS
            'Who logged in at the identity provider; null: a token that somebody made.';
        """
    )


def downgrade() -> None:
    """Who is logged in so is logged out."""
    op.execute(
        """
        DELETE FROM token WHERE person IS NOT NULL;
        ALTER TABLE token DROP COLUMN person;
        """
    )
