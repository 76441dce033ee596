"""Projects have ceilings on the priority and the replicas of what they submit."""

from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null is no ceiling, as of every project until now."""
    op.execute(
        """
        ALTER TABLE project ADD COLUMN max_priority positive_amount;
        ALTER TABLE project ADD COLUMN max_replicas integer CHECK (max_replicas >= 0);
        COMMENT ON COLUMN project.max_priority IS 'Of each of its services and tasks; null: no ceiling.';
        COMMENT ON COLUMN project.max_replicas IS
            'That its services may run together, by the max_replicas of each; null: no ceiling.';
        """
    )


def downgrade() -> None:
    """The ceilings are forgotten."""
    op.execute("ALTER TABLE project DROP COLUMN max_priority, DROP COLUMN max_replicas")
