"""Affinity: whether a job suits those with which it would share a GPU.

    ratio(network)    time in compute-bound kernels / time in memory-bound kernels                   (equation 1)
    workload(A, B)    100 / (1 + exp(−|ratio(A) − ratio(B)|))                                         (equation 9)
    variant(A, B)     100 high with low, 50 low with low, 0 high with high                            (equation 11)
    affinity          mean of both, each averaged over the jobs of the batch (equation 10); enough from 70 on, in a full
                      fleet from 50 on

Source: OLTunes, sections 2.2 and 3.4.2, in its printed form, which has three defects that stay visible here:
* a workload part is never below 50, so that with a high variant next to a low one every pair reaches 75, whatever the
  kernels; two high ones reach 50 at most and never share a GPU; two low ones need |Δratio| ≥ ln 9 = 2.2;
* the text says that small differences score low, but the sigmoid of an absolute value begins at 50;
* by counts of kernels, as printed, every measured network is memory-bound (below 1.2); by time, as here, most are not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

THRESHOLD = 70.0
"""Default of threshold_affinity."""
FULL_THRESHOLD = 50.0
"""In a full fleet: any two low variants may share. The paper lets the load adjust it, but says not how."""
COMPUTE_FROM = 1.2
"""From this ratio on a network is called compute-intensive; it is also what an unknown network is taken to have."""


class Character(NamedTuple):
    """What affinity is judged by."""

    ratio: float
    """Compute-bound over memory-bound, by equation 1."""
    is_high: bool
    """Whether it is the high variant of its family."""


def sensitivity_ratio(sensitivity: float, median: float) -> float:
    """A substitute for equation 1 where no kernel was measured: sensitive to a neighbour's pressure is memory-bound.

    A network of median sensitivity is just compute-intensive. Ours.
    """
    return COMPUTE_FROM * median / sensitivity if sensitivity > 0.0 else COMPUTE_FROM


def ratios_of(
    measured: Mapping[str, float],
    sensitivities: Mapping[str, float],
) -> dict[str, float]:
    """Ratio by network: the measured ones, and all others from their sensitivity."""
    # The upper median, a value of some network, so that this one's ratio is just COMPUTE_FROM.
    ordered = sorted(sensitivities.values())
    median = ordered[len(ordered) // 2] if ordered else 0.0
    return {
        name: sensitivity_ratio(value, median) for name, value in sensitivities.items()
    } | dict(measured)


def workload_affinity(one: float, other: float) -> float:
    """Equation 9: 50 for equal ratios, towards 100 for unequal ones."""
    return 100.0 / (1.0 + math.exp(-abs(one - other)))


def variant_affinity(one: Character, other: Character) -> float:
    """Equation 11."""
    if one.is_high != other.is_high:
        return 100.0
    return 0.0 if one.is_high else 50.0


def affinity(new: Character, batch: Sequence[Character]) -> float:
    """How well a job suits the jobs of a batch, 25 to 100; 100 where there are none."""
    # Equation 10 has no mean over no job: the first job always suits.
    if not batch:
        return 100.0
    workload = _mean(workload_affinity(new.ratio, each.ratio) for each in batch)
    variant = _mean(variant_affinity(new, each) for each in batch)
    return (workload + variant) / 2.0


def pressure_affinity(new: float, batch: Sequence[float]) -> float:
    """The same by what replicas press on their GPU with, 0 to 1 each: 100 where any of two leaves it alone. Ours.

    Classes are too coarse: what one replica takes from another grows with the product of their pressures.
    """
    if not batch:
        return 100.0
    return _mean(100.0 * (1.0 - min(1.0, new) * min(1.0, each)) for each in batch)


def threshold(
    load: float, idle: float = THRESHOLD, full: float = FULL_THRESHOLD
) -> float:
    """Affinity that is enough while the fleet is so full, 0 to 1."""
    # In a full fleet the alternative to an unsuitable neighbour is no GPU at all.
    return idle + (full - idle) * load


def suits(new: Character, batch: Sequence[Character], load: float = 0.0) -> bool:
    """Whether a job may join the batch: `isAffinityHigh` of Algorithm 3, line 10."""
    return affinity(new, batch) >= threshold(load)


def _mean(values: Iterable[float]) -> float:
    # An exact sum, so that the order of a batch cannot move a mean across the threshold.
    listed = list(values)
    return math.fsum(listed) / len(listed)
