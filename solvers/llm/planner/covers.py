"""Covers: whole replicas of one service that carry its rate, or as much of it as pays, at given prices of GPUs.

Sets: rows r of the service, with capacity a_r. Parameters: λ, its rate; w_r, the price of a replica of r; h, that of a
request per second that is not served, and f, that of serving less than everything. Variables: y_r ≥ 0, whole.

    min  Σ_r w_r y_r + h·max(0, λ − Σ_r a_r y_r) + f·[Σ_r a_r y_r < λ]

by dynamic programming over steps of λ. Capacities rounded down give covers; rounded up, on finer steps, they give a
lower bound. Running replicas are items that can be taken once each, cheaper than new ones by what a start costs.
Source: ours; knapsack covers as in Vazirani 2001, chapter 8.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from solvers.llm.planner.cover_kernel import CoverItems, cover, lowest_price, read_cover
from solvers.llm.step_law import Reals
from solvers.types.llm import LlmDemand, LlmRow
from solvers.types.problem import Problem
from solvers.types.state import GpuType

STEPS = 6000
"""Parts of the rate, for covers: capacities are rounded down by 0.02 % of it at most."""
BOUND_STEPS = 24_000
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of replica, as a cover counts it."""

    gpu_type: str
    row: LlmRow
    usd_per_hour: float
    """What all its GPUs cost, with their energy."""
    start_usd_per_hour: float
    """What starting one costs, spread over the time that a plan is expected to live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Whole replicas of one service."""

    counts: tuple[tuple[int, int], ...]
    """(kind, replicas) by the kind's place among the service's."""
    usd_per_hour: float
    """Without starts."""
    start_usd_per_hour: float
    short_rps: float
    missing: int
    """Replicas below the service's minimum."""


class _Places(NamedTuple):
    """The kinds of items, by the items' places."""

    new: list[int]
    running: list[int]


class _Partial(NamedTuple):
    """A cover that is being put together, kind by kind."""

    place: int
    """Kinds that were decided on."""
    counts: tuple[tuple[int, int], ...]
    left_rps: float
    usd: float


