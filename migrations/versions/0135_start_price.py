"""A rearrangement must save what its launches count for: one price in place of a hysteresis and a budget of moves."""

from alembic import op

revision = "0135"
down_revision = "0134"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Versions of before get the default: what they had says something else."""
    op.execute(
        """
        ALTER TABLE policy DROP COLUMN hysteresis, DROP COLUMN move_budget,
            ADD COLUMN start_price double precision NOT NULL DEFAULT 0.2 CHECK (start_price BETWEEN 0 AND 1);
        COMMENT ON COLUMN policy.start_price IS
            'What a launch counts for where plans serve alike, as a share of what a running replica costs on average.';
        """
    )


def downgrade() -> None:
    """Plans of before get the defaults of then."""
    op.execute(
        """
        ALTER TABLE policy DROP COLUMN start_price,
            ADD COLUMN hysteresis double precision NOT NULL DEFAULT 0.03 CHECK (hysteresis BETWEEN 0 AND 1),
            ADD COLUMN move_budget double precision NOT NULL DEFAULT 0.1 CHECK (move_budget BETWEEN 0 AND 1);
        COMMENT ON COLUMN policy.hysteresis IS
            'Fraction of the cost that a rearrangement must save beyond the price of its starts.';
        COMMENT ON COLUMN policy.move_budget IS
            'Replicas that one plan may start to save cost, as a fraction of those that run.';
        """
    )
