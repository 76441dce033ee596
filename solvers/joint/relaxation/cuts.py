"""Cuts per service: what whole replicas imply that fractions of replicas do not.

Measure a replica by its capacity over the service's rate, in parts of 1/`PARTS` of it, rounded up to a whole number w
of parts; one that carries the whole rate has `PARTS` + 1. All of the rate is served only if Σ w ≥ `PARTS` + 1 =: N over
the service's replicas. (Scaled by 1 + ε first: Σ capacity ≥ rate gives Σ w ≥ (1 + ε) · PARTS, and w is whole.)

Let g be any function on 0..N that never falls, with g(0) = 0 and g(N) = 1, and

    F(w) = max over r of g(r) − g(max(0, r − w)):       Σ_p F(w_p) x_p ≥ 1

holds for all whole x that serve the rate: take the replicas one after the other off r = N until nothing is left; each
lowers g by at most its F, and all together by 1. Such cuts describe the hull of all sets of replicas that serve the
rate (it is a shortest path from N to 0 with an arc for every replica, and g are node potentials), so the most violated
one is the optimum of a small linear program: min Σ_w X_w F(w), X_w replicas of w parts in the fractional solution.
g(r) = ⌈k r / PARTS⌉ / (k + 1) for r < N are the rounding cuts of Chvátal and Gomory for the multiple k.

A replica's coefficient is a rising step function of its capacity, so the bounds of pricing stay bounds. The cuts hold
only for plans that serve everything: the least shortage would satisfy them.
"""

from typing import Final

import highspy
import numpy as np

from solvers.highs import INFINITE, is_solved, make_program
from solvers.joint.kernels.types import Numbers, Reals

PARTS: Final = 60
"""The rate is cut into this number of parts: halves, thirds, quarters, fifths and sixths are whole numbers of them."""
_EPSILON = 1e-5
"""Above what plan checks tolerate: a replica that lacks less of the rate counts as carrying all."""
EDGES: Final[Reals] = np.arange(1.0, PARTS + 1.0) / (PARTS * (1.0 + _EPSILON))
"""(B,) parts of the rate; a replica of w parts exceeds w − 1 of them."""
_MIN_VIOLATION = 1e-3
_ROUNDING = 1e-7
"""A number of replicas this near to a whole one is whole."""
_BEFORE = np.maximum(0, np.arange(1, PARTS + 2) - np.arange(1, PARTS + 2)[:, None])
"""(w − 1, r − 1) what is left of r parts."""


class ServiceCuts:
    """The cuts of one service in a master problem."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Reals]] = []
        """(row, steps) of each cut."""
        self.fillers: list[int] = []
        """The column by which each cut may fall short."""
        self.places: list[int] = []
        """Places of the columns with a replica of the service."""
        self.levels: list[int] = []
        """How many edges that replica exceeds, for each of these columns."""


def levels(capacity: Reals, rate: Reals) -> Numbers:
    """(n,) edges that replicas with (n,) capacities exceed, of services that want (n,) rates."""
    exceeded: Numbers = (
        (EDGES * rate[:, None] < capacity[:, None]).sum(axis=1).astype(np.int32)
    )
    return exceeded


def steps(potential: Reals) -> Reals:
    """(B + 1,) coefficient in the cut by how many edges the capacity exceeds (0 without any capacity); ascending.

    potential: (N + 1,) g; scaled to g(N) = 1 and made to rise if it does not.
    """
    # Any rising g gives a valid cut, so a solver's error here may weaken the cut but never make it wrong.
    rising = np.maximum.accumulate(potential - potential[0])
    rising /= rising[-1]
    reached: Reals = (rising[1:] - rising[_BEFORE]).max(axis=1)
    return reached


def rounding(multiple: int) -> Reals:
    """(N + 1,) the potential of the rounding cut for that multiple."""
    potential = np.ceil(multiple * np.arange(PARTS + 2.0) / PARTS)
    potential[-1] = multiple + 1.0
    return potential


def separate(replicas: Reals) -> Reals | None:
    """(N + 1,) the potential of the most violated cut, None where none is violated by much.

    replicas: (B + 1,) of a fractional solution, by how many edges they exceed.
    """
    used = np.flatnonzero(replicas > _ROUNDING).astype(np.int32)
    # Integer solutions violate no cut: they hold for all of them.
    is_integer = (np.abs(replicas - np.round(replicas)) <= _ROUNDING).all()
    if not len(used) or is_integer:
        return None
    program = _program(used, replicas[used])
    # Cuts are optional: where HiGHS gives no answer, none is added.
    if not is_solved(program):
        return None
    potential = np.array(program.getSolution().col_value)[len(used) :]
    # A rise of 1 is asked for; much less is an error of the solver, which `steps` would blow up by scaling.
    is_valid = potential[-1] - potential[0] > 0.5
    if is_valid and replicas @ steps(potential) < 1.0 - _MIN_VIOLATION:
        return potential
    return None


def _program(used: Numbers, replicas: Reals) -> highspy.Highs:
    """min Σ X F over F (of the used levels) and g, with F_w + g(r − w) − g(r) ≥ 0."""
    count, ends = len(used), PARTS + 1
    program = make_program()
    _add_columns(program, replicas, np.zeros(count), np.ones(count))
    # g(0) = 0 and g(N) = 1 are bounds of variables, which cost the simplex method less than rows.
    zeros = np.zeros(ends)
    ones = np.ones(ends)
    low = np.append(zeros, 1.0)
    high = np.append(0.0, ones)
    _add_columns(program, np.zeros(ends + 1), low, high)
    _add_rows(program, used)
    return program


def _add_rows(program: highspy.Highs, used: Numbers) -> None:
    """F_w + g(r − w) − g(r) ≥ 0 for every level w and every rest r."""
    count, ends = len(used), PARTS + 1
    rows = np.arange(count * ends)
    # Three entries per row, one of each of F_w, g(r − w) and g(r); the g come after all F.
    columns = np.stack(
        (
            np.repeat(np.arange(count), ends),
            count + _BEFORE[used].ravel(),
            np.tile(count + 1 + np.arange(ends), count),
        )
    )
    program.addRows(
        len(rows),
        np.zeros(len(rows)),
        np.full(len(rows), INFINITE),
        3 * len(rows),
        (3 * rows).astype(np.int32),
        columns.T.astype(np.int32).ravel(),
        np.tile((1.0, 1.0, -1.0), len(rows)),
    )


def _add_columns(program: highspy.Highs, costs: Reals, low: Reals, high: Reals) -> None:
    count = len(costs)
    starts = np.zeros(count, np.int32)
    no_rows = np.zeros(0, np.int32)
    no_values = np.zeros(0)
    program.addCols(count, costs, low, high, 0, starts, no_rows, no_values)
