"""Conditions as logarithms, and what a technique may say of conditions that lie outside what was measured.

Every technique of this package sees a query as the row (ln batch, ln SM share, ln clock, ln time quota). Outside the
measured range a local fit knows nothing, but two facts hold of every network, and their worst case is used:

    less to do or more to do it with never slows down     so below the least batch, above the largest share, clock
                                                          or quota the latency stays what it is at the edge
    k times the work, or 1/k of the means, takes at       so beyond the other edges the latency grows in proportion
    most k times as long
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.predict.data.samples import Indices, Queries, Reals, Samples

Flags = npt.NDArray[np.bool_]

BATCH, SM_PERCENT, CLOCK_MHZ, TIME_QUOTA_PERCENT = range(4)
"""Columns of the logarithms."""
_GROWTH = np.array([1.0, -1.0, -1.0, -1.0])
_SAME = 1e-9  # Logarithms nearer than this are one condition; MHz and percents differ by far more.


class MeasuredRange(NamedTuple):
    """What was measured: (4,) least and largest logarithm of each condition."""

    low: Reals
    high: Reals


def sorted_samples(samples: Samples) -> Samples:
    """The samples in an order of their own, so that a fit does not depend on the order of arrival."""
    at = samples.at
    keys = (
        samples.latency_ms,
        at.time_quota_percent,
        at.clock_mhz,
        at.sm_percent,
        at.batch,
    )
    order: Indices = np.lexsort(keys)
    return samples.take(order)


def highest_clock_mhz(at: Queries) -> float:
    """The highest known clock, for which an unknown one stands; 0 when none is known."""
    return float(np.nanmax(np.append(at.clock_mhz, 0.0)))


def log_conditions(at: Queries, *, highest_clock_mhz: float) -> Reals:
    """(N, 4) logarithms; the clock's is relative to the highest, and 0 throughout when none is known."""
    if highest_clock_mhz > 0.0:
        clock = np.nan_to_num(at.clock_mhz, nan=highest_clock_mhz) / highest_clock_mhz
    else:
        clock = np.ones(len(at))
    return np.log(
        np.stack([at.batch, at.sm_percent, clock, at.time_quota_percent], axis=1)
    )


def measured_range(logs: Reals) -> MeasuredRange:
    """The range of the rows of (N, 4) logarithms, N >= 1."""
    return MeasuredRange(low=logs.min(axis=0), high=logs.max(axis=0))


def varies(measured: MeasuredRange) -> Flags:
    """(4,) whether a condition was measured at more than one value."""
    return measured.high - measured.low > _SAME


def clip_to_measured(
    logs: Reals,
    measured: MeasuredRange,
    *,
    columns: Sequence[int] = (BATCH, SM_PERCENT, CLOCK_MHZ, TIME_QUOTA_PERCENT),
) -> tuple[Reals, Reals]:
    """(N, 4) nearest conditions measured in these columns; (N,) the factor >= 1 on the latency for the way there."""
    inside = logs.copy()
    inside[:, columns] = np.clip(logs, measured.low, measured.high)[:, columns]
    return inside, np.exp(np.maximum((logs - inside) * _GROWTH, 0.0).sum(axis=1))
