"""A proposal that a newer one replaces is superseded, and names it: one at most waits for a person."""

from alembic import op

revision = "0117"
down_revision = "0116"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of the proposals that wait, the newest goes on waiting."""
    op.execute(
        """
        ALTER TABLE plan ADD superseded_by bigint,
            ADD CHECK (superseded_by IS NULL OR (state = 'superseded' AND superseded_by > id));
        COMMENT ON COLUMN plan.superseded_by IS
            'The newer proposal that took its place while it waited; null = it was in force, or is not superseded.';
        UPDATE plan SET state = 'superseded', superseded_by = newest.id
            FROM (SELECT max(id) AS id FROM plan WHERE state = 'proposed') AS newest
            WHERE plan.state = 'proposed' AND plan.id < newest.id AND plan.bound IS NOT NULL;
        COMMENT ON COLUMN report.plan_history.state IS
            'proposed, approved, target, superseded, refused, rejected, kept or lost; superseded without '
            'in_force_from: a newer proposal took its place while it waited.';
        COMMENT ON COLUMN report.plan_history.reason IS 'Why it was kept, refused or lost.';
        """
    )


def downgrade() -> None:
    """Proposals that were replaced are lost: they never were in force."""
    op.execute(
        """
        COMMENT ON COLUMN report.plan_history.reason IS 'Why it was kept or refused.';
        COMMENT ON COLUMN report.plan_history.state IS
            'proposed, approved, target, superseded, refused, rejected, kept or lost.';
        CREATE TEMPORARY TABLE replaced ON COMMIT DROP AS
            SELECT id, superseded_by FROM plan WHERE superseded_by IS NOT NULL;
        ALTER TABLE plan DROP superseded_by;
        UPDATE plan SET state = 'lost', reason = 'plan ' || replaced.superseded_by || ' took its place'
            FROM replaced WHERE plan.id = replaced.id;
        """
    )
