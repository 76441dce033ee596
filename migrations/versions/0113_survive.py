"""Services and the policy say which loss must be survived, and how much of the demand is left after it."""

from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Services of before say nothing; policies of before get today's default."""
    op.execute(
        """
        ALTER TABLE service_version
            ADD COLUMN survive text CHECK (survive IN ('none', 'gpu', 'node', 'zone')),
            ADD COLUMN survive_share double precision CHECK (survive_share > 0 AND survive_share <= 1),
            ADD CHECK ((survive IS NULL) = (survive_share IS NULL));
        COMMENT ON COLUMN service_version.survive IS
            'Any one of these may be lost, and survive_share of the demand is still served; null: as the policy says.';
        COMMENT ON COLUMN service_version.survive_share IS 'Of the forecast rate that is left after the loss.';
        ALTER TABLE policy
            ADD COLUMN survive text NOT NULL DEFAULT 'node' CHECK (survive IN ('none', 'gpu', 'node', 'zone')),
            ADD COLUMN survive_share double precision NOT NULL DEFAULT 0.5
                CHECK (survive_share > 0 AND survive_share <= 1);
        COMMENT ON COLUMN policy.survive IS
            'The loss that services survive which say nothing of their own, where that takes no replica more.';
        COMMENT ON COLUMN policy.survive_share IS 'Of their forecast rate that is left after the loss.';
        """
    )


def downgrade() -> None:
    """Nobody spreads for the sake of losses."""
    op.execute(
        """
        ALTER TABLE policy DROP COLUMN survive, DROP COLUMN survive_share;
        ALTER TABLE service_version DROP COLUMN survive, DROP COLUMN survive_share;
        """
    )
