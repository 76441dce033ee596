"""From a fractional plan to a whole one: fix what is whole, price anew for what is left, fix again."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from solvers.joint.master import Demand, Duals
from solvers.joint.residual import Kit, Part, carried, is_met, relax_rest, rest_of
from solvers.joint.small_program import solve_small_program
from solvers.joint.tables import Reals

_WHOLE = 1e-6
"""A count this near below a whole number is taken for that number."""
_NEARLY_WHOLE = 0.9
_STEPS_PER_DIVE = 0.1
"""Of the GPUs that are left, at most so many are rounded up at a time."""
_LEAST_USE = 0.9
"""Of its worth: a column that the others just rounded up leave less to do waits for the next step."""
_ROUNDS = 8
_START_COLUMNS = 500
_FEW_GPUS = 5.0
"""Left over: from here on the integer program is quicker than diving and better."""
_PROGRAM_COLUMNS = 400
_PROGRAM_NODES = 5000
_PROGRAM_WIDTH = 6


def floors(counts: Reals, numbers: Sequence[int]) -> Counter[int]:
    """Column number → whole part of its count."""
    whole = np.floor(counts + _WHOLE).astype(int)
    return Counter({number: int(count) for number, count in zip(numbers, whole, strict=True) if count > 0})


def complete_greedily(kit: Kit, demand: Demand, duals: Duals, counts: Mapping[int, int]) -> Counter[int]:
    """The counts and, one by one, the GPUs that earn most per USD of what is still wanted."""
    plan, pool = Counter(counts), kit.pool
    services = len(demand.rate)
    while True:
        rest = rest_of(demand, kit.tables, carried(kit.tables, kit.columns, plan))
        if is_met(rest):
            return plan
        # What the duals value at nothing must be covered too.
        weight = np.append(np.maximum(duals.rps, 1e-6 * rest.shortage_price), 0.0)
        missing = np.append(np.where(rest.fewest > 0.0, rest.missing_price, 0.0), 0.0)
        worth = (weight[pool.service] * pool.useful(rest) + missing[pool.service]).sum(axis=1)
        assert len(weight) == services + 1
        score = np.where(pool.possible(rest), worth / np.maximum(pool.price, 1e-9), 0.0)
        best = int(score.argmax()) if len(score) else -1
        if best < 0 or score[best] <= 0.0:
            return plan
        plan[best] += 1


def dive(
    kit: Kit, demand: Demand, duals: Duals, counts: Mapping[int, int], is_over: Callable[[], bool]
) -> Counter[int]:
    """The counts, completed to a whole plan."""
    plan = Counter(counts)
    start: Sequence[int] = ()
    while not is_over():
        rest = rest_of(demand, kit.tables, carried(kit.tables, kit.columns, plan))
        if is_met(rest):
            return plan
        cheap = kit.pool.cheapest(kit.pool.reduced_costs(rest, duals), _START_COLUMNS)
        part = relax_rest(kit, rest, [*start, *cheap], _ROUNDS)
        duals = part.solution.duals
        if part.solution.counts.sum() <= _FEW_GPUS:
            last = finish(kit, rest, part)
            if last is not None:
                plan.update(last)
                return plan
        fixed = _fixed(kit, rest, part)
        if not fixed:
            break
        plan.update(fixed)
        start = [number for number, count in zip(part.columns, part.solution.counts, strict=True) if count > 0.0]
    return complete_greedily(kit, demand, duals, plan)


def finish(kit: Kit, rest: Demand, part: Part) -> Counter[int] | None:
    """The integer program over the columns that are cheapest under the duals of the part."""
    costs = kit.pool.reduced_costs(rest, part.solution.duals)
    numbers = kit.pool.cheapest(costs, _PROGRAM_COLUMNS, below=np.inf)
    greedy = complete_greedily(kit, rest, part.solution.duals, {})
    below = carried(kit.tables, kit.columns, greedy).cost
    return solve_small_program(
        kit.pool, rest, part.solution.duals, numbers, below=below, nodes=_PROGRAM_NODES, width=_PROGRAM_WIDTH
    )


def _fixed(kit: Kit, rest: Demand, part: Part) -> Counter[int]:
    """Whole parts, and the largest fractions as long as each finds enough of its work undone."""
    counts = part.solution.counts
    plan = floors(counts, part.columns)
    fractions = counts - np.floor(counts + _WHOLE)
    most = max(1, int(_STEPS_PER_DIVE * fractions.sum()))
    if plan:
        fractions[fractions < _NEARLY_WHOLE] = 0.0
    for at in np.argsort(-fractions, kind="stable")[:most]:
        if fractions[at] <= _WHOLE:
            break
        number = part.columns[at]
        if not plan or _use(kit, rest, part, plan, number) >= _LEAST_USE:
            plan[number] += 1
    return plan


def _use(kit: Kit, rest: Demand, part: Part, plan: Mapping[int, int], number: int) -> float:
    """Part of a column's worth that is left beside the plan; 0 where it is not possible any more."""
    column, prices = kit.columns[number], part.solution.duals.rps
    left = rest_of(rest, kit.tables, carried(kit.tables, kit.columns, plan))
    gpu_type = kit.tables.modes[column.pattern.mode].gpu_type
    if left.stock[gpu_type] < 1.0 or (left.most[column.service] < 1.0).any():
        return 0.0
    whole = float(prices[column.service] @ np.minimum(column.capacity, rest.rate[column.service]))
    now = float(prices[column.service] @ np.minimum(column.capacity, left.rate[column.service]))
    return now / whole if whole > 0.0 else 1.0
