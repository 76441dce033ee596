"""Whole plans from the linear relaxation: floor, dive, prune, then ruin and recreate for as long as there is time."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from solvers.joint.heuristics.annealing import Annealer
from solvers.joint.heuristics.diving import (
    DiveContext,
    DiveEffort,
    complete_greedily,
    dive,
    floors,
)
from solvers.joint.heuristics.gpu_elimination import (
    eliminate_by_annealing,
    eliminate_gpus,
    soft_demand,
)
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.heuristics.ruin_and_recreate import choose, recreate
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import carried, rest_of
from solvers.joint.patterns.columns import Columns
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables
from solvers.joint.relaxation.column_generation import Relaxation

_PACE = DiveEffort(rounds=8, min_gain=1e-2, columns=200, few_gpus=5.0, spread=0.0)
_THOROUGH = _PACE._replace(rounds=16, min_gain=0.0)
_SOME_GPUS = 40
"""Up to so many, the solved relaxation is dived from too: it takes little time then, and single GPUs count."""
_BETTER = 1.5e-3
"""And the one that costs so much less than that of the last dive, however many GPUs there are."""
_FEW_GPUS = 40
"""From so many on, GPUs are eliminated from plans: of fewer, each is too great a part for another one to go."""
_SIZES = (3, 10)
"""GPUs that are taken out at a time, least and most."""
_WALK = 0.004
"""Of its cost: a plan so much dearer than the best is a place to go on from, lest the search stand still."""
_VAIN = 3
"""Tries to do with a GPU less, in a row."""
_STEPS = 40
"""Steps of a walk before eliminating GPUs has its turn again."""
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


def state_plan(
    tables: Tables, columns: Columns, demand: CoverDemand, counts: Mapping[int, int]
) -> IntegerPlan:
    """These GPUs with what they cost and what they leave short."""
    taken = carried(tables, columns, counts)
    short = demand.rate - taken.rps
    return IntegerPlan(
        counts=dict(sorted(counts.items())),
        cost_usd_per_hour=taken.cost,
        shortage_rps=np.where(short > NOTHING * demand.rate, short, 0.0),
        replicas_missing=np.maximum(demand.fewest - taken.replicas, 0.0),
    )


def shortage_cost(demand: CoverDemand, plan: IntegerPlan) -> float:
    """USD per hour of what the plan leaves short, at the demand's prices."""
    return float(
        plan.shortage_rps @ demand.shortage_price
        + plan.replicas_missing @ demand.missing_price
    )


def ignore(plan: IntegerPlan) -> None:
    """For callers who want the last plan only."""


