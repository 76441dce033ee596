"""Trained actors of policy `inss`, by the fleet that they were trained for."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; actors are only added, the newest of a fleet counts."""
    op.execute("""
        CREATE TABLE actor (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            fleet_fingerprint text NOT NULL CHECK (fleet_fingerprint ~ '^[0-9a-f]{16}$'),
            created_at timestamptz NOT NULL,
            notes text NOT NULL DEFAULT '',
            weights bytea NOT NULL CHECK (octet_length(weights) BETWEEN 1 AND 50000000)
        )
    """)
    op.execute("CREATE INDEX actor_of_fleet ON actor (fleet_fingerprint, id)")
    op.execute(
        "COMMENT ON TABLE actor IS 'Trained actors of policy inss; the newest of a fleet counts. The fingerprint names "
        "the fleet''s GPU types and how many GPUs there are of each.'"
    )


def downgrade() -> None:
    """Forget them."""
    op.execute("DROP TABLE actor")
