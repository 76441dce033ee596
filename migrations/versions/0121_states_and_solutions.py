"""A plan's state and its solution are two things: a proposal that is replaced is withdrawn, `kept` is a state only."""

from alembic import op

revision = "0121"
down_revision = "0120"
branch_labels = None
depends_on = None

_STATES = "'proposed', 'approved', 'target', 'superseded', 'refused', 'rejected', 'kept', 'lost'"
# The names that PostgreSQL gave to the checks of the baseline and of 0117.
_STATE_CHECK = "plan_state_check"
_REPLACED_CHECK = "plan_check2"
_SOLUTION_CHECK = "plan_status_check"


def upgrade() -> None:
    """What 0117 marked as superseded by a newer proposal is withdrawn; a plan that was kept has no solution."""
    op.execute(
        f"""
        ALTER TABLE plan DROP CONSTRAINT {_STATE_CHECK}, DROP CONSTRAINT {_REPLACED_CHECK};
        ALTER TABLE plan RENAME superseded_by TO replaced_by;
        UPDATE plan SET state = 'withdrawn' WHERE replaced_by IS NOT NULL;
        ALTER TABLE plan
            ADD CONSTRAINT {_STATE_CHECK} CHECK (state IN ({_STATES}, 'withdrawn')),
            ADD CONSTRAINT {_REPLACED_CHECK}
                CHECK (replaced_by IS NULL OR (state = 'withdrawn' AND replaced_by > id));
        COMMENT ON COLUMN plan.replaced_by IS
            'The newer proposal that took the place of a withdrawn one; null = there was none.';
        ALTER TABLE plan DROP CONSTRAINT {_SOLUTION_CHECK}, ALTER status DROP NOT NULL;
        UPDATE plan SET status = NULL WHERE status = 'kept';
        ALTER TABLE plan RENAME status TO solution;
        ALTER TABLE plan ADD CONSTRAINT {_SOLUTION_CHECK} CHECK (solution IN ('optimal', 'feasible', 'greedy'));
        ALTER VIEW report.plan_history RENAME status TO solution;
        COMMENT ON COLUMN report.plan_history.solution IS
            'optimal, feasible or greedy: how good the solver says that it is. Null = nothing new was solved.';
        COMMENT ON COLUMN report.plan_history.state IS
            'What became of it: proposed, approved, target, superseded (was in force), refused, rejected, kept, lost '
            'or withdrawn (waited for a person until a newer proposal took its place or the controller restarted).';
        COMMENT ON COLUMN report.plan_history.reason IS 'Why it was kept, refused, lost or withdrawn.';
        """
    )


def downgrade() -> None:
    """Proposals that were withdrawn without a newer one are lost."""
    op.execute(
        f"""
        ALTER VIEW report.plan_history RENAME solution TO status;
        ALTER TABLE plan DROP CONSTRAINT {_SOLUTION_CHECK};
        ALTER TABLE plan RENAME solution TO status;
        UPDATE plan SET status = 'kept' WHERE status IS NULL;
        ALTER TABLE plan ALTER status SET NOT NULL,
            ADD CONSTRAINT {_SOLUTION_CHECK} CHECK (status IN ('optimal', 'feasible', 'greedy', 'kept'));
        COMMENT ON COLUMN report.plan_history.status IS
            'optimal, feasible, greedy or kept: how good the solver says it is.';
        COMMENT ON COLUMN report.plan_history.reason IS 'Why it was kept, refused or lost.';
        COMMENT ON COLUMN report.plan_history.state IS
            'proposed, approved, target, superseded, refused, rejected, kept or lost; superseded without '
            'in_force_from: a newer proposal took its place while it waited.';
        ALTER TABLE plan DROP CONSTRAINT {_STATE_CHECK}, DROP CONSTRAINT {_REPLACED_CHECK};
        UPDATE plan SET state = CASE WHEN replaced_by IS NULL THEN 'lost' ELSE 'superseded' END
            WHERE state = 'withdrawn';
        ALTER TABLE plan RENAME replaced_by TO superseded_by;
        ALTER TABLE plan
            ADD CONSTRAINT {_STATE_CHECK} CHECK (state IN ({_STATES})),
            ADD CONSTRAINT {_REPLACED_CHECK}
                CHECK (superseded_by IS NULL OR (state = 'superseded' AND superseded_by > id));
        COMMENT ON COLUMN plan.superseded_by IS
            'The newer proposal that took its place while it waited; null = it was in force, or is not superseded.';
        """
    )
