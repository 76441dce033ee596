"""The smallest SM percents as linear programmes in CVXPY, solved by CLARABEL. Imports CVXPY: about 1.7 s.

One programme holds many replicas and is compiled once per size: curves and limits are parameters (DPP), so a re-solve
costs a millisecond or two for 32 replicas, against 0.7 ms for each alone (`bench/sharing.py`). Sizes are rounded up
to few, and the places left over are filled with curves that bind nothing. Programmes are kept for the life of the
process and are not safe to share between threads.
"""

import itertools
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cvxpy as cp
import numpy as np

from solvers.sharing.problem import (
    LimitedCurve,
    ShareCurve,
    SharingProblem,
    SharingSolution,
)
from solvers.types.outcome import SolveStatus

STATUS = {
    cp.OPTIMAL: SolveStatus.OPTIMAL,
    cp.OPTIMAL_INACCURATE: SolveStatus.FEASIBLE,
    # Inaccurate statuses count too: `solve` compares every answer with its scan, and returns the scan without one.
    cp.INFEASIBLE: SolveStatus.INFEASIBLE,
    cp.INFEASIBLE_INACCURATE: SolveStatus.INFEASIBLE,
    cp.UNBOUNDED: SolveStatus.FAILED,
    cp.UNBOUNDED_INACCURATE: SolveStatus.FAILED,
    cp.USER_LIMIT: SolveStatus.TIME_LIMIT,
    cp.SOLVER_ERROR: SolveStatus.FAILED,
}

