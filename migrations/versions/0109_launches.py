"""Failed launches are remembered, and a drained node is noted once per draining."""

from alembic import op

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nodes that were drained before are noted once more at the next tick."""
    op.execute(
        """
        ALTER TABLE node ADD COLUMN drained_at timestamptz CHECK (drained_at IS NULL OR drain_at IS NOT NULL);
        COMMENT ON COLUMN node.drained_at IS 'When this draining had emptied it; null: it is not drained.';

        CREATE TABLE launch_failure (
            service resource_name NOT NULL,
            gpu resource_name NOT NULL REFERENCES gpu ON DELETE CASCADE,
            failures integer NOT NULL CHECK (failures >= 0),
            times integer NOT NULL CHECK (times >= 0),
            failed_at timestamptz NOT NULL,
            avoided_until timestamptz,
            detail text NOT NULL,
            PRIMARY KEY (service, gpu)
        );
        COMMENT ON TABLE launch_failure IS
            'Where replicas of a service failed to start in the last day, and until when they start elsewhere.';
        COMMENT ON COLUMN launch_failure.failures IS 'In a row, since the GPU was avoided last.';
        COMMENT ON COLUMN launch_failure.times IS 'How often the GPU was avoided; each time for twice as long.';
        COMMENT ON COLUMN launch_failure.avoided_until IS
            'Until then no replica of the service starts there; null: it was never avoided.';
        COMMENT ON COLUMN launch_failure.detail IS 'The last failure, in the words of the node.';
        """
    )


def downgrade() -> None:
    """Replicas are placed where their launches failed, as before."""
    op.execute("DROP TABLE launch_failure; ALTER TABLE node DROP COLUMN drained_at")
