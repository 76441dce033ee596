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

from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.relaxation.highs import INFINITE, is_solved, make_program

PARTS: Final = 60
"""The rate is cut into so many parts: halves, thirds, quarters, fifths and sixths are whole numbers of them."""
_EPSILON = 1e-5
"""Above what plan checks tolerate: a replica that lacks less of the rate counts as carrying all."""
EDGES: Final[Reals] = np.arange(1.0, PARTS + 1.0) / (PARTS * (1.0 + _EPSILON))
"""(B,) parts of the rate; a replica of w parts exceeds w − 1 of them."""
_MIN_VIOLATION = 1e-3
_WHOLE = 1e-7
_BEFORE = np.maximum(0, np.arange(1, PARTS + 2) - np.arange(1, PARTS + 2)[:, None])
"""(w − 1, r − 1) what is left of r parts."""


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
    used = np.flatnonzero(replicas > _WHOLE).astype(np.int32)
    if not len(used) or (np.abs(replicas - np.round(replicas)) <= _WHOLE).all():
        return None
    program = _program(used, replicas[used])
    if not is_solved(program):
        return None
    potential = np.array(program.getSolution().col_value)[len(used) :]
    if (
        potential[-1] - potential[0] <= 0.5
        or replicas @ steps(potential) >= 1.0 - _MIN_VIOLATION
    ):
        return None
    return potential


def _program(used: Numbers, replicas: Reals) -> highspy.Highs:
    """min Σ X F over F (of the used levels) and g, with F_w + g(r − w) − g(r) ≥ 0."""
    count, ends = len(used), PARTS + 1
    left = _BEFORE[used]
    rows = np.arange(count * ends)
    columns = np.stack(
        (
            np.repeat(np.arange(count), ends),
            count + left.ravel(),
            np.tile(count + 1 + np.arange(ends), count),
        )
    )
    program = make_program()
    zeros, ones = np.zeros(ends), np.ones(ends)
    low, high = np.append(zeros, 1.0), np.concatenate((zeros[:1], ones))
    none = np.zeros(0, np.int32), np.zeros(0)
    program.addCols(
        count,
        replicas,
        np.zeros(count),
        np.ones(count),
        0,
        np.zeros(count, np.int32),
        *none,
    )
    program.addCols(
        ends + 1, np.zeros(ends + 1), low, high, 0, np.zeros(ends + 1, np.int32), *none
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
    return program