_REPLICA_SIZES = (1, 8, 32)
"""Replicas in one programme; compiling takes 5, 10 and 33 ms, but 350 ms for 128, while re-solving grows in step."""
_MIN_SEGMENTS = 8
"""Shorter curves are filled up, so that few sizes of programmes are compiled."""
_SM_TOLERANCE = 1e-4
"""SM percent; CLARABEL's answer is within 1e-5 of the true one where the curve is not nearly flat."""
_SLOPE_TOLERANCE = 1e-12
"""Relative to the steepest slope: a kink this small is rounding of the inputs, not a second piece."""
_CLARABEL = {
    "tol_gap_abs": 1e-9,
    "tol_gap_rel": 1e-9,
    "tol_feas": 1e-9,
    "max_iter": 200,
    # More threads would not pay for so small a programme, and sums in another order could differ in the last digits.
    "max_threads": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingProgram:
    """minimise Σ p  subject to  slope · p + offset ≤ 0 on every segment,  low ≤ p ≤ high.

    p: (M,), a hundredth of the SM percents; slope, offset: (M, S), scaled so that no coefficient exceeds 1.
    """

    programme: cp.Problem
    share: cp.Variable
    slope: cp.Parameter
    offset: cp.Parameter
    low: cp.Parameter
    high: cp.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvexPiece:
    """One convex piece in a programme's terms: it is within the limit where slope · p + offset ≤ 0 on every line.

    A piece of one row has no line. The lines that a programme has too many hold with room: 0 · p − 1 ≤ 0.
    """

    slope: tuple[float, ...]
    offset: tuple[float, ...]
    low: float
    high: float


_NO_LINES = ConvexPiece(slope=(), offset=(), low=0.0, high=1.0)
"""Fills a place of a programme that no replica needs."""


def solve_exact(
    problem: SharingProblem, *, seconds: float
) -> tuple[SharingSolution | None, SolveStatus]:
    """The smallest rows, or None with the status that tells why there is no answer.

    Replicas that no row can serve get None within an OPTIMAL solution: that is proven by their rows alone.
    `seconds` limits each programme; there is one per 32 replicas.
    """
    pieces = [first_feasible_piece(replica) for replica in problem.replicas]
    waiting = [
        (index, _lines(piece, problem.replicas[index].limit_ms))
        for index, piece in enumerate(pieces)
        if piece is not None
    ]
    answers: list[float | None] = [None] * len(pieces)
    for start in range(0, len(waiting), _REPLICA_SIZES[-1]):
        chunk = waiting[start : start + _REPLICA_SIZES[-1]]
        status, crossings = _solve_lines([lines for _, lines in chunk], seconds)
        if not status.has_solution:
            return None, status
        # A programme may have more places than replicas; their shares mean nothing.
        for (index, _), crossing in zip(chunk, crossings, strict=False):
            answers[index] = _row_at_or_above(problem.replicas[index], 100.0 * crossing)
    return SharingSolution(sm_percent=tuple(answers)), SolveStatus.OPTIMAL


def first_feasible_piece(replica: LimitedCurve) -> ShareCurve | None:
    """The first convex piece of the curve that reaches the limit, or None: it holds the smallest SM percent.

    A piece is lowest at one of its rows, so the rows tell whether it reaches the limit.
    """
    pieces = convex_pieces(replica.rows_in_range())
    return next(
        (piece for piece in pieces if min(piece.execution_ms) <= replica.limit_ms), None
    )


def convex_pieces(curve: ShareCurve) -> tuple[ShareCurve, ...]:
    """The curve cut, from the left, into the longest pieces whose slopes never fall; neighbours share a row."""
    if not curve.sm_percent:
        return ()
    slopes = _slopes(curve.sm_percent, curve.execution_ms)
    kink = _SLOPE_TOLERANCE * max(map(abs, slopes), default=0.0)
    cuts = [
        index
        for index in range(1, len(slopes))
        if slopes[index] < slopes[index - 1] - kink
    ]
    ends = [*cuts, len(curve.sm_percent) - 1]
    return tuple(
        ShareCurve(
            sm_percent=curve.sm_percent[start : end + 1],
            execution_ms=curve.execution_ms[start : end + 1],
        )
        for start, end in zip([0, *cuts], ends, strict=True)
    )


def _slopes(places: Sequence[float], values: Sequence[float]) -> list[float]:
    """The slope between each value and the next."""
    rows = zip(places, values, strict=True)
    return [
        (later - earlier) / (right - left)
        for (left, earlier), (right, later) in itertools.pairwise(rows)
    ]


def _lines(piece: ShareCurve, limit_ms: float) -> ConvexPiece:
    # An infinite limit would make offsets infinite; one at the slowest row binds nothing either.
    limit_ms = min(limit_ms, max(piece.execution_ms))
    shares = [sm / 100.0 for sm in piece.sm_percent]
    slopes = _slopes(shares, piece.execution_ms)
    lines = [
        _scaled(slope, slower - slope * share - limit_ms)
        # The slopes have one row fewer: no line begins at the last one.
        for slope, share, slower in zip(
            slopes, shares, piece.execution_ms, strict=False
        )
    ]
    return ConvexPiece(
        slope=tuple(slope for slope, _ in lines),
        offset=tuple(offset for _, offset in lines),
        low=shares[0],
        high=shares[-1],
    )


def _scaled(slope: float, offset: float) -> tuple[float, float]:
    """The same line with coefficients of at most 1, which a solver's tolerances are made for."""
    scale = max(abs(slope), abs(offset)) or 1.0
    return slope / scale, offset / scale


def _solve_lines(
    pieces: Sequence[ConvexPiece], seconds: float
) -> tuple[SolveStatus, tuple[float, ...]]:
    """The smallest share of each piece: at least as many as there are pieces, in their order."""
    size = next(size for size in _REPLICA_SIZES if size >= len(pieces))
    longest = max(_MIN_SEGMENTS, *(len(lines.slope) for lines in pieces))
    # Rounded up to a power of two, so that few programmes are compiled and kept.
    formulation = build(size, 1 << (longest - 1).bit_length())
    _fill(formulation, [*pieces, *[_NO_LINES] * (size - len(pieces))])
    status = _run(formulation.programme, seconds)
    if not status.has_solution:
        return status, ()
    return status, tuple(formulation.share.value.tolist())


def _run(programme: cp.Problem, seconds: float) -> SolveStatus:
    with warnings.catch_warnings():
        # CVXPY warns of an inaccurate answer; the status says it too, and every answer is checked against the rows.
        warnings.simplefilter("ignore", UserWarning)
        try:
            programme.solve(solver=cp.CLARABEL, time_limit=seconds, **_CLARABEL)
        except cp.SolverError:
            return SolveStatus.FAILED
    return STATUS.get(programme.status, SolveStatus.UNKNOWN)


@lru_cache(maxsize=16)
def build(replicas: int, lines: int) -> SharingProgram:
    """The programme of that size, compiled at its first solve and kept."""
    share = cp.Variable(replicas)
    slope = cp.Parameter((replicas, lines))
    offset = cp.Parameter((replicas, lines))
    low = cp.Parameter(replicas)
    high = cp.Parameter(replicas)
    # A product instead of broadcasting: only of this form can CVXPY compile the parameters once for all solves (DPP).
    of_each_line = cp.reshape(share, (replicas, 1), order="C") @ np.ones((1, lines))
    constraints = [
        cp.multiply(slope, of_each_line) + offset <= 0,
        share >= low,
        share <= high,
    ]
    return SharingProgram(
        programme=cp.Problem(cp.Minimize(cp.sum(share)), constraints),
        share=share,
        slope=slope,
        offset=offset,
        low=low,
        high=high,
    )


def _fill(formulation: SharingProgram, pieces: Sequence[ConvexPiece]) -> None:
    width = formulation.slope.shape[1]
    formulation.slope.value = np.array(
        [lines.slope + (0.0,) * (width - len(lines.slope)) for lines in pieces]
    )
    formulation.offset.value = np.array(
        [lines.offset + (-1.0,) * (width - len(lines.offset)) for lines in pieces]
    )
    formulation.low.value = np.array([lines.low for lines in pieces])
    formulation.high.value = np.array([lines.high for lines in pieces])


def _row_at_or_above(replica: LimitedCurve, crossing_sm_percent: float) -> float | None:
    """The crossing rounded up to a row, then checked on the rows: the answer always keeps the limit.

    The tolerance keeps a crossing that the solver's last digits put beyond a row at that row.
    """
    rows = replica.rows_in_range()
    index = bisect_left(rows.sm_percent, crossing_sm_percent - _SM_TOLERANCE)
    while index < len(rows.sm_percent) and rows.execution_ms[index] > replica.limit_ms:
        index += 1
    return rows.sm_percent[index] if index < len(rows.sm_percent) else None
