"""Targets hold no spares any more: what they leave of paid GPUs goes to replicas that start."""

from alembic import op

revision = "0133"
down_revision = "0132"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Which spares there were is forgotten, and on which GPUs they failed."""
    op.execute(
        """
        DROP VIEW plan_spare;
        DROP TABLE spare;
        DELETE FROM launch_failure WHERE service LIKE 'spare/%';
        """
    )


def downgrade() -> None:
    """Targets of before have none."""
    op.execute(
        """
        CREATE TABLE spare (
            gpu resource_name NOT NULL,
            replica resource_name NOT NULL,
            generations int8range NOT NULL CHECK (NOT isempty(generations) AND NOT lower_inf(generations)),
            gpu_type resource_name NOT NULL,
            clock_mhz positive_amount NOT NULL,
            service resource_name NOT NULL,
            network resource_name NOT NULL,
            sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
            batch integer NOT NULL CHECK (batch >= 1),
            memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
            PRIMARY KEY (gpu, replica, generations)
        );
        CREATE UNIQUE INDEX spare_open ON spare (gpu, replica) WHERE upper_inf(generations);
        CREATE INDEX spare_by_generation ON spare USING gist (generations);
        COMMENT ON TABLE spare IS
            'Loaded replicas without a rate that targets hold ready, on what their replicas and tasks leave over.';
        COMMENT ON COLUMN spare.generations IS 'Of the targets that hold it; without an end: the one in force does.';
        CREATE VIEW plan_spare AS
        SELECT t.plan_id, s.gpu, s.gpu_type, s.clock_mhz, s.replica, s.service, s.network, s.sm_percent, s.batch,
               s.memory_mib
        FROM target t JOIN spare s ON s.generations @> t.generation;
        COMMENT ON VIEW plan_spare IS 'Spares that a target holds ready.';
        """
    )
