"""The capacity law: how far a replica may be loaded so that the SLO's percentile of its requests finishes in time.

The law falls along the percentile and never falls along the ratio of SLO to execution time. It is 0 below ratio 1 and
small up to about 1 + percentile: there a request is in time only when it meets an idle server or the end of a running
batch. At 1 + percentile it rises steeply, with large batches by 0.4 within 1e-5, and then smoothly towards 1.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from solvers.laws.bulk_queue import Indices, Reals, miss_probability
from solvers.types.problem import CapacityLaw

Flags = npt.NDArray[np.bool_]
Bracket = tuple[Reals, Reals]
"""Utilisations below and above what is searched."""

# Beyond it a queue forgets its state only in 1 / (1 - ρ)² = 40,000 requests: a stationary law promises nothing there.
MAX_UTILISATION = 0.995
_MIN_UTILISATION = 1e-9  # Stands for 0, which has no queue.

# Chords are probed at their quarters; 0.002 there leaves room for the points in between, and 0.005 is promised.
_OVERSTATED = 0.002
_UNDERSTATED = 0.005
_NARROWEST_CELL = 1e-6
_MISS_GUARD = 1e-9  # More than the error of miss_probability, far less than a percentile leaves to miss.
_DECIMALS = 6
_TOLERANCE = 5e-7


def make_capacity_law(
    percentiles: Sequence[float], batches: Sequence[int]
) -> CapacityLaw:
    """The law's table for every percentile (0 < p < 1) and batch (>= 1), both sorted and without duplicates.

    Values are rounded down and never fall along the ratio. Linear interpolation between the ratios, which all rows
    share, overstates the law nowhere by more than 0.005, and understates it by 0.01 at most but within 1e-5 of the
    steep rise. A row needs 25 to 60 ratios, many of them in common with others, and 0.1 s once; it is cached for the
    process. Raises ValueError when a list is empty or a value is out of range.
    """
    sorted_percentiles = tuple(sorted(set(percentiles)))
    sorted_batches = tuple(sorted(set(batches)))
    if not sorted_percentiles or not sorted_batches:
        raise ValueError("a capacity law needs at least one percentile and one batch")
    rows = [
        [_solve_row(percentile, batch) for batch in sorted_batches]
        for percentile in sorted_percentiles
    ]
    ratios = np.unique(
        np.concatenate([grid for of_percentile in rows for grid, _ in of_percentile])
    )
    # A row interpolated at more ratios than its own is still the same function, so the grids may be joined.
    return CapacityLaw(
        percentiles=sorted_percentiles,
        batches=sorted_batches,
        slo_ratios=tuple(ratios.tolist()),
        max_utilisation=tuple(
            tuple(
                _round_down(np.interp(ratios, grid, values))
                for grid, values in of_percentile
            )
            for of_percentile in rows
        ),
    )


def max_utilisation(batch: int, *, percentile: float, slo_ratio: float) -> float:
    """The law itself at one point, without a table: the highest utilisation with P(in time) >= percentile.

    Rounded down to 6 decimals, at most 0.995. Raises ValueError for batch < 1 or a percentile not between 0 and 1.
    """
    _refuse_out_of_range(percentile, batch)
    if slo_ratio < 1.0:
        return 0.0
    solved = _solve_utilisation(batch, percentile, np.array([slo_ratio], float))
    return _round_down(solved)[0]


def _round_down(values: Reals) -> tuple[float, ...]:
    return tuple((np.floor(values * 10**_DECIMALS) / 10**_DECIMALS).tolist())


def _refuse_out_of_range(percentile: float, batch: int) -> None:
    if not 0.0 < percentile < 1.0:
        raise ValueError(
            f"percentile {percentile} must lie between 0 and 1, for example 0.98"
        )
    if batch < 1:
        raise ValueError(f"batch {batch} must be at least 1")


@lru_cache(maxsize=4096)
def _solve_row(percentile: float, batch: int) -> tuple[Reals, Reals]:
    """Ascending ratios and the law there, close enough for interpolation; both read-only."""
    _refuse_out_of_range(percentile, batch)
    ratios = _make_first_ratios(percentile, batch)
    utilisations = _solve_utilisation(batch, percentile, ratios)
    left = np.arange(len(ratios) - 1)  # the cells still to try, by their left end
    while len(left):
        left = left[_may_be_split(ratios, utilisations, left)]
        probes = _probe(ratios, left), _probe(utilisations, left)
        left = left[_is_poor_chord(batch, percentile, *probes)]
        middle = (ratios[left] + ratios[left + 1]) / 2.0
        bracket = utilisations[left], utilisations[left + 1]
        exact = _solve_utilisation(batch, percentile, middle, between=bracket)
        ratios = np.insert(ratios, left + 1, middle)
        utilisations = np.insert(utilisations, left + 1, exact)
        # Both halves of a split cell are tried next; each split before it has moved it right by one.
        first_half = left + np.arange(len(left))
        left = np.sort(np.concatenate([first_half, first_half + 1]))
    # Values that are closer than the search's tolerance may be in the wrong order: take the lower one.
    utilisations = np.minimum.accumulate(utilisations[::-1])[::-1]
    return _freeze(ratios), _freeze(_flatten_steps(ratios, utilisations))


def _make_first_ratios(percentile: float, batch: int) -> Reals:
    """Ascending ratios from 1 to a power of two at which the law has reached its largest value.

    Whole ratios are kinks of the law, and 1 + percentile is its steep rise. Lundberg's bound P(Q >= m) <= z0^-m, with
    log z0 >= 2(1 - ρ), bounds P(miss) at ratio k + 1 by exp(-2(1 - ρ)(k - 1)·b), which gives the last ratio.
    """
    last = 2.0 - np.log(1.0 - percentile) / (2.0 * (1.0 - MAX_UTILISATION) * batch)
    powers = 2.0 ** np.arange(2, np.ceil(np.log2(last)) + 1)
    quarters = [1.0, 1.25, 1.5, 1.75]
    kinks = np.arange(2.0, min(last, 8.0))
    return np.unique([*quarters, 1.0 + percentile, *kinks, *powers])


def _may_be_split(ratios: Reals, utilisations: Reals, left: Indices) -> Flags:
    """Whether a cell is wide enough to split and rises enough to be worth it; (cells,)."""
    is_wide = ratios[left + 1] - ratios[left] > _NARROWEST_CELL
    is_rising = utilisations[left + 1] - utilisations[left] > _OVERSTATED
    return is_wide & is_rising


def _probe(ends: Reals, left: Indices) -> Reals:
    """A quarter, half and three quarters of the way from the left to the right end of each cell; (3, cells)."""
    return ends[left] + np.array([[0.25], [0.5], [0.75]]) * (
        ends[left + 1] - ends[left]
    )


def _is_poor_chord(
    batch: int, percentile: float, ratios: Reals, utilisations: Reals
) -> Flags:
    """Whether a cell's chord over- or understates the law at a probe, by the law's definition; (cells,)."""
    # One evaluation on either side of the chord tells; the law itself would need a search at every probe.
    lowered = np.maximum(utilisations - _OVERSTATED, _MIN_UTILISATION)
    raised = np.minimum(utilisations + _UNDERSTATED, MAX_UTILISATION)
    allowed = _allowed_miss(percentile)
    overstates = (
        miss_probability(batch, utilisation=lowered, slo_ratio=ratios) > allowed
    )
    understates = (
        miss_probability(batch, utilisation=raised, slo_ratio=ratios) <= allowed
    )
    is_below_limit = raised < MAX_UTILISATION
    poor: Flags = np.any(overstates | (understates & is_below_limit), axis=0)
    return poor


def _flatten_steps(ratios: Reals, utilisations: Reals) -> Reals:
    """The law with its steps (narrow cells in which it still rises) moved right by a cell: nothing is overstated."""
    result = utilisations.copy()
    for left in np.flatnonzero(np.diff(ratios) <= _NARROWEST_CELL):
        result[left + 1] = min(result[left + 1], result[left] + _OVERSTATED)
    return result


def _freeze(values: Reals) -> Reals:
    values.setflags(write=False)
    return values


def _allowed_miss(percentile: float) -> float:
    return 1.0 - percentile - _MISS_GUARD


def _solve_utilisation(
    batch: int,
    percentile: float,
    ratios: Reals,
    *,
    between: Bracket | None = None,
) -> Reals:
    """The highest utilisation with P(miss) <= 1 - percentile at each ratio >= 1; at most 5e-7 too low, never too high.

    P(miss) rises with the utilisation. `between` holds the law at a lower and at a higher ratio: the search's bracket.
    """
    low, high = _bracket(ratios, between)
    allowed = _allowed_miss(percentile)

    def excess_miss(utilisation: Reals, ratio: Reals) -> Reals:
        return (
            miss_probability(batch, utilisation=utilisation, slo_ratio=ratio) - allowed
        )

    # Not at the top: SciPy's optimisers take half a second to load, and most who import this file ask no law.
    from scipy.optimize.elementwise import find_root

    search = find_root(
        excess_miss,
        (low, high),
        args=(ratios,),
        tolerances={"xatol": _TOLERANCE, "xrtol": 0.0, "fatol": 0.0, "frtol": 0.0},
    )
    # Both ends of the last bracket were evaluated; the highest one that keeps the promise is the answer, root or not.
    ends = [
        np.where(excess <= 0.0, end, low)
        for end, excess in zip(search.bracket, search.f_bracket, strict=True)
    ]
    return np.maximum(*ends)


def _bracket(ratios: Reals, between: Bracket | None) -> Bracket:
    """The lowest and the highest utilisation to search at each ratio."""
    low, high = between or (
        np.zeros_like(ratios),
        np.full_like(ratios, MAX_UTILISATION),
    )
    # A bracket's ends were searched, too, and may each be too low by the tolerance.
    return (
        np.maximum(low, _MIN_UTILISATION),
        np.clip(high + 2.0 * _TOLERANCE, 2.0 * _MIN_UTILISATION, MAX_UTILISATION),
    )
