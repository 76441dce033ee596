"""Whole plans from the linear relaxation: floor, dive, prune, then ruin and recreate for as long as there is time."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from solvers.joint.columns import Columns
from solvers.joint.dive import complete_greedily, dive, floors
from solvers.joint.generate import Relaxation
from solvers.joint.master import Demand
from solvers.joint.pool import Pool
from solvers.joint.pricing import Pricer
from solvers.joint.prune import prune
from solvers.joint.residual import Kit, carried
from solvers.joint.ruin import choose, recreate
from solvers.joint.tables import Reals, Tables

_SIZES = (3, 10)
"""GPUs that are taken out at a time, least and most."""


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
) -> IntegerPlan:
    """The best plan found until `is_over`; each better one is reported at once."""
    kit = Kit(tables, pricer, columns, Pool(tables, columns))
    duals = relaxation.solution.duals
    whole = floors(relaxation.solution.counts, relaxation.columns)
    search = _Search(kit, demand, on_better)
    search.offer(complete_greedily(kit, demand, duals, whole))
    if not is_over():
        search.offer(dive(kit, demand, duals, whole, is_over))
    rng = np.random.default_rng(seed)
    while search.plan and not is_over():
        size = int(rng.integers(_SIZES[0], _SIZES[1] + 1))
        removed = choose(kit, demand, duals, search.plan, size, rng)
        found = recreate(kit, demand, duals, search.plan, removed)
        if found is not None:
            search.offer(found)
    return search.best


class _Search:
    """The best plan so far."""

    def __init__(self, kit: Kit, demand: Demand, on_better: Callable[[IntegerPlan], None]) -> None:
        self._kit, self._demand, self._on_better = kit, demand, on_better
        self.plan: Counter[int] = Counter()
        self.best = self._state(self.plan)

    def offer(self, plan: Mapping[int, int]) -> None:
        """Keep the plan if it is better, less what is superfluous in it."""
        pruned = Counter(prune(self._kit.tables, self._kit.columns, self._demand, plan))
        stated = self._state(pruned)
        if self._key(stated) < self._key(self.best):
            self.plan, self.best = pruned, stated
            self._on_better(stated)

    def _state(self, counts: Mapping[int, int]) -> IntegerPlan:
        taken = carried(self._kit.tables, self._kit.columns, counts)
        short = self._demand.rate - taken.rps
        return IntegerPlan(
            counts=dict(sorted(counts.items())),
            cost_usd_per_hour=taken.cost,
            shortage_rps=np.where(short > _ROUNDING * self._demand.rate, short, 0.0),
            replicas_missing=np.maximum(self._demand.fewest - taken.replicas, 0.0),
        )

    def _key(self, plan: IntegerPlan) -> tuple[float, float]:
        """First what is not served, then the cost."""
        demand = self._demand
        unserved = plan.shortage_rps @ demand.shortage_price + plan.replicas_missing @ demand.missing_price
        return round(float(unserved), 6), plan.cost_usd_per_hour


_ROUNDING = 1e-9
