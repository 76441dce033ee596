"""Integer plans from the linear relaxation: floor, dive, prune, then ruin and recreate for as long as there is time."""

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
    used_columns,
)
from solvers.joint.heuristics.gpu_elimination import (
    eliminate_by_annealing,
    eliminate_gpus,
    soft_demand,
)
from solvers.joint.heuristics.residual import SearchContext, prune
from solvers.joint.heuristics.ruin_and_recreate import choose, recreate
from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.carried import rest_of
from solvers.joint.patterns.deadline import never
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.relaxation.column_generation import Relaxation

_PACE = DiveEffort(rounds=8, min_gain=1e-2, columns=200, few_gpus=5.0, spread=0.0)
_THOROUGH = _PACE._replace(rounds=16, min_gain=0.0)
_SOME_GPUS = 40
"""Plans of fewer GPUs are dived for from the solved relaxation too: it takes little time, and single GPUs count."""
_BETTER = 1.5e-3
"""A relaxation that costs less by this share than that of the last dive is dived from, however many GPUs there are."""
_FEW_GPUS = 40
"""GPUs are eliminated from plans of this many or more: of fewer, each is too great a part for the rest to take over."""
_SIZES = (3, 10)
"""Smallest and largest number of GPUs that are taken out at a time."""
_WALK = 0.004
"""A plan that costs more than the best by this share is a place to go on from, lest the search stand still."""
_MAX_FAILURES = 3
"""After this number of failures in a row to do with a GPU less, something else has its turn."""
_STEPS = 40
"""Steps of a walk before eliminating GPUs has its turn again."""
NOTHING = 1e-9
"""A service that lacks less than this share of its rate is not short: that is rounding."""
_DECIMALS = 6
"""Shortages in USD per hour that agree in this number of decimals are equal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntegerPlan:
    """The number of GPUs of each column, and what they cost and leave short."""

    counts: Mapping[int, int]
    """Column number → GPUs, > 0."""
    cost_usd_per_hour: float
    """Cost of the GPUs with their watts; shortages have no price here."""
    shortage_rps: Reals
    """(S,) what is not served."""
    replicas_missing: Reals
    """(S,) replicas by which each service misses its fewest."""


def state_plan(
    tools: SearchContext, demand: CoverDemand, counts: Mapping[int, int]
) -> IntegerPlan:
    """These GPUs with what they cost and what they leave short."""
    taken = tools.carried(counts)
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


def rank(demand: CoverDemand, plan: IntegerPlan) -> tuple[float, float]:
    """What plans are compared by, less is better: first what is not served, then the cost."""
    # Rounded: else sums in another order would let a plan that costs more seem to serve more.
    shortage = round(shortage_cost(demand, plan), _DECIMALS)
    return shortage, plan.cost_usd_per_hour


def ignore(plan: IntegerPlan) -> None:
    """For callers who want the last plan only."""


class IntegerPlans:
    """Integer plans for one demand, each step better than the last; a relaxation says what to begin from."""

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
        self._tools = tools
        self._demand = demand
        self._rng = np.random.default_rng(seed)
        self._best = _Best(tools, demand, on_better)
        self.has_dived = False
        self._dived_from = np.inf
        self._annealer: Annealer | None = None

    @property
    def best(self) -> IntegerPlan:
        """The best plan so far."""
        return self._best.stated

    def sketch(self, relaxation: Relaxation) -> None:
        """Integer parts, and one by one what earns most: a plan at once, if an expensive one."""
        floor = self._floor(relaxation)
        duals = relaxation.solution.duals
        for counts in (self._first, floor) if self._first else (floor,):
            plan = complete_greedily(self._tools, self._demand, duals, counts)
            self._best.offer(plan)

    def dive(
        self,
        relaxation: Relaxation,
        is_over: Callable[[], bool],
        pace: DiveEffort = _PACE,
        *,
        is_late: Callable[[], bool] = never,
    ) -> None:
        """Integer parts, and a dive for the rest; in haste when it is late."""
        # One GPU of each column stays open: a rest that is only fractions of GPUs is harder to fit.
        fixed = self._floor(relaxation)
        fixed -= Counter(list(fixed))
        taken = self._tools.carried(fixed)
        # Before the first dive there is only a sketch, which is too dear to say when a dive should give up.
        has_good = self._first or self.has_dived
        found = dive(
            self._search(relaxation, is_over),
            rest_of(self._demand, self._tools.tables, taken),
            pace,
            below=self._best.cost - taken.cost if has_good else np.inf,
            start=used_columns(relaxation.solution.counts, relaxation.columns),
            is_late=is_late,
        )
        if found is not None:
            self._best.offer(fixed + found)
        self.has_dived = True
        self._dived_from = relaxation.solution.objective

    def improve(self, relaxation: Relaxation, is_over: Callable[[], bool]) -> None:
        """Until it is over, eliminate GPUs of what serves everything, and in between ruin and recreate."""
        search = self._search(relaxation, is_over)
        best = self._best
        self._dive_again(relaxation, is_over)
        is_first = True
        while best.plan and not search.is_over():
            found = None
            if best.is_full and best.plan.total() >= _FEW_GPUS:
                self._eliminate_by_annealing(search)
                found = eliminate_gpus(search, best.plan, is_first=is_first)
            is_first = found is not None
            if found is None:
                _walk(search, best)
            else:
                best.offer(found)

    def _dive_again(self, relaxation: Relaxation, is_over: Callable[[], bool]) -> None:
        """Dive from the solved relaxation where that promises more than the dive while it was being solved."""
        for pace in (_PACE, _THOROUGH):
            objective = relaxation.solution.objective
            is_better = objective < (1.0 - _BETTER) * self._dived_from
            is_quick = self._best.plan.total() < _SOME_GPUS
            # `is_over` comes last, since each call of it may count as a round of work.
            if (is_better or is_quick) and not is_over():
                self.dive(relaxation, is_over, pace)

    def _eliminate_by_annealing(self, search: DiveContext) -> None:
        """As many GPUs at a time as goes well, until some tries with a single one have failed."""
        soft = soft_demand(search)
        if self._annealer is None:
            self._annealer = Annealer(self._tools.tables, soft)

        failures, gpus = 0, 1
        while failures < _MAX_FAILURES and not search.is_over():
            before = self._best.cost
            found = eliminate_by_annealing(
                search,
                self._annealer,
                soft,
                self._best.plan,
                gpus=gpus,
                is_first=failures == 0,
            )
            if found is not None:
                self._best.offer(found)

            # It goes on with twice as many where that went well, else with half as many; only tries with one GPU count.
            if self._best.cost < before:
                failures, gpus = 0, 2 * gpus
            else:
                failures, gpus = failures + (gpus == 1), max(1, gpus // 2)

    def _floor(self, relaxation: Relaxation) -> Counter[int]:
        # The relaxation may have made columns that the pool does not hold yet.
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
        size = int(search.rng.integers(*_SIZES, endpoint=True))
        removed = choose(search, current, size)
        slack = best.cost * (1.0 + _WALK) - best.cost_of(current)
        other = recreate(search, current, removed, slack)
        # A dearer plan is offered too: that prunes it, and only a better one is kept.
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
        self._tools = tools
        self._demand = demand
        self._on_better = on_better
        self.plan: Counter[int] = Counter()
        self.stated = self._state(self.plan)

    @property
    def cost(self) -> float:
        """USD per hour, with what is short at its prices."""
        return self._total(self.stated)

    @property
    def is_full(self) -> bool:
        """Whether it leaves nothing short."""
        stated = self.stated
        return not stated.shortage_rps.any() and not stated.replicas_missing.any()

    def cost_of(self, plan: Counter[int]) -> float:
        """The same of another plan."""
        return self._total(self._state(plan))

    def offer(self, plan: Mapping[int, int]) -> Counter[int]:
        """The plan less what is superfluous in it; kept and reported if it is better."""
        tools = self._tools
        pruned = Counter(prune(tools, self._demand, plan))
        stated = self._state(pruned)
        if rank(self._demand, stated) < rank(self._demand, self.stated):
            self.plan = pruned
            self.stated = stated
            self._on_better(stated)
        return pruned

    def _total(self, plan: IntegerPlan) -> float:
        return shortage_cost(self._demand, plan) + plan.cost_usd_per_hour

    def _state(self, plan: Mapping[int, int]) -> IntegerPlan:
        return state_plan(self._tools, self._demand, plan)
