"""What a row of the campaign is asked for and gives back."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from bench.report import Figures

BACK_WITHIN_S = 10.0
"""99 of 100 times."""
GIVEN_UP_S = 180.0
"""What is not back by then is a violation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """How much of a row is run."""

    seconds: float
    """No fault is made after so long."""
    kills: int = 1000
    """Nor after this number, where the row kills."""
    nodes: int = 4
    seed: int = 7
    calls: int | None = None
    """The number of fuzzed calls, and of syncs; None: as many as fit, of which the row promises some a second."""
    hours: float = 24.0
    """Simulated, of the row that lives through a day in its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What was measured, and every "must" that was broken, in words."""

    figures: tuple[Figures, ...]
    violations: tuple[str, ...]
    too_slow: tuple[str, ...] = ()
    """Likewise of times and memory, which a machine that others use, too, breaks by itself."""
    not_done: tuple[str, ...] = ()
    """What the row was to do and did not: a run that did little has shown little. A short slice promises nothing."""


def too_few(
    found: Mapping[str, float], minimum: Mapping[str, float]
) -> tuple[str, ...]:
    """For `not_done`: what there is less of than there must be."""
    return tuple(
        f"{found.get(what, 0):.0f} {what}, which must be {count:.0f} at least"
        for what, count in minimum.items()
        if found.get(what, 0) < count
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the campaign."""

    run: Callable[[RowOptions], Coroutine[None, None, RowOutcome]]
    seconds: float
    """Of `make campaign`, without its start and its judgement."""