# Without slots, since what is derived below is kept.
@dataclass(frozen=True, kw_only=True)
class ServiceCovers:
    """One service with the kinds of replicas that it may have."""

    service: LlmDemand
    kinds: tuple[Kind, ...]
    running: Mapping[int, int]
    """Running replicas by kind."""
    short_usd_per_rps: float
    """Price of a request per second that is not served."""
    incomplete_usd: float
    """Price of serving less than everything, however little is left over."""
    missing_usd: float
    """Price of a replica that is missing of the minimum."""

    @cached_property
    def capacity(self) -> Reals:
        """(R,) requests per second of each kind."""
        return np.array([kind.row.capacity_rps for kind in self.kinds])

    @cached_property
    def _order(self) -> list[int]:
        """Kinds by capacity, so that ties end alike whatever the order of the rows."""
        return sorted(
            range(len(self.kinds)),
            key=lambda at: (self.kinds[at].gpu_type, self.kinds[at].row),
        )

    def cheapest(self, prices: Reals) -> tuple[Cover, float]:
        """The cover that is cheapest at (R,) prices of replicas beyond their own costs, and what it costs at these."""
        rate = self.service.arrival_rate_rps
        if not self.kinds:
            return self._stated(Counter(), prices)
        # A service at rest has the replicas that it must have.
        if rate <= 0.0:
            return self._stated(self._with_minimum(Counter(), prices), prices)
        new, running, places = self._items(prices)
        table = cover(new, running, STEPS)
        # What is left over of the rate has a price: the best share of it to serve follows from the table.
        total = table.price + self._left_usd(STEPS)
        started, kept = read_cover(new, running, table, int(np.argmin(total)))
        # New and running replicas of a kind are one entry of the cover.
        counts = Counter[int]()
        for kind, times in zip(places.new, started, strict=True):
            counts[kind] += int(times)
        for kind, times in zip(places.running, kept, strict=True):
            counts[kind] += int(times)
        return self._stated(self._within_limits(counts, prices), prices)

    def near(self, limit_usd: float, nodes: int) -> Iterator[Cover]:
        """Covers that serve everything, with no replica too many, for at most `limit_usd`; found in `nodes` steps."""
        rate = self.service.arrival_rate_rps
        order = self._by_value()
        stack = [_Partial(0, (), rate, 0.0)] if rate > 0.0 else []
        while stack and nodes > 0:
            nodes -= 1
            partial = stack.pop()
            if partial.left_rps <= _ROUNDING * rate:
                found = self.state(dict(partial.counts))
                if self._is_allowed(found):
                    yield found
            elif partial.place < len(order):
                more = self._extended(partial, order[partial.place])
                stack.extend(each for each in more if each.usd <= limit_usd)

    def _by_value(self) -> list[int]:
        """The cheapest kinds per request first: what they leave over tells early whether a cover costs too much."""
        return sorted(
            self._order,
            key=lambda at: self.kinds[at].usd_per_hour / self.capacity[at],
        )

    def _extended(self, partial: _Partial, kind: int) -> Iterator[_Partial]:
        """A partial cover with each useful number of replicas of one kind."""
        size, usd = float(self.capacity[kind]), self.kinds[kind].usd_per_hour
        for number in range(math.ceil(partial.left_rps / size) + 1):
            yield _Partial(
                place=partial.place + 1,
                counts=(*partial.counts, (kind, number)),
                left_rps=partial.left_rps - number * size,
                usd=partial.usd + number * usd,
            )

    def bound(self, prices: Reals) -> float:
        """No cover costs less at (R,) prices, starts apart."""
        rate = self.service.arrival_rate_rps
        if rate <= 0.0 or not self.kinds:
            return self._bound_of_minimum(prices, short_rps=rate)
        steps = np.maximum(1, np.ceil(self.capacity / rate * BOUND_STEPS))
        items = CoverItems(
            np.minimum(steps, BOUND_STEPS).astype(np.int64),
            np.maximum(0.0, self._prices(prices)),
        )
        lowest = lowest_price(items, BOUND_STEPS)
        found = float(np.min(lowest + self._left_usd(BOUND_STEPS)))
        return max(found, self._bound_of_minimum(prices, short_rps=0.0))

    def _left_usd(self, steps: int) -> Reals:
        """(N + 1,) price of what is left over where n of N steps are served."""
        left = 1.0 - np.arange(steps + 1) / steps
        short_rps = self.service.arrival_rate_rps * left
        priced = self.short_usd_per_rps * short_rps
        return np.asarray(priced + np.where(left > 0.0, self.incomplete_usd, 0.0))

    def _bound_of_minimum(self, prices: Reals, *, short_rps: float) -> float:
        """What the minimum of replicas costs at least."""
        short = self.short_usd_per_rps * max(0.0, short_rps)
        if not self.kinds:
            return short + self.missing_usd * self.service.min_replicas
        cheapest = min(float(self._prices(prices).min()), self.missing_usd)
        return self.service.min_replicas * max(0.0, cheapest)

    def _prices(self, prices: Reals) -> Reals:
        return np.array([kind.usd_per_hour for kind in self.kinds]) + prices

    def _items(self, prices: Reals) -> tuple[CoverItems, CoverItems, _Places]:
        """New replicas of each kind, the running ones, and the kinds of both."""
        rate = self.service.arrival_rate_rps
        own = np.maximum(0.0, self._prices(prices))
        starts = np.array([kind.start_usd_per_hour for kind in self.kinds])
        # Rounding must not take a whole step from a replica that carries exactly that.
        sizes = np.floor(self.capacity / rate * STEPS * (1.0 + _ROUNDING))
        sizes = np.minimum(sizes, STEPS).astype(np.int64)
        # A replica that carries less than a step counts for nothing.
        usable = [at for at in self._order if sizes[at] >= 1]
        running = [at for at in usable for _ in range(self._useful(at))]
        new = CoverItems(sizes[usable], (own + starts)[usable])
        return new, CoverItems(sizes[running], own[running]), _Places(usable, running)

    def _useful(self, kind: int) -> int:
        """Running replicas of a kind that a cover may have a use for."""
        rate = self.service.arrival_rate_rps
        # Every item costs a pass over the table: no more of them than could ever be needed.
        needed = math.ceil(rate / float(self.capacity[kind])) + 1
        return min(self.running.get(kind, 0), needed)

    def _is_allowed(self, cover: Cover) -> bool:
        """Whether it has no fewer and no more replicas than the service must and may have."""
        limit = self.service.max_replicas
        replicas = sum(number for _, number in cover.counts)
        return cover.missing == 0 and (limit is None or replicas <= limit)

    def larger(self, cover: Cover) -> Iterator[Cover]:
        """The cover with one replica more of each kind, as far as the service may have more."""
        counts = Counter(dict(cover.counts))
        limit = self.service.max_replicas
        if limit is None or counts.total() < limit:
            for at in self._order:
                yield self.state(counts + Counter({at: 1}))

    def _within_limits(self, counts: Counter[int], prices: Reals) -> Counter[int]:
        """The cover with no more replicas than the service may have, and no fewer than it must."""
        limit = self.service.max_replicas
        if limit is not None and counts.total() > limit:
            counts = self._fewer(limit, prices)
        return self._with_minimum(counts, prices)

    def _fewer(self, limit: int, prices: Reals) -> Counter[int]:
        """At most `limit` replicas: the best of one kind, and of another one for the rest."""
        # Three kinds would hardly ever be better, and every further one multiplies the work.
        pairs = product(self._order, range(1, limit + 1), self._order)
        found = min(
            (self._pair(limit, prices, first, number, second), first, number, second)
            for first, number, second in pairs
        )
        (_, more), first, number, second = found
        return +(Counter({first: number}) + Counter({second: more}))

    def _pair(
        self, limit: int, prices: Reals, first: int, number: int, second: int
    ) -> tuple[float, int]:
        """What `number` replicas of one kind cost with those of another that the rest takes, and how many these are."""
        own = self._prices(prices)
        left = self.service.arrival_rate_rps - number * float(self.capacity[first])
        more = math.ceil(left / float(self.capacity[second]))
        more = min(max(0, more), limit - number)
        left = max(0.0, left - more * float(self.capacity[second]))
        usd = number * own[first] + more * own[second]
        return float(usd + self.short_usd_per_rps * left), more

    def _with_minimum(self, counts: Counter[int], prices: Reals) -> Counter[int]:
        """The cover with the cheapest replicas added until there are as many as must be."""
        lacking = self.service.min_replicas - counts.total()
        if lacking <= 0 or not self.kinds:
            return counts
        own = self._prices(prices)
        starts = np.array([kind.start_usd_per_hour for kind in self.kinds])
        filled = counts.copy()
        for _ in range(lacking):
            costs = [
                own[at] + (0.0 if filled[at] < self.running.get(at, 0) else starts[at])
                for at in self._order
            ]
            cheapest = self._order[costs.index(min(costs))]
            # Where GPUs are that short, a missing replica is the smaller evil, and is listed.
            if min(costs) >= self.missing_usd:
                break
            filled[cheapest] += 1
        return filled

    def _stated(self, counts: Counter[int], prices: Reals) -> tuple[Cover, float]:
        """The cover with what it costs, and its cost at these prices."""
        stated = self.state(counts)
        beside = math.fsum(number * prices[kind] for kind, number in stated.counts)
        return stated, self.total(stated) + beside

    def state(self, counts: Mapping[int, int]) -> Cover:
        """The cover of `counts` replicas of each kind."""
        own = tuple(sorted((kind, number) for kind, number in counts.items() if number))
        served = math.fsum(number * self.capacity[kind] for kind, number in own)
        replicas = sum(number for _, number in own)
        return Cover(
            counts=own,
            usd_per_hour=math.fsum(
                number * self.kinds[kind].usd_per_hour for kind, number in own
            ),
            start_usd_per_hour=math.fsum(self._start_usd(*each) for each in own),
            short_rps=_left_over(self.service.arrival_rate_rps, served),
            missing=max(0, self.service.min_replicas - replicas),
        )

    def _start_usd(self, kind: int, number: int) -> float:
        """What starting `number` of a kind costs beyond those that run."""
        started = max(0, number - self.running.get(kind, 0))
        return started * self.kinds[kind].start_usd_per_hour

    def total(self, own: Cover) -> float:
        """What a cover costs with its starts, with what it leaves over and with what it lacks."""
        return own.usd_per_hour + own.start_usd_per_hour + self.penalty(own)

    def penalty(self, own: Cover) -> float:
        """The price of what a cover leaves over and lacks."""
        short = self.short_usd_per_rps * own.short_rps
        short += self.incomplete_usd if own.short_rps > 0.0 else 0.0
        return short + self.missing_usd * own.missing


