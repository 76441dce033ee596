"""In mode approve, plans that change nothing but tasks may come into force without a person."""

from alembic import op

revision = "0119"
down_revision = "0118"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every plan goes on waiting, as before."""
    op.execute(
        """
        ALTER TABLE policy ADD approve text NOT NULL DEFAULT 'all' CHECK (approve IN ('all', 'services'));
        COMMENT ON COLUMN policy.approve IS
            'What waits for a person in mode approve: all plans, or those that change services.';
        """
    )


def downgrade() -> None:
    """Every plan waits again."""
    op.execute("ALTER TABLE policy DROP approve")
