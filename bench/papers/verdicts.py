"""Verdicts: `joint` against a paper's own policy, on the paper's own objective."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.papers.systems import System
from bench.papers.table import Row, Table

MUCH_PERCENT = 10.0
"""So much better is much better."""
EQUAL_PERCENT = 0.5
"""Differences below this one are none: runs repeat no closer."""
JOINT = "joint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One figure of `joint` next to the same one of the paper's policy."""

    system: str
    table: str
    figure: str
    own: float
    joint: float
    better_percent: float
    """By how much `joint` is better, in percent of the paper's policy; below 0: worse."""

    @property
    def is_as_good(self) -> bool:
        """Whether `joint` is at least as good."""
        return self.better_percent >= -EQUAL_PERCENT

    @property
    def is_much_better(self) -> bool:
        """Whether it is better by 10 % or more."""
        return self.better_percent >= MUCH_PERCENT

    @property
    def words(self) -> str:
        """The same as people are told."""
        if self.is_much_better:
            return f"at least {MUCH_PERCENT:.0f} % better"
        return "at least as good" if self.is_as_good else "worse"


def verdicts(system: System, tables: Sequence[Table]) -> tuple[Verdict, ...]:
    """One per figure of its objective that both policies have."""
    return tuple(
        verdict
        for table in tables
        for row in table.rows
        if row.policy == system.policy and (aim := system.aim(row.figure)) is not None
        for verdict in _beside(table, row, is_more=aim.is_more)
    )


def _beside(table: Table, own: Row, *, is_more: bool) -> Iterator[Verdict]:
    for row in table.rows:
        if (
            (row.policy, row.figure) == (JOINT, own.figure)
            and math.isfinite(row.mean)
            and math.isfinite(own.mean)
        ):
            yield Verdict(
                system=table.system,
                table=table.title,
                figure=own.figure,
                own=own.mean,
                joint=row.mean,
                better_percent=better_percent(own, row, is_more=is_more),
            )


def better_percent(own: Row, other: Row, *, is_more: bool) -> float:
    """By how much another row is better than a policy's own, in percent of it.

    Gains in per cent over a baseline are compared as amounts: of +60 % and +28 % the first is 25 % better. Not
    `is_more`: less of it is better, and half as much is 100 % better.
    """
    mine, theirs = (_amount(row.figure, row.mean) for row in (own, other))
    best, worst = (theirs, mine) if is_more else (mine, theirs)
    if worst <= 0.0:
        return 0.0 if best == worst else 100.0 if best > worst else -100.0
    return 100.0 * (best / worst - 1.0)


def _amount(figure: str, value: float) -> float:
    """The value, or 100 + the value of a gain in per cent."""
    is_gain = " over " in figure and figure.endswith("%")
    return 100.0 + value if is_gain else value
