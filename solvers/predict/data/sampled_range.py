"""Sampled range: between which conditions a fit has seen samples, and how much wider its interval is outside.

    factor on the interval's ends, in logarithms = sqrt(1 + (EXTRAPOLATION · doublings outside)²)

Held-out samples lie among the others, so that cross-validation says nothing about what is further away; but a fit that
errs more among them errs more further away too.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from solvers.predict.data.samples import Queries, Reals

EXTRAPOLATION = 3.0
"""This multiple of the fit's own uncertainty is added per doubling. Learned without the lower shares or the larger
batches, intervals of 90 % so widened hold 89 % of the rows there, of igniter_v100 as of rapp_v100; unwidened 71 and
48 % (`bench.predict`, "outside sampled range"). It was set on these rows. Where only one share was sampled, or hardly a
range, they hold less: about 80 %."""
MAX_LOG_RATIO = float(np.log(1e6))
"""An end of an interval further out says no more than that nothing is known, and must remain a number."""


class SampledSpan(NamedTuple):
    """From the smallest to the largest value."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRange:
    """The span of every condition, named as in Queries; None = not known of any sample."""

    batch: SampledSpan | None = None
    sm_percent: SampledSpan | None = None
    clock_mhz: SampledSpan | None = None
    time_quota_percent: SampledSpan | None = None
    power_limit_w: SampledSpan | None = None


CONDITIONS = tuple(field.name for field in fields(SampledRange))
ANYWHERE = SampledRange()
"""The range of a fit of which it is not known where its samples lay: nothing is outside."""


def sampled_range(queries: Queries) -> SampledRange:
    """The range that these conditions span."""
    return SampledRange(**{name: _span(getattr(queries, name)) for name in CONDITIONS})


def widening(sampled: SampledRange, queries: Queries) -> Reals:
    """(N,) factor >= 1 on the logarithms of an interval's ends; 1 inside.

    The doublings of all conditions add up: what they do together was not seen. What is not known is inside.
    """
    doublings = np.zeros(len(queries))
    for name in CONDITIONS:
        span: SampledSpan | None = getattr(sampled, name)
        if span is not None:
            queried: Reals = np.log2(getattr(queries, name))
            nearest = np.clip(queried, *np.log2(span))
            # NaN is a condition that the query leaves open: it counts as inside.
            doublings += np.nan_to_num(np.abs(queried - nearest))
    return np.hypot(1.0, EXTRAPOLATION * doublings)


def widen(ratios: Reals, factors: Reals) -> Reals:
    """(N,) ends of intervals, over what was predicted, moved out by factors on their logarithms, and still numbers."""
    return np.exp(np.clip(factors * np.log(ratios), -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _span(values: Reals) -> SampledSpan | None:
    known = values[np.isfinite(values)]
    return SampledSpan(float(known.min()), float(known.max())) if len(known) else None
