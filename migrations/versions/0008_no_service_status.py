"""Conditions of a service are judged when somebody asks for them; nothing ever wrote them down."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SERVICE_STATUS = """
CREATE TABLE service_status (
    service resource_name PRIMARY KEY REFERENCES service ON DELETE CASCADE,
    observed_generation integer NOT NULL CHECK (observed_generation >= 1),
    conditions jsonb NOT NULL CHECK (jsonb_typeof(conditions) = 'array'),
    updated_at timestamptz NOT NULL
);
COMMENT ON TABLE service_status IS 'Conditions of a service as the control loop last judged them.';
"""


def upgrade() -> None:
    """Remove the table."""
    op.execute("DROP TABLE service_status")


def downgrade() -> None:
    """Make it again."""
    op.execute(SERVICE_STATUS)
