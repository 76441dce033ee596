"""What manifests say that no decision reads, so that the API answers what it was given."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# No foreign keys: kinds are kept in different tables, and a note without its object is never shown.
NOTE = """
CREATE TABLE note (
    kind text NOT NULL CHECK (kind ~ '^[A-Z][A-Za-z]+$'),
    name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 253),
    labels jsonb NOT NULL CHECK (jsonb_typeof(labels) = 'object'),
    annotations jsonb NOT NULL CHECK (jsonb_typeof(annotations) = 'object'),
    spec jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object'),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE note IS
    'What a manifest said that the tables of its kind do not keep: labels, annotations, descriptive fields.';
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(NOTE)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP TABLE note")
