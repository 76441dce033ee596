"""Projects have ceilings on the GPUs that they may hold and on the simulations that they may have asked for."""

from alembic import op

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null is no ceiling, as of every project until now."""
    op.execute(
        """
        ALTER TABLE project ADD COLUMN max_gpus integer CHECK (max_gpus >= 0);
        COMMENT ON COLUMN project.max_gpus IS
            'That its replicas and its tasks may hold together, each one at most; null: no ceiling.';
        ALTER TABLE project ADD COLUMN max_simulations integer CHECK (max_simulations >= 0);
        COMMENT ON COLUMN project.max_simulations IS
            'That wait or run; null: only tokens that are bound to no project ask for any.';
        ALTER TABLE simulation ADD COLUMN project resource_name REFERENCES project ON DELETE SET NULL;
        COMMENT ON COLUMN simulation.project IS 'Whose quota it counts for; null: nobody''s.';
        """
    )


def downgrade() -> None:
    """The ceilings are forgotten, and whose simulations there are."""
    op.execute("ALTER TABLE simulation DROP COLUMN project")
    op.execute("ALTER TABLE project DROP COLUMN max_gpus, DROP COLUMN max_simulations")
