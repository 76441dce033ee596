"""Courses: how a policy went step by step on average over its seeds, thinned to what a chart can show."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from app.simulate.run.results import RunResult, RunSeries

MAX_POINTS = 240
"""The maximum number of a line's points: more would be finer than a chart's pixels."""

Course = list[float | None]
"""A value for each point in time; None where nothing is known."""


def mean_course(
    runs: Sequence[RunResult], values: Callable[[RunSeries], Sequence[float | None]]
) -> Course:
    """Means over the runs that know a value at that step, thinned."""
    return thinned(
        [
            mean_known(step)
            for step in zip(*(values(run.series) for run in runs), strict=True)
        ]
    )


def thinned(values: Sequence[float | None]) -> Course:
    """At most MAX_POINTS values: means of as many neighbouring steps as it takes."""
    # Means and not every n-th step: a burst of one step must not come and go with the length of the run.
    size = _steps_per_point(len(values))
    return [
        mean_known(values[begin : begin + size])
        for begin in range(0, len(values), size)
    ]


def point_times_s(steps: int, step_s: float, *, first_s: float) -> list[float]:
    """The middle of what each point of a thinned course stands for; `first_s`: where the first step begins."""
    size = _steps_per_point(steps)
    return [
        first_s + step_s * (begin + min(begin + size, steps)) / 2.0
        for begin in range(0, steps, size)
    ]


def mean_known(values: Sequence[float | None]) -> float | None:
    """Mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _steps_per_point(steps: int) -> int:
    return max(1, math.ceil(steps / MAX_POINTS))
