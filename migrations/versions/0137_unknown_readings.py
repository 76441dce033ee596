"""What GPUs do not tell is null; acquittals of GPUs are kept until their agents report them healthy."""

from alembic import op

revision = "0137"
down_revision = "0136"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No GPU was acquitted before, and what a driver did not tell was 0."""
    op.execute(
        """
        ALTER TABLE gpu ADD COLUMN acquitted_at timestamptz;
        COMMENT ON COLUMN gpu.acquitted_at IS
            'When an operator acquitted it of critical errors, while it is not healthy since; else null.';
        ALTER TABLE gpu_observation ALTER COLUMN memory_used_mib DROP NOT NULL, ALTER COLUMN power_w DROP NOT NULL,
            ALTER COLUMN clock_mhz DROP NOT NULL;
        COMMENT ON COLUMN gpu_observation.power_w IS 'Null here, of memory and of clock: the driver does not tell it.';
        """
    )


def downgrade() -> None:
    """Acquittals that no agent has carried out yet are lost; what is not known is 0 again."""
    op.execute(
        """
        ALTER TABLE gpu DROP COLUMN acquitted_at;
        UPDATE gpu_observation SET memory_used_mib = coalesce(memory_used_mib, 0), power_w = coalesce(power_w, 0),
            clock_mhz = coalesce(clock_mhz, 0)
        WHERE memory_used_mib IS NULL OR power_w IS NULL OR clock_mhz IS NULL;
        ALTER TABLE gpu_observation ALTER COLUMN memory_used_mib SET NOT NULL, ALTER COLUMN power_w SET NOT NULL,
            ALTER COLUMN clock_mhz SET NOT NULL;
        COMMENT ON COLUMN gpu_observation.power_w IS NULL;
        """
    )