class IntegerPlans:
    """Whole plans for one demand, each step better than the last; a relaxation says what to begin from."""

    def __init__(
        self,
        tools: SearchContext,
        demand: CoverDemand,
        *,
        seed: int,
        on_better: Callable[[IntegerPlan], None] = ignore,
        first: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`on_better` gets each better plan at once; `first`: GPUs of a plan at hand."""
        self._first = first
        self._tools, self._demand = tools, demand
        self._rng = np.random.default_rng(seed)
        self._best = _Best(tools, demand, on_better)
        self.has_dived, self._dived_from = False, np.inf
        self._annealer: Annealer | None = None

    @property
    def best(self) -> IntegerPlan:
        """The best plan so far."""
        return self._best.stated

    def sketch(self, relaxation: Relaxation) -> None:
        """Whole parts, and one by one what earns most: a plan at once, if a dear one."""
        whole = self._whole(relaxation)
        for counts in (self._first, whole) if self._first else (whole,):
            self._best.offer(
                complete_greedily(
                    self._tools, self._demand, relaxation.solution.duals, counts
                )
            )

    def dive(
        self,
        relaxation: Relaxation,
        is_over: Callable[[], bool],
        pace: DiveEffort = _PACE,
        *,
        is_late: Callable[[], bool] = never,
    ) -> None:
        """Whole parts, and a dive for the rest; in haste when it is late."""
        # A GPU of each column stays open: the less a service lacks of whole GPUs, the harder that is to fit.
        whole = self._whole(relaxation)
        whole -= Counter(list(whole))
        counts = relaxation.solution.counts
        used = [
            number
            for number, count in zip(relaxation.columns, counts, strict=True)
            if count > 0.0
        ]
        taken = carried(self._tools.tables, self._tools.columns, whole)
        rest = rest_of(self._demand, self._tools.tables, taken)
        below = (
            self._best.cost - taken.cost if self._first or self.has_dived else np.inf
        )
        found = dive(
            self._search(relaxation, is_over),
            rest,
            pace,
            below=below,
            start=used,
            is_late=is_late,
        )
        if found is not None:
            self._best.offer(whole + found)
        self.has_dived, self._dived_from = True, relaxation.solution.objective

    def improve(self, relaxation: Relaxation, is_over: Callable[[], bool]) -> None:
        """Until it is over, squeeze what serves everything, and in between ruin and recreate."""
        search, best, is_first = self._search(relaxation, is_over), self._best, True
        for pace in (_PACE, _THOROUGH):
            is_better = (
                relaxation.solution.objective < (1.0 - _BETTER) * self._dived_from
            )
            if (
                is_better or sum(best.plan.values()) < _SOME_GPUS
            ) and not search.is_over():
                self.dive(relaxation, is_over, pace)
        while best.plan and not search.is_over():
            can_eliminate = best.is_full and sum(best.plan.values()) >= _FEW_GPUS
            if can_eliminate and not any(self._tools.tables.slicing):
                self._eliminate_by_annealing(search)
            found = (
                eliminate_gpus(search, best.plan, is_first=is_first)
                if can_eliminate
                else None
            )
            is_first = found is not None
            if found is None:
                _walk(search, best)
            else:
                best.offer(found)

    def _eliminate_by_annealing(self, search: DiveContext) -> None:
        """As many GPUs at a time as goes well, until some tries with a single one were vain."""
        soft = soft_demand(search)
        if self._annealer is None:
            self._annealer = Annealer(self._tools.tables, soft)
        vain, gpus = 0, 1
        while vain < _VAIN and not search.is_over():
            found = eliminate_by_annealing(
                search,
                self._annealer,
                soft,
                self._best.plan,
                gpus=gpus,
                is_first=vain == 0,
            )
            before = self._best.cost
            if found is not None:
                self._best.offer(found)
            if self._best.cost < before:
                vain, gpus = 0, 2 * gpus
            else:
                vain, gpus = vain + (gpus == 1), max(1, gpus // 2)

    def _whole(self, relaxation: Relaxation) -> Counter[int]:
        self._tools.pool.sync()
        return floors(relaxation.solution.counts, relaxation.columns)

    def _search(
        self, relaxation: Relaxation, is_over: Callable[[], bool]
    ) -> DiveContext:
        self._tools.pool.sync()
        return DiveContext(
            self._tools, self._demand, relaxation.solution.duals, self._rng, is_over
        )


def _walk(search: DiveContext, best: "_Best") -> None:
    """Some steps of ruin and recreate. Plans a little dearer than the best one may be walked through."""
    current = best.plan
    for _ in range(_STEPS):
        if search.is_over():
            return
        removed = choose(
            search, current, int(search.rng.integers(_SIZES[0], _SIZES[1] + 1))
        )
        slack = best.cost * (1.0 + _WALK) - best.cost_of(current)
        other = recreate(search, current, removed, slack)
        if other is not None:
            current = best.offer(other)


class _Best:
    """The best plan so far."""

    def __init__(
        self,
        tools: SearchContext,
        demand: CoverDemand,
        on_better: Callable[[IntegerPlan], None],
    ) -> None:
        self._tools, self._demand, self._on_better = tools, demand, on_better
        self.plan: Counter[int] = Counter()
        self.stated = state_plan(
            self._tools.tables, self._tools.columns, self._demand, self.plan
        )

    @property
    def cost(self) -> float:
        """USD per hour, with what is short at its prices."""
        return shortage_cost(self._demand, self.stated) + self.stated.cost_usd_per_hour

    @property
    def is_full(self) -> bool:
        """Whether it leaves nothing short."""
        return (
            not self.stated.shortage_rps.any()
            and not self.stated.replicas_missing.any()
        )

    def cost_of(self, plan: Counter[int]) -> float:
        """The same of another plan."""
        stated = state_plan(self._tools.tables, self._tools.columns, self._demand, plan)
        return shortage_cost(self._demand, stated) + stated.cost_usd_per_hour

    def offer(self, plan: Mapping[int, int]) -> Counter[int]:
        """The plan less what is superfluous in it; kept and reported if it is better."""
        pruned = Counter(
            prune(self._tools.tables, self._tools.columns, self._demand, plan)
        )
        stated = state_plan(
            self._tools.tables, self._tools.columns, self._demand, pruned
        )
        if self._key(stated) < self._key(self.stated):
            self.plan, self.stated = pruned, stated
            self._on_better(stated)
        return pruned

    def _key(self, plan: IntegerPlan) -> tuple[float, float]:
        """First what is not served, then the cost."""
        return round(
            shortage_cost(self._demand, plan), _DECIMALS
        ), plan.cost_usd_per_hour
