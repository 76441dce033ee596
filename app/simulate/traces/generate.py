"""Traces made from shapes of the simulator: day curves, spikes, Markov chains, flash crowds."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from agents.sim.load.arrivals import ArrivalProcess
from agents.sim.load.rates import Shape
from app.measurements.tables import Reals
from app.simulate.traces.trace import RateTrace, check_size

_AT_ONCE_S = 3600
"""Seconds whose arrivals are in memory at a time."""


def generate(
    shapes: Sequence[Shape],
    *,
    names: Sequence[str],
    duration_s: int,
    seed: int,
    draws: bool,
    note: str,
) -> RateTrace:
    """A trace in steps of a second: for each name the shape at its place, drawn by a random stream of its own.

    draws: requests as they would arrive, instead of the rates at which a simulation draws them itself. Raises
    InvalidRequest.
    """
    # Before anything is drawn: what is too large would fill the memory first.
    check_size(duration_s, len(names))
    # A stream for each series: with the same seed a series stays what it is when others are added.
    loads = [
        ArrivalProcess(
            shape=shape,
            duration_s=duration_s,
            seed=seed,
            stream=stream,
        )
        for stream, shape in enumerate(shapes)
    ]
    # rates_rps are means, because a rate may change within a second.
    columns = [_counts(load) if draws else load.rates_rps for load in loads]
    return RateTrace(
        names=tuple(names),
        rates_rps=np.column_stack(columns),
        step_s=1.0,
        notes=(f"source: {note}",),
    )


def _counts(load: ArrivalProcess) -> Reals:
    """(T,) arrivals in each second."""
    parts = [
        # minlength, or seconds at the end in which nothing arrives would be missing.
        np.bincount(
            (load.arrivals(start, end) - start).astype(int), minlength=end - start
        )
        for start, end in pairwise(
            [*range(0, load.duration_s, _AT_ONCE_S), load.duration_s]
        )
    ]
    return np.concatenate(parts).astype(float)
