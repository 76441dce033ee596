"""Logs of replicas and tasks that somebody waits for, on their way between the API's processes and the nodes."""

from alembic import op

revision = "0120"
down_revision = "0119"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody waits for one yet."""
    # Unlogged: a row lasts for seconds, and whoever waited for one that a crash took asks again.
    op.execute(
        """
        CREATE UNLOGGED TABLE log_request (
            id text PRIMARY KEY,
            node resource_name NOT NULL REFERENCES node ON DELETE CASCADE,
            body bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            answer bytea
        );
        COMMENT ON TABLE log_request IS
            'Logs that somebody waits for: removed when they are read, or after a minute.';
        COMMENT ON COLUMN log_request.body IS 'The wire''s request.';
        COMMENT ON COLUMN log_request.answer IS 'The wire''s answer, once the node has sent it.';
        """
    )


def downgrade() -> None:
    """Whoever waits is told that the node did not answer."""
    op.execute("DROP TABLE log_request")
