"""What the kernels pass to each other: tasks, cells and working memory, as tuples that numba can take apart."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class Law(NamedTuple):
    """The capacity law: utilisation over the ratio SLO / execution time, one row per (percentile, batch)."""

    ratios: Reals
    """(R,) ascending."""
    utilisation: Reals
    """(L, R)"""


class GpuMode(NamedTuple):
    """One GPU type at one clock, with its C candidates."""

    gpu_type: int
    """Position of the type in the problem."""
    clock_mhz: float
    steps: int
    """SM steps of a whole GPU: the coarsest that every candidate takes a whole number of."""
    max_replicas: int
    memory_mib: float
    power_w: float
    """What replicas may draw: the cap less idle watts."""
    price: float
    """USD per hour of the GPU while idle."""
    watt_price: float
    """USD per hour of one watt."""
    launch_factor: Reals
    """(max_replicas + 1,) growth of the launch term by the number of replicas on the GPU."""
    # The arrays below have one entry per candidate, sorted by service and within it by width: kernels rely on that.
    service: Numbers
    row: Numbers
    """(C,) position among the network's operating rows on the type."""
    width: Numbers
    """(C,) SM steps."""
    batch: Reals
    memory: Reals
    power: Reals
    pressure: Reals
    alone_ms: Reals
    """(C,) transfer + run time: what does not depend on the number of neighbours, without any pressure."""
    launch_ms: Reals
    growth_ms: Reals
    """(C,) run time × sensitivity: ms per unit of the neighbours' pressure."""
    overload_ms: Reals
    """(C,) run time × overload: ms per unit by which the neighbours' pressure exceeds `room`."""
    room: Reals
    """(C,) what its own pressure leaves of a whole GPU."""
    law: Numbers
    """(C,) row of the capacity law."""
    slo_ms: Reals
    max_rps: Reals
    """(C,) that counts of what a candidate can carry, so that no loss takes too much; infinite where all of it does."""
    may_idle: Flags
    """(C,) whether its presence counts even where it can carry nothing: services with a least number of replicas."""
    shares_label: Flags
    """(S, S) which services may not share a GPU; (0, 0) where all may."""


class Worth(NamedTuple):
    """What a replica earns under the prices of the master problem."""

    rate: Reals
    """(S,) rps that are still wanted of each service; more than that earns nothing."""
    rps: Reals
    """(S,) USD per hour of one rps."""
    bonus: Reals
    """(C,) USD per hour of a candidate's mere presence: duals of replica counts, branching rows and migration."""
    # Empty arrays instead of None: numba compiles a kernel again for each combination of argument types.
    edges: Reals = np.zeros(0)
    """(B,) parts of the rate; how many of them a replica's capacity exceeds decides what cuts add."""
    stairs: Reals = np.zeros((0, 0))
    """(S, B + 1) USD per hour, ascending: what cuts pay. Read only where there are edges."""


MEMORY, POWER, PRESSURE = 0, 1, 2
"""Positions of the side limits among the multipliers."""


class Effort(NamedTuple):
    """How hard pricing tries in each cell."""

    steps: int
    """Improvements of the multipliers."""
    nodes: int
    """Limit to the search in a cell of final width; 0 = do not search."""
    halvings: int
    """A cell's range of pressure is halved this number of times at most."""
    tolerance: float
    """Relative part of the threshold by which a pattern must beat it. It costs the bound as much."""


class PricingTask(NamedTuple):
    """One mode under the present prices: find patterns worth more than the threshold, and bound all others."""

    mode: GpuMode
    law: Law
    worth: Worth
    threshold: float
    """USD per hour that a GPU of the mode costs, its duals included."""
    effort: Effort


class PricingCell(NamedTuple):
    """All patterns of one mode with `replicas` replicas and so much pressure in all."""

    replicas: int
    low: float
    high: float
    """The patterns' summed pressure lies in [low, high]."""


class PricingCells(NamedTuple):
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


class PricedPatterns(NamedTuple):
    """Patterns that beat the threshold: at most one per root cell."""

    items: Numbers
    """(F, N) candidates."""
    size: Numbers
    """(F,) how many of them; 0 = none was found in that cell."""
    worth: Reals
    """(F,)"""
