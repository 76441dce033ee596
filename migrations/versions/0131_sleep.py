"""Replicas of language models may sleep, with their weights in the host's memory."""

from alembic import op

revision = "0131"
down_revision = "0130"
branch_labels = None
depends_on = None

_CHECK = "replica_observation_state_check"
_BEFORE = "'starting', 'ready', 'draining', 'failed'"


def upgrade() -> None:
    """One state more."""
    _allow(f"{_BEFORE}, 'asleep'")


def downgrade() -> None:
    """Those that slept drained, for who knows no sleep."""
    op.execute(
        "UPDATE replica_observation SET state = 'draining' WHERE state = 'asleep'"
    )
    _allow(_BEFORE)


def _allow(states: str) -> None:
    op.execute(
        f"ALTER TABLE replica_observation DROP CONSTRAINT {_CHECK}, "
        f"ADD CONSTRAINT {_CHECK} CHECK (state IN ({states})) NOT VALID"
    )
    # Apart, so that observations are written while the old ones are looked through.
    with op.get_context().autocommit_block():
        op.execute(f"ALTER TABLE replica_observation VALIDATE CONSTRAINT {_CHECK}")
