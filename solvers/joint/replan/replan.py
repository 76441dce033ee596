"""From what runs to what is wanted now, with few starts: the relaxation of moves, then integer counts step by step.

    1. relax   the moves of what is left to decide (`moves`), with columns of the pool and new ones priced for just that
    2. fix     whole parts; then GPUs that would keep a good part of themselves, then the largest fractions of new ones
    3. repeat  until nothing is wanted any more; prune what is superfluous

Where few GPUs are to be decided on, an integer program over the best columns does the same, and does it better.

The first step decides on nearly all GPUs, and costs nearly all that the result is dearer than its relaxation.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.joint.heuristics.diving import FixedGpus, complete_greedily
from solvers.joint.heuristics.fluid import is_too_fine
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.kernels.types import Effort, Reals
from solvers.joint.patterns.carried import is_met, rest_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.replan.moves import (
    Left,
    MoveMaster,
    MoveProgram,
    MoveSolution,
    price_moves,
)

_ROUNDING = 1e-6
"""A count this near below a whole number is taken for that number."""
_KEEP_UP = 0.2
"""A fraction of a GPU that is worth keeping: it runs already, and pruning removes what turns out superfluous."""
_MIN_KEPT_USE = 0.8
"""A GPU to which others leave less than this share of its worth is not kept for now."""
_STEP = 0.35
"""At a time, new GPUs are rounded up to at most this share of the GPUs that are left."""
_NEARLY_INTEGER = 0.9
"""Next to whole parts, new ones are only rounded up from here on."""
_MIN_USE = 0.95
"""A new GPU to which those just rounded up leave less than this share of its worth waits for the next step."""
_COLUMNS = 300
"""Columns that a step begins with, besides those in use."""
_MORE_COLUMNS = 60
"""Columns that the pool gives at a time while some have negative reduced costs,"""
_POOL_ROUNDS = 4
"""and how often at most, before pricing has its turn."""
_FEW_GPUS = 12.0
_FEW_SERVICES = 20
"""Up to here, in the first relaxation, an integer program over the best columns is solved instead."""
_FEW_ROUNDS = 6
"""Rounds of pricing, then; none where shares are so fine that pricing gets nowhere."""
_FIRST_ROUNDS, _ROUNDS = 2, 1
"""All other relaxations have these rounds of pricing, the first one and those after it; three each take half as long
again, for plans that are no cheaper. One when it is late."""
_PROGRAM_COLUMNS = 300
"""Columns of that integer program."""
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
    request: ReplanRequest,
    *,
    is_over: Callable[[], bool],
    is_late: Callable[[], bool] = never,
) -> dict[int, int]:
    """The GPUs by column for the demand; in haste when it is late, and completed greedily when it is over."""
    tools, demand = moves.tools, request.demand
    fixed = Counter(request.fixed)
    found: MoveSolution | None = None
    while not is_met((left := _left(moves, fixed, request)).demand):
        if is_over() and found is not None:
            fixed = complete_greedily(tools, demand, found.duals(), fixed)
            break
        is_first = found is None
        found = _relax(moves, left, found, request.start, is_late)
        if is_first and _is_small(found):
            integer = _integer_plan(moves, left, found, lambda: is_over() or is_late())
            if integer:
                fixed += integer
                continue
        step = _step(moves, left, found, is_first=is_first)
        # Nothing was fixed, so another relaxation would be the same one.
        if not step:
            fixed = complete_greedily(tools, demand, found.duals(), fixed)
            break
        fixed.update(step)
    return prune(tools, demand, fixed)


def _is_small(found: MoveSolution) -> bool:
    return bool(found.counts.sum() <= _FEW_GPUS and len(found.rps) <= _FEW_SERVICES)


def _integer_plan(
    moves: MoveMaster,
    left: Left,
    found: MoveSolution,
    is_over: Callable[[], bool],
) -> Counter[int]:
    """The best integer plan out of the columns at hand, those of the lowest reduced costs."""
    program = MoveProgram(moves, left)
    costs = program.reduced_costs(found)
    numbers = found.numbers[found.kept :]
    chosen = numbers[np.argsort(costs[numbers], kind="stable")[:_PROGRAM_COLUMNS]]
    program.use(chosen.tolist())
    return program.solve_whole(is_over)


def _left(moves: MoveMaster, fixed: Counter[int], request: ReplanRequest) -> Left:
    """What is still to be decided besides the GPUs that are fixed."""
    tools = moves.tools
    rest = rest_of(request.demand, tools.tables, tools.carried(fixed))
    used = moves.used(fixed)[:-1]
    decided = fixed - Counter(request.fixed)
    # A GPU can go on only while its type has stock, which new ones may have taken.
    has_stock = rest.stock[tools.pool.gpu_type] >= 1.0
    return Left(
        demand=rest,
        kinds=np.maximum(moves.running.counts - used, 0.0),
        keeps={
            number: count - decided[number]
            for number, count in request.keeps.items()
            if count > decided[number] and has_stock[number]
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
    program.use(start if before is None else _promising(moves, program, before))
    found = _with_pool(moves, program)
    for number in range(_rounds(tools, found, is_first=before is None)):
        # The first round prices for the present rest, which no column was made for: it is worth its time in any case.
        if number > 0 and is_late():
            break
        if not program.use(_priced(moves, left.demand, found)):
            break
        found = _with_pool(moves, program)
    return found


def _priced(moves: MoveMaster, demand: CoverDemand, found: MoveSolution) -> list[int]:
    """Numbers of the columns that pricing proposes, which are added to the others."""
    priced = price_moves(moves, demand, found, _CHEAP)
    patterns = [pattern for entry in priced for pattern in entry.patterns]
    columns = moves.tools.columns
    columns.add(patterns)
    moves.sync()
    return [columns.number(pattern) for pattern in patterns]


def _promising(
    moves: MoveMaster,
    program: MoveProgram,
    before: MoveSolution,
) -> list[int]:
    """Columns that the solution before used and that are possible still, and others by their reduced cost under it."""
    costs = program.reduced_costs(before)
    used = before.numbers[before.counts > 0.0]
    possible = used[np.isfinite(costs[used])].tolist()
    return [*possible, *moves.tools.pool.cheapest(costs, _COLUMNS, below=np.inf)]


def _rounds(tools: SearchContext, found: MoveSolution, *, is_first: bool) -> int:
    # With SM steps that fine, a round of pricing takes longer than all else.
    if is_too_fine(tools.tables):
        return 0
    if is_first and _is_small(found):
        return _FEW_ROUNDS
    return _FIRST_ROUNDS if is_first else _ROUNDS


def _with_pool(moves: MoveMaster, program: MoveProgram) -> MoveSolution:
    """The optimum with what the pool has to give."""
    found = program.solve()
    for _ in range(_POOL_ROUNDS):
        costs = program.reduced_costs(found)
        if not program.use(
            moves.tools.pool.cheapest(costs, _MORE_COLUMNS, below=-_MIN_GAIN),
        ):
            break
        found = program.solve()
    return found


def _step(
    moves: MoveMaster,
    left: Left,
    found: MoveSolution,
    *,
    is_first: bool,
) -> Counter[int]:
    """Whole parts, GPUs that run and should, and the largest fractions of new ones, each while its work is undone."""
    floors = np.floor(found.counts + _ROUNDING)
    plan = FixedGpus(moves.tools, left.demand, found.rps)
    for at in np.flatnonzero(floors > 0.0):
        plan.take(int(found.numbers[at]), int(floors[at]))
    fractions = np.maximum(found.counts - floors, 0.0)
    _round_up(plan, found, fractions, is_first=is_first)
    return plan.plan


def _round_up(
    plan: FixedGpus,
    found: MoveSolution,
    fractions: Reals,
    *,
    is_first: bool,
) -> None:
    """Take one GPU more of columns with large fractions, the largest first."""
    has_floors = bool(plan.plan)
    ups_left = max(1, int(_STEP * fractions.sum()))
    for at in np.argsort(-fractions, kind="stable"):
        fraction = float(fractions[at])
        number = int(found.numbers[at])
        if fraction <= _ROUNDING:
            break
        # Only in the first relaxation: in later ones, of a small rest, running GPUs are rounded like new ones.
        if is_first and at < found.kept and fraction > _KEEP_UP:
            if plan.use(number) >= _MIN_KEPT_USE:
                plan.take(number, 1)
            continue
        # Next to whole parts, fractions wait for the next relaxation, which is only of what the whole parts leave.
        is_next = ups_left > 0 and (not has_floors or fraction >= _NEARLY_INTEGER)
        if is_next and (not plan.plan or plan.use(number) >= _MIN_USE):
            plan.take(number, 1)
            ups_left -= 1
