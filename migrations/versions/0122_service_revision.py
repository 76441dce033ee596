"""Which plans know a generation of a service: those that were made from its catalogue revision or a later one."""

from alembic import op

revision = "0122"
down_revision = "0121"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What was asked for until now counts as known: no plan is held up for it."""
    op.execute(
        """
        ALTER TABLE service_version ADD catalogue_revision bigint NOT NULL DEFAULT 0;
        COMMENT ON COLUMN service_version.catalogue_revision IS
            'The catalogue''s revision since this generation; 0 = it is older than this column.';
        """
    )


def downgrade() -> None:
    """Waiting then trusts conditions that may be of an older generation."""
    op.execute("ALTER TABLE service_version DROP catalogue_revision")
