"""What a target holds ready as spares, beside its replicas."""

from alembic import op

revision = "0114"
down_revision = "0113"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Targets of before have none."""
    # A table of its own, since all that is billed is billed by the replicas and tasks of a plan: spares cost nobody.
    op.execute(
        """
        CREATE TABLE plan_spare (
            plan_id bigint NOT NULL REFERENCES plan ON DELETE CASCADE,
            gpu resource_name NOT NULL,
            gpu_type resource_name NOT NULL,
            clock_mhz positive_amount NOT NULL,
            replica resource_name NOT NULL,
            service resource_name NOT NULL,
            network resource_name NOT NULL,
            sm_percent numeric NOT NULL CHECK (sm_percent > 0 AND sm_percent <= 100),
            batch integer NOT NULL CHECK (batch >= 1),
            memory_mib numeric NOT NULL CHECK (memory_mib >= 0 AND memory_mib < 'Infinity'),
            PRIMARY KEY (plan_id, gpu, replica)
        );
        COMMENT ON TABLE plan_spare IS
            'Loaded replicas without a rate that a target holds ready, on what its replicas and tasks leave over.';
        """
    )


def downgrade() -> None:
    """Which spares there were is forgotten."""
    op.execute("DROP TABLE plan_spare")
