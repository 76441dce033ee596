"""Sessions of people who look at the dashboard: each stands for a token, and ends with it."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

COMMENTS = {
    "sha256": "SHA-256 of the cookie; the cookie itself is never kept.",
    "token": "The token that the person logged in with; what it may do, the session may.",
    "created_at": "When the person logged in.",
    "expires_at": "When they must log in again.",
}


def upgrade() -> None:
    """Add the table."""
    op.execute(
        "CREATE TABLE session ("
        " sha256 bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),"
        " token text NOT NULL REFERENCES token ON DELETE CASCADE,"
        " created_at timestamptz NOT NULL,"
        " expires_at timestamptz NOT NULL CHECK (expires_at > created_at))"
    )
    op.execute("CREATE INDEX session_by_expiry ON session (expires_at)")
    op.execute("COMMENT ON TABLE session IS 'People who are logged in to the dashboard.'")
    for column, comment in COMMENTS.items():
        op.execute(f"COMMENT ON COLUMN session.{column} IS '{comment}'")


def downgrade() -> None:
    """Everybody must log in again."""
    op.execute("DROP TABLE session")
