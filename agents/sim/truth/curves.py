"""Latency between measured points: one network's raw V100 measurements, read at any share and any batch.

Between two shares time is linear in 1/share (a fixed part plus work / share); between two batches it is linear in the
batch. At a measured point the result is the measurement itself, noise and all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """Measured latency of one batch size over the share of the SMs."""

    sm_percents: FloatArray
    """(P,) ascending."""
    latency_ms: FloatArray
    """(P,)."""

    def at(self, share: float) -> float:
        """Latency at any share > 0, in percent of a V100.

        Below the measured range the work-bound law holds: latency grows as 1/share. Above it (a GPU faster than a
        V100) the log-slope of the last octave goes on, held between 0 (host-bound) and 1 (ideal); both are synthetic.
        """
        lowest, highest = float(self.sm_percents[0]), float(self.sm_percents[-1])
        if share < lowest:
            return float(self.latency_ms[0]) * lowest / share
        if share > highest:
            last_ms = float(self.latency_ms[-1])
            slope = float(
                np.clip(np.log2(self._inside(highest / 2) / last_ms), 0.0, 1.0)
            )
            return last_ms * float((highest / share) ** slope)
        return self._inside(share)

    def _inside(self, share: float) -> float:
        return float(np.interp(-1.0 / share, -1.0 / self.sm_percents, self.latency_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurves:
    """All measured curves of one network."""

    by_batch: Mapping[int, BatchCurve]
    """Ascending batch sizes; anything below the first takes its time."""

    @property
    def max_batch(self) -> int:
        """Largest measured batch."""
        return max(self.by_batch)

    def batch_ms(self, share: float) -> FloatArray:
        """Latency of batches 0 to `max_batch` at `share` percent of a V100: (max_batch + 1,), entry 0 is 0.

        A batch size that was not measured at so low a share, while others were, is interpolated between those; the
        smallest and the largest batch always count.
        """
        ends = (1, self.max_batch)
        reach = max(
            share, min(curve.sm_percents[0] for curve in self.by_batch.values())
        )
        known = [
            batch
            for batch, curve in self.by_batch.items()
            if batch in ends or curve.sm_percents[0] <= reach
        ]
        table = np.zeros(self.max_batch + 1)
        sizes = np.arange(1, self.max_batch + 1)
        table[1:] = np.interp(
            sizes, known, [self.by_batch[batch].at(share) for batch in known]
        )
        return table