def _left_over(rate_rps: float, served_rps: float) -> float:
    """What is not served of a rate; nothing where only rounding keeps it from being served."""
    left = rate_rps - served_rps
    return left if left > _ROUNDING * rate_rps else 0.0


def kinds_of(
    problem: Problem, service: LlmDemand, running: Collection[tuple[str, LlmRow]]
) -> tuple[Kind, ...]:
    """The kinds of replicas that a service may have: the best row of each GPU type and degree, and those that run."""
    found = [
        _kind(problem, gpu_type, row)
        for gpu_type in problem.gpu_types
        if service.allows(gpu_type.name)
        for row in problem.llm_rows(service.name, gpu_type.name)
        if _is_possible(gpu_type, row)
    ]
    # By what tells rows apart, so that equal ones end alike in whatever order they are stated.
    found.sort(key=lambda each: (each.gpu_type, each.usd_per_hour, each.row))
    chosen = {*_best_rows(found), *running}
    return tuple(kind for kind in found if (kind.gpu_type, kind.row) in chosen)


def _best_rows(kinds: Iterable[Kind]) -> Iterator[tuple[str, LlmRow]]:
    """The row of each GPU type and degree that carries most; of equals the first."""
    best: dict[tuple[str, int], Kind] = {}
    for kind in kinds:
        known = best.get((kind.gpu_type, kind.row.tp))
        # All of a type and degree have as many GPUs, so that only watts tell their costs apart.
        if known is None or kind.row.capacity_rps > known.row.capacity_rps:
            best[kind.gpu_type, kind.row.tp] = kind
    return ((kind.gpu_type, kind.row) for kind in best.values())


def _is_possible(gpu_type: GpuType, row: LlmRow) -> bool:
    """Whether a replica of that row can be planned at all."""
    has_room = row.memory_mib_per_gpu <= gpu_type.memory_mib
    has_watts = gpu_type.idle_w + row.power_w_per_gpu <= gpu_type.power_cap_w
    is_known = row.clock_mhz in gpu_type.clocks_mhz
    spans = gpu_type.gpus_per_node % row.tp == 0
    return has_room and has_watts and is_known and spans and row.capacity_rps > 0.0


def _kind(problem: Problem, gpu_type: GpuType, row: LlmRow) -> Kind:
    watts = gpu_type.idle_w + row.power_w_per_gpu
    energy = problem.energy_price_usd_per_kwh * watts / 1000.0
    start = problem.start_usd_per_second_and_gpu * row.start_s
    start += problem.migration_cost_usd_per_hour
    return Kind(
        gpu_type=gpu_type.name,
        row=row,
        usd_per_hour=row.tp * (gpu_type.price_usd_per_hour + energy),
        start_usd_per_hour=row.tp * start,
    )
