"""Dropping old partitions reads a date only from names that end with one, whatever order PostgreSQL filters in."""

import re
from pathlib import Path

from alembic import op

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None

BASELINE = Path(__file__).parents[1] / "baseline" / "5_observations.sql"
DATED = "to_date(right(child.relname, 8), 'YYYYMMDD') < before"
GUARDED = f"CASE WHEN child.relname ~ '_[0-9]{{8}}$' THEN {DATED} ELSE false END"


def upgrade() -> None:
    """The condition is tried on tables that are no partitions, too, where the planner puts it before the join."""
    _replace(_guarded(_function()))


def downgrade() -> None:
    """As it was."""
    _replace(_function())


def _guarded(function: str) -> str:
    # `replace` leaves a text as it is in which it finds nothing, and the fault would stay without a word.
    assert function.count(DATED) == 1
    return function.replace(DATED, GUARDED)


def _function() -> str:
    sql = BASELINE.read_text(encoding="utf-8")
    found = re.search(
        r"CREATE FUNCTION drop_observation_days.*?END \$\$;", sql, re.DOTALL
    )
    assert found is not None
    return found[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)


def _replace(sql: str) -> None:
    op.get_bind().exec_driver_sql(sql, execution_options={"no_parameters": True})
