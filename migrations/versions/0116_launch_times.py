"""How long launches took lately is remembered, by service and GPU type."""

from alembic import op

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is known of launches before."""
    op.execute(
        """
        CREATE TABLE launch_time (
            service resource_name NOT NULL REFERENCES service ON DELETE CASCADE,
            gpu_type resource_name NOT NULL REFERENCES gpu_type ON DELETE CASCADE,
            seconds float8[] NOT NULL,
            PRIMARY KEY (service, gpu_type)
        );
        COMMENT ON TABLE launch_time IS
            'How long the newest replicas of a service took from their start until they were ready.';
        COMMENT ON COLUMN launch_time.seconds IS 'The newest first.';
        """
    )


def downgrade() -> None:
    """How long launches took is forgotten."""
    op.execute("DROP TABLE launch_time")
