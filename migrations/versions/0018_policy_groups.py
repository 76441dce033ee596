"""Groups of services with a policy of their own, and policies that are switched under a person's eyes."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

COLUMNS = {
    "groups": (
        "jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(groups) = 'array')",
        "Services with a policy and GPUs of their own, in the order in which they are decided: name, policy, projects, "
        "labels as [name, value] pairs, mode.",
    ),
    "approve_switch": (
        "boolean NOT NULL DEFAULT false",
        "Whether the first plan of another policy than that of the plan in force waits for a person.",
    ),
}


def upgrade() -> None:
    """Add the settings; versions of before have no groups."""
    for column, (kind, comment) in COLUMNS.items():
        op.execute(f"ALTER TABLE policy ADD COLUMN {column} {kind}")
        op.execute(f"COMMENT ON COLUMN policy.{column} IS '{comment}'")


def downgrade() -> None:
    """Forget them."""
    for column in COLUMNS:
        op.execute(f"ALTER TABLE policy DROP COLUMN {column}")
