"""Whole plans from the linear relaxation: floor, dive, prune, then ruin and recreate for as long as there is time."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from solvers.joint.columns import Columns
from solvers.joint.dive import Pace, Search, complete_greedily, dive, floors
from solvers.joint.generate import Relaxation
from solvers.joint.master import Demand
from solvers.joint.pool import Pool
from solvers.joint.pricing import Pricer
from solvers.joint.prune import prune
from solvers.joint.residual import Kit, carried, rest_of
from solvers.joint.ruin import choose, recreate
from solvers.joint.tables import Reals, Tables

_PACES = (
    Pace(rounds=4, columns=200, few_gpus=5.0, spread=0.0),
    Pace(rounds=8, columns=200, few_gpus=5.0, spread=0.0),
)
"""One dive for a plan soon, one for a good plan. At 1000 GPUs and 100 services 4 rounds end at 758 USD per hour and
8 at 754 in twice the time; 2 end above 800."""
_SIZES = (3, 10)
"""GPUs that are taken out at a time, least and most."""
_WALK = 0.004
"""Of its cost: a plan so much dearer than the best is a place to go on from. Without that the search stood still after
the second step (100 GPUs, 30 services: 86.25 against 85.04 USD per hour in the same time)."""
NOTHING = 1e-9
"""Of a rate: less than this is not short."""
_DECIMALS = 6
"""Of USD per hour, below which two shortages are the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntegerPlan:
    """So many GPUs of each column."""

    counts: Mapping[int, int]
    """Column number → GPUs, > 0."""
    cost_usd_per_hour: float
    """Of the GPUs with their watts; shortages have no price here."""
    shortage_rps: Reals
    """(S,) what is not served."""
    replicas_missing: Reals
    """(S,) of the fewest."""


def state_plan(tables: Tables, columns: Columns, demand: Demand, counts: Mapping[int, int]) -> IntegerPlan:
    """These GPUs with what they cost and what they leave short."""
    taken = carried(tables, columns, counts)
    short = demand.rate - taken.rps
    return IntegerPlan(
        counts=dict(sorted(counts.items())),
        cost_usd_per_hour=taken.cost,
        shortage_rps=np.where(short > NOTHING * demand.rate, short, 0.0),
        replicas_missing=np.maximum(demand.fewest - taken.replicas, 0.0),
    )


def shortage_cost(demand: Demand, plan: IntegerPlan) -> float:
    """USD per hour of what the plan leaves short, at the demand's prices."""
    return float(plan.shortage_rps @ demand.shortage_price + plan.replicas_missing @ demand.missing_price)


def ignore(plan: IntegerPlan) -> None:
    """For callers who want the last plan only."""


def solve_integer(
    tables: Tables,
    demand: Demand,
    pricer: Pricer,
    columns: Columns,
    relaxation: Relaxation,
    *,
    seed: int,
    is_over: Callable[[], bool],
    on_better: Callable[[IntegerPlan], None] = ignore,
    first: Mapping[int, int] = MappingProxyType({}),
) -> IntegerPlan:
    """The best plan found until `is_over`; each better one is reported at once. `first`: GPUs of a plan at hand."""
    kit = Kit(tables, pricer, columns, Pool(tables, columns))
    search = Search(kit, demand, relaxation.solution.duals, np.random.default_rng(seed), is_over)
    whole = floors(relaxation.solution.counts, relaxation.columns)
    best = _Best(kit, demand, on_better)
    if first:
        best.offer(complete_greedily(kit, demand, search.duals, first))
    best.offer(complete_greedily(kit, demand, search.duals, whole))
    taken = carried(tables, columns, whole)
    rest = rest_of(demand, tables, taken)
    for pace in _PACES:
        if not is_over():
            found = dive(search, rest, pace, below=best.cost - taken.cost if first else np.inf)
            if found is not None:
                best.offer(whole + found)
    _improve(search, best)
    return best.stated


def _improve(search: Search, best: "_Best") -> None:
    """Ruin and recreate until it is over. Plans a little dearer than the best one may be walked through."""
    current = best.plan
    while current and not search.is_over():
        removed = choose(search, current, int(search.rng.integers(_SIZES[0], _SIZES[1] + 1)))
        slack = best.cost * (1.0 + _WALK) - best.cost_of(current)
        other = recreate(search, current, removed, slack)
        if other is not None:
            current = best.offer(other)


class _Best:
    """The best plan so far."""

    def __init__(self, kit: Kit, demand: Demand, on_better: Callable[[IntegerPlan], None]) -> None:
        self._kit, self._demand, self._on_better = kit, demand, on_better
        self.plan: Counter[int] = Counter()
        self.stated = state_plan(self._kit.tables, self._kit.columns, self._demand, self.plan)

    @property
    def cost(self) -> float:
        """USD per hour, with what is short at its prices."""
        return shortage_cost(self._demand, self.stated) + self.stated.cost_usd_per_hour

    def cost_of(self, plan: Counter[int]) -> float:
        """The same of another plan."""
        stated = state_plan(self._kit.tables, self._kit.columns, self._demand, plan)
        return shortage_cost(self._demand, stated) + stated.cost_usd_per_hour

    def offer(self, plan: Mapping[int, int]) -> Counter[int]:
        """The plan less what is superfluous in it; kept and reported if it is better."""
        pruned = Counter(prune(self._kit.tables, self._kit.columns, self._demand, plan))
        stated = state_plan(self._kit.tables, self._kit.columns, self._demand, pruned)
        if self._key(stated) < self._key(self.stated):
            self.plan, self.stated = pruned, stated
            self._on_better(stated)
        return pruned

    def _key(self, plan: IntegerPlan) -> tuple[float, float]:
        """First what is not served, then the cost."""
        return round(shortage_cost(self._demand, plan), _DECIMALS), plan.cost_usd_per_hour
