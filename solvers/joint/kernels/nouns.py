"""What the kernels pass to each other: tasks, cells and working memory, as tuples that numba can take apart."""

from typing import NamedTuple

from solvers.joint.tables import Law, Mode, Numbers, Reals, Worth

MEMORY, POWER, PRESSURE = 0, 1, 2
"""Positions of the side limits among the multipliers."""


class Effort(NamedTuple):
    """How hard pricing tries in each cell."""

    steps: int
    """Improvements of the multipliers."""
    nodes: int
    """Of the search in a cell of final width; 0 = do not search."""
    halvings: int
    """Of a cell's range of pressure."""
    tolerance: float
    """Relative part of the threshold by which a pattern must beat it. It costs the bound as much."""


class Task(NamedTuple):
    """One mode under the present prices: find patterns worth more than the threshold, and bound all others."""

    mode: Mode
    law: Law
    worth: Worth
    threshold: float
    """USD per hour that a GPU of the mode costs, its duals included."""
    effort: Effort


class Cell(NamedTuple):
    """All patterns of one mode with so many replicas and so much pressure in all."""

    replicas: int
    low: float
    high: float
    """The patterns' summed pressure lies in [low, high]."""


class Cells(NamedTuple):
    """The root cells of one mode: K intervals of pressure for each number of replicas, end to end one slot each."""

    edges: Reals
    """(N + 1, K + 1) of pressure by number of replicas."""
    capacities: Reals
    """(N + 1, K, C) rps of each candidate at the optimistic end."""
    multipliers: Reals
    """(N + 1, K, 3) to start from, improved in place."""


class Scratch(NamedTuple):
    """Working memory of one thread; nothing in it outlives a call."""

    ids: Numbers
    """(C,) candidates of the cell at hand."""
    value: Reals
    """(C,) what each is worth at the cell's optimistic end."""
    adjusted: Reals
    """(C,) the same less the multipliers' charges."""
    best: Numbers
    """(U + 1, N) positions of the N best services of each width."""
    filled: Numbers
    """(U + 1,)"""
    short: Numbers
    """(M,) shortlist: positions of candidates that a relaxed optimum may need, by service."""
    first: Numbers
    """(S + 1,) where each service begins among the positions of the dynamic program."""
    table: Reals
    """(S + 1, N + 1, U + 1) of the dynamic program."""
    solution: Numbers
    """(N,) candidates of its optimum."""
    pool: Numbers
    """Survivors of nested cells, end to end."""


class Found(NamedTuple):
    """Patterns that beat the threshold: at most one per root cell."""

    items: Numbers
    """(F, N) candidates."""
    size: Numbers
    """(F,) how many of them; 0 = none was found in that cell."""
    worth: Reals
    """(F,)"""
