"""Which history of the database this is, when its generations were raised above another one's, and its backups."""

from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Every database gets an incarnation of its own; the program before this one neither reads nor writes it."""
    op.execute(
        """
        ALTER TABLE cluster ADD COLUMN incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
                            ADD COLUMN renumbered_at timestamptz,
                            ADD COLUMN backed_up_at timestamptz,
                            ADD COLUMN backed_up_by text;
        COMMENT ON COLUMN cluster.incarnation IS
            'Random; another one as soon as the database is found to have been restored to an older state.';
        COMMENT ON COLUMN cluster.renumbered_at IS
            'When a node last made target_generation jump above its own; null: never since the last restore.';
        COMMENT ON COLUMN cluster.backed_up_at IS 'When the newest backup began; in a backup its own beginning.';
        COMMENT ON COLUMN cluster.backed_up_by IS 'Version of the program that made that backup.';
        """
    )


def downgrade() -> None:
    """Forget them."""
    op.execute(
        "ALTER TABLE cluster DROP COLUMN incarnation, DROP COLUMN renumbered_at, "
        "DROP COLUMN backed_up_at, DROP COLUMN backed_up_by"
    )
