"""From what runs to what is wanted now, with few starts: the relaxation of moves, then whole GPUs step by step.

    1. relax   the moves of what is left to decide (`moves`), with columns of the pool and new ones priced for just that
    2. fix     whole parts; then GPUs that would keep a good part of themselves, then the largest fractions of new ones
    3. repeat  until nothing is wanted any more; prune what is superfluous

Where few GPUs are left to decide, an integer program over the best columns does the same, and the better plan counts.

The first step decides on nearly all GPUs, and costs nearly all that the result is dearer than its relaxation.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.joint.heuristics.diving import FixedGpus, complete_greedily
from solvers.joint.heuristics.fluid import is_too_fine
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.kernels.types import Effort
from solvers.joint.patterns.carried import carried, is_met, rest_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.master_solution import Duals
from solvers.joint.replan.moves import (
    Left,
    MoveMaster,
    MoveProgram,
    MoveSolution,
    price_moves,
)

_WHOLE = 1e-6
"""A count this near below a whole number is taken for that number."""
_KEEP_UP = 0.2
"""A fraction of a GPU that is worth keeping: it runs already, and pruning removes what turns out superfluous."""
_MIN_KEPT_USE = 0.8
"""A GPU to which others leave less than this share of its worth is not kept for now."""
_STEP = 0.35
"""At a time, new GPUs are rounded up to at most this share of the GPUs that are left."""
_NEARLY_WHOLE = 0.9
"""Beside whole parts, new ones are only rounded up from here on."""
_MIN_USE = 0.95
"""A new GPU to which those just rounded up leave less than this share of its worth waits for the next step."""
_COLUMNS = 300
"""Columns that a step begins with, beside those in use."""
_MORE_COLUMNS = 60
_POOL_ROUNDS = 4
_FEW_GPUS = 12.0
_FEW_SERVICES = 20
"""Up to here, in the first relaxation, all whole plans of the best columns are looked through too."""
_FEW_ROUNDS = 6
"""Of pricing, then; none where shares are so fine that pricing gets nowhere."""
_ROUNDS = 3
"""All other relaxations have so many rounds of pricing; one when it is late."""
_WHOLE_COLUMNS = 300
_MIN_GAIN = 1e-6
"""USD per hour."""
_CHEAP = Effort(2, 0, 0, 2e-3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplanRequest:
    """What is asked of one re-planning."""

    demand: CoverDemand
    keeps: Mapping[int, int]
    """Column number → running GPUs that may keep their pattern or be given up."""
    fixed: Mapping[int, int]
    """Column number → running GPUs that go on in any case, within stock and most replicas."""
    start: Sequence[int]
    """Columns to begin with, for new GPUs."""


def replan(
    moves: MoveMaster,
    wish: ReplanRequest,
    *,
    is_over: Callable[[], bool],
    is_late: Callable[[], bool] = never,
) -> dict[int, int]:
    """The GPUs by column for the demand; in haste when it is late, and completed greedily when it is over."""
    tools, demand = moves.tools, wish.demand
    fixed = Counter(wish.fixed)
    found: MoveSolution | None = None
    whole: Counter[int] = Counter()
    while True:
        taken = carried(tools.tables, tools.columns, fixed)
        left = _left(
            moves,
            rest_of(demand, tools.tables, taken),
            fixed - Counter(wish.fixed),
            wish,
        )
        if is_met(left.demand):
            break
        if is_over() and found is not None:
            fixed = complete_greedily(tools, demand, _duals(found), fixed)
            break
        is_first = found is None
        found = _relax(moves, left, found, wish.start, is_late)
        if is_first and _is_small(found):
            whole = fixed + _whole(moves, left, found, lambda: is_over() or is_late())
        step = _fixed(moves, left, found, is_first=is_first)
        if not step:
            fixed = complete_greedily(tools, demand, _duals(found), fixed)
            break
        fixed.update(step)
    if whole and moves.value(demand, whole) <= moves.value(demand, fixed):
        fixed = whole
    return prune(tools.tables, tools.columns, demand, fixed)


def _is_small(found: MoveSolution) -> bool:
    return bool(found.counts.sum() <= _FEW_GPUS and len(found.rps) <= _FEW_SERVICES)


def _whole(
    moves: MoveMaster, left: Left, found: MoveSolution, is_over: Callable[[], bool]
) -> Counter[int]:
    """The best whole plan out of the columns at hand, those with prospects."""
    program = MoveProgram(moves, left)
    costs = program.reduced_costs(found)
    numbers = found.numbers[found.kept :]
    program.use(
        numbers[np.argsort(costs[numbers], kind="stable")[:_WHOLE_COLUMNS]].tolist()
    )
    return program.solve_whole(is_over)


def _left(
    moves: MoveMaster,
    rest: CoverDemand,
    decided: Mapping[int, int],
    wish: ReplanRequest,
) -> Left:
    used = moves.used(Counter(decided) + Counter(wish.fixed))[:-1]
    left = {
        number: count - decided.get(number, 0) for number, count in wish.keeps.items()
    }
    gpu_type = moves.tools.pool.gpu_type
    return Left(
        demand=rest,
        kinds=np.maximum(moves.running.counts - used, 0.0),
        keeps={
            number: count
            for number, count in left.items()
            if count > 0 and rest.stock[gpu_type[number]] >= 1.0
        },
    )


def _relax(
    moves: MoveMaster,
    left: Left,
    before: MoveSolution | None,
    start: Sequence[int],
    is_late: Callable[[], bool],
) -> MoveSolution:
    """The relaxation of what is left, from the columns of the solution before."""
    tools = moves.tools
    program = MoveProgram(moves, left)
    if before is None:
        program.use(start)
    else:
        costs = program.reduced_costs(before)
        used = [
            int(number)
            for number in before.numbers[before.counts > 0.0]
            if np.isfinite(costs[number])
        ]
        program.use([*used, *tools.pool.cheapest(costs, _COLUMNS, below=np.inf)])
    found = _with_pool(moves, program)
    for number in range(_rounds(tools, found, is_first=before is None)):
        if number > 0 and is_late():
            break
        priced = price_moves(moves, left.demand, found, _CHEAP)
        patterns = list(
            dict.fromkeys(pattern for entry in priced for pattern in entry.patterns)
        )
        tools.columns.add(patterns)
        moves.sync()
        if not program.use(map(tools.columns.number, patterns)):
            break
        found = _with_pool(moves, program)
    return found


def _rounds(tools: SearchContext, found: MoveSolution, *, is_first: bool) -> int:
    if is_too_fine(tools.tables):
        return 0
    if is_first and _is_small(found):
        return _FEW_ROUNDS
    return _ROUNDS


def _with_pool(moves: MoveMaster, program: MoveProgram) -> MoveSolution:
    """The optimum with what the pool has to give."""
    found = program.solve()
    for _ in range(_POOL_ROUNDS):
        costs = program.reduced_costs(found)
        if not program.use(
            moves.tools.pool.cheapest(costs, _MORE_COLUMNS, below=-_MIN_GAIN)
        ):
            break
        found = program.solve()
    return found


def _fixed(
    moves: MoveMaster, left: Left, found: MoveSolution, *, is_first: bool
) -> Counter[int]:
    """Whole parts, GPUs that run and should, and the largest fractions of new ones, each while its work is undone."""
    whole = np.floor(found.counts + _WHOLE)
    fractions = np.maximum(found.counts - whole, 0.0)
    taking = FixedGpus(moves.tools, left.demand, found.rps)
    for at in np.flatnonzero(whole > 0.0):
        taking.take(int(found.numbers[at]), int(whole[at]))
    has_whole = bool(taking.plan)
    ups_left = max(1, int(_STEP * fractions.sum()))
    for at in np.argsort(-fractions, kind="stable"):
        fraction, number = float(fractions[at]), int(found.numbers[at])
        if fraction <= _WHOLE:
            break
        if is_first and at < found.kept and fraction > _KEEP_UP:
            if taking.use(number) >= _MIN_KEPT_USE:
                taking.take(number, 1)
            continue
        is_next = ups_left > 0 and (not has_whole or fraction >= _NEARLY_WHOLE)
        if is_next and (not taking.plan or taking.use(number) >= _MIN_USE):
            taking.take(number, 1)
            ups_left -= 1
    return taking.plan


def _duals(found: MoveSolution) -> Duals:
    return Duals(
        rps=found.rps, presence=found.presence, stock=found.stock, replicas_value=0.0
    )
