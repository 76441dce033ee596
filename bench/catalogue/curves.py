"""From noisy measured points to a planner's latency curve: monotone, complete, and above the noise.

Latency is interpolated linearly in 1/share, because time = fixed + work / share is the shape of every measured
curve; between two measured points nothing else is assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.catalogue.measured import MeasuredPoint

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """Milliseconds over batch and share of a V100."""

    batches: tuple[int, ...]
    sm_percents: FloatArray
    """(P,) ascending."""
    time_ms: FloatArray
    """(B, P)."""

    def at(self, batch: int, share: float) -> float:
        """Time of one batch on `share` percent of a V100; `share` may lie outside the measured range.

        Below the lowest share the work-bound law holds (time grows as 1/share). Above the highest one the curve
        goes on with the log-slope of its last octave (100 % against 50 %), between 0 (host-bound) and 1 (ideal).
        No batch is ever faster than a smaller one.
        """
        lines = self.time_ms[: self.batches.index(batch) + 1]
        return max(evaluate(self.sm_percents, line, share) for line in lines)


def evaluate(sm_percents: FloatArray, time_ms: FloatArray, share: float) -> float:
    """`time_ms: (P,)` over `sm_percents: (P,)` at any positive share; see `Surface.at`."""
    lowest, highest = sm_percents[0], sm_percents[-1]
    if share < lowest:
        return float(time_ms[0] * lowest / share)
    if share > highest:
        half = np.interp(-2.0 / highest, -1.0 / sm_percents, time_ms)
        slope = float(np.clip(np.log2(half / time_ms[-1]), 0.0, 1.0))
        return float(time_ms[-1] * (highest / share) ** slope)
    return float(np.interp(-1.0 / share, -1.0 / sm_percents, time_ms))


def upper_envelope(
    points: tuple[MeasuredPoint, ...], batches: tuple[int, ...]
) -> Surface:
    """The least curve above the de-noised points that never rises with SM percent nor falls with batch.

    A median over three neighbouring shares drops lone outliers; then a running maximum from the highest share
    down, and one from the smallest batch up, make it monotone from above: a planner believes the worse of two
    neighbouring measurements.
    """
    curves = {batch: _curve(points, batch) for batch in batches}
    sm_percents = np.array(sorted({point.sm_percent for point in points}))
    filled = np.stack([_fill(curves, share) for share in sm_percents], axis=1)
    smooth = np.stack([median_of_three(line) for line in filled])
    falling = np.maximum.accumulate(smooth[:, ::-1], axis=1)[:, ::-1]
    return Surface(
        batches=batches,
        sm_percents=sm_percents,
        time_ms=np.maximum.accumulate(falling, axis=0),
    )


def _curve(
    points: tuple[MeasuredPoint, ...], batch: int
) -> tuple[FloatArray, FloatArray]:
    measured = [point for point in points if point.batch == batch]
    shares = np.array([point.sm_percent for point in measured])
    return shares, np.array([point.latency_ms for point in measured])


def _fill(
    curves: Mapping[int, tuple[FloatArray, FloatArray]], share: float
) -> FloatArray:
    """Latency (B,) at one share; a batch not measured at so low a share is interpolated between batches that were.

    The first and the last batch always count, by the work-bound law if need be.
    """
    batches = list(curves)
    known = [
        batch
        for batch in batches
        if curves[batch][0][0] <= share or batch in (batches[0], batches[-1])
    ]
    return np.interp(
        batches, known, [evaluate(*curves[batch], share) for batch in known]
    )


def median_of_three(values: FloatArray) -> FloatArray:
    """Each inner value replaced by the median of itself and its two neighbours; the ends stay."""
    smooth = values.copy()
    smooth[1:-1] = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    return smooth
