"""Which replicas of language models run on which GPUs: type, degree and number for all services at once, with a bound.

    1. relax   column generation: the cheapest cover of each service at the prices of GPUs and slots, until none is new
    2. widen   covers at prices a little off, so that whole covers have a choice
    3. list    of few services, all covers that cost little more than the cheapest
    4. round   the program over all covers found, with whole numbers (`solvers.llm.planner.master`)

What runs stays where it is worth its starts: running replicas are cheaper items of a cover than new ones.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

import numpy as np

from solvers.highs import SolverFailed
from solvers.llm.planner.covers import Cover, Kind, ServiceCovers, kinds_of
from solvers.llm.planner.master import Coupling, CoverMaster
from solvers.llm.step_law import Reals
from solvers.types.llm import LlmDemand, LlmReplicaPlan, LlmRow
from solvers.types.outcome import Budget
from solvers.types.plan import Unserved, UnservedReason
from solvers.types.problem import Problem

_ROUNDS = 60
_BOUND_EVERY = 8
_NODES = 400
"""Nodes of the search for whole covers; what comes after is rarely any cheaper."""
_PRECISION = 1e-7
_ROUNDING = 1e-6
_DEAR = 10.0
"""Times what a request per second costs where it costs most: the price of one that is not served."""
_FACTORS = (0.85, 0.92, 0.96, 1.04, 1.08, 1.15)
"""Multiples of the prices at which more covers are made."""
_BANS = 31
"""Sets of short GPU types that covers are made without: all of five types."""
_TRIES = 8
"""Random prices of kinds, at which more covers are made."""
_SPREAD = 0.2
"""Standard deviation of their logarithms."""
_FORBIDDING_USD = 1e6
"""A price per hour that no cover pays where it has another choice."""
_NEAR = 1.25
"""Times the cost of a service's cheapest cover, up to which others are listed."""
_NEAR_NODES = 60_000
_MIN_NEAR_NODES = 500
"""Steps of that list, for all services together, and for one at least."""
_RELAX_SHARE = 0.5
_WIDEN_SHARE = 0.6
"""Shares of the budget's seconds after which relaxing and widening end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmFleet:
    """The replicas of all language models, and what is proven of all others."""

    replicas: tuple[LlmReplicaPlan, ...]
    unserved: tuple[Unserved, ...]
    cost_bound: float
    """USD per hour without starts: nothing that serves as much costs less."""
    gpu_prices: Mapping[str, float]
    """What one more GPU of a type would save at most, its own price paid, by type."""


def plan_llms(problem: Problem, budget: Budget) -> LlmFleet:
    """The replicas of a problem's language models on all of its GPUs, whatever other services need of them."""
    services = _services(problem)
    master = CoverMaster(problem, services)
    duals = _relax(master, _past(budget, _RELAX_SHARE))
    bound = master.bound(duals)
    covers = _rounded(master, duals, budget)
    penalties = map(ServiceCovers.penalty, services, covers)
    return LlmFleet(
        replicas=tuple(_replicas(services, covers)),
        unserved=tuple(_unserved(master, covers, duals)),
        # A plan that leaves as much over pays as much for it, so that the rest is for GPUs.
        cost_bound=max(0.0, bound - math.fsum(penalties)),
        gpu_prices=_gpu_prices(master, duals),
    )


def bound_llms(problem: Problem, budget: Budget) -> float:
    """USD per hour without starts: no replicas that serve everything cost less. The relaxation alone."""
    master = CoverMaster(problem, _services(problem))
    return master.bound(_relax(master, _past(budget, 1.0)))


def _rounded(master: CoverMaster, duals: Reals, budget: Budget) -> list[Cover]:
    """One cover of each service: the cheapest choice among those found, and more where that leaves room."""
    is_late = _past(budget, _WIDEN_SHARE)
    _widen(master, duals, budget.seed, is_late)
    # Where nothing is short, every service has its cheapest cover, and no other is of use.
    if np.any(duals):
        _add_near(master, is_late)
    return _completed(master, master.choose(_NODES, _past(budget, 1.0)))


def _past(budget: Budget, share: float) -> Callable[[], bool]:
    return lambda: budget.elapsed() >= share * budget.seconds


def _services(problem: Problem) -> list[ServiceCovers]:
    """By name, so that the order in which services are stated changes nothing."""
    short_usd = _short_usd(problem)
    by_name = sorted(problem.llm_services, key=lambda service: service.name)
    return [_covers(problem, each, short_usd) for each in by_name]


def _covers(problem: Problem, service: LlmDemand, short_usd: float) -> ServiceCovers:
    """The service with its kinds, what runs of it, and the prices of what is left over."""
    running = _running(problem, service.name)
    kinds = kinds_of(problem, service, running.keys())
    places = {(kind.gpu_type, kind.row): at for at, kind in enumerate(kinds)}
    highest = max((kind.usd_per_hour for kind in kinds), default=0.0)
    return ServiceCovers(
        service=service,
        kinds=kinds,
        running={places[key]: running[key] for key in running if key in places},
        short_usd_per_rps=service.priority * short_usd,
        # More than any one replica: to leave a little over is never worth the replica that it saves.
        incomplete_usd=2.0 * highest * service.priority,
        missing_usd=_DEAR * highest * service.priority,
    )


def _running(problem: Problem, service: str) -> Counter[tuple[str, LlmRow]]:
    """Replicas that run, by GPU type and row."""
    counts: Counter[tuple[str, LlmRow]] = Counter()
    for each in problem.current.llm_replicas if problem.current else ():
        if each.service != service:
            continue
        row = problem.llm_row(each)
        # A row that is gone describes nothing that could be kept.
        if row is not None:
            counts[each.gpu_type, row] += each.count
    return counts


def _short_usd(problem: Problem) -> float:
    """What a request per second of priority 1 costs that is not served: many times what serving it costs anybody."""
    cheapest: dict[str, float] = {}
    for points in problem.llm_points:
        usd = problem.gpu_type(points.gpu_type).price_usd_per_hour
        for row in points.rows:
            if row.capacity_rps > 0.0:
                per_rps = row.tp * usd / row.capacity_rps
                known = cheapest.get(points.service, math.inf)
                cheapest[points.service] = min(known, per_rps)
    lowest = min((each.priority for each in problem.llm_services), default=1.0)
    # Divided by the lowest priority, so that even its requests are worth serving.
    return _DEAR * max(cheapest.values(), default=0.0) / lowest


def _relax(master: CoverMaster, is_over: Callable[[], bool]) -> Reals:
    """(C,) the duals with the best bound that was found."""
    best: Reals = np.zeros(len(master.couplings))
    best_bound = -math.inf
    for number in range(1, _ROUNDS + 1):
        try:
            costs, duals = master.solve()
        except SolverFailed:
            # Covers are chosen among those at hand, and a bound holds at any duals.
            break
        if not _price(master, duals, costs):
            return duals
        # A bound takes as long as a round: now and then is enough for a search that may be cut short.
        if number % _BOUND_EVERY == 0 or is_over():
            bound = master.bound(duals)
            if bound > best_bound:
                best, best_bound = duals, bound
        if is_over():
            break
    return best


def _price(master: CoverMaster, duals: Reals, costs: Reals | None = None) -> bool:
    """Take in each service's cheapest cover at these duals; whether any was new and, by its cost, of use."""
    has_new = False
    for at, own in enumerate(master.services):
        cover, usd = own.cheapest(master.prices(at, duals))
        slack = _PRECISION * max(1.0, abs(usd))
        if costs is not None and usd >= costs[at] - slack:
            continue
        has_new = master.add(at, cover) or has_new
    return has_new


def _widen(
    master: CoverMaster, duals: Reals, seed: int, is_over: Callable[[], bool]
) -> None:
    """More covers, at prices near those of the relaxation."""
    for near in _near(master.couplings, duals, seed):
        if is_over():
            return
        _price(master, near)


def _near(couplings: Sequence[Coupling], duals: Reals, seed: int) -> Iterator[Reals]:
    """(C,) duals to make more covers at: without some of the types that are short, and at prices nearby."""
    short = [
        at
        for at, each in enumerate(couplings)
        if duals[at] < 0.0 and each.size == 1 and not each.is_paid
    ]
    sets = chain.from_iterable(
        combinations(short, size) for size in range(1, len(short) + 1)
    )
    # There are 2^n of them: of many types only the smallest sets are left out.
    for banned in islice(sets, _BANS):
        without = duals.copy()
        without[list(banned)] -= _FORBIDDING_USD
        yield without
    for factor in _FACTORS if short else ():
        yield duals * factor
    generator = np.random.default_rng(seed)
    for _ in range(_TRIES if short else 0):
        yield duals * np.exp(_SPREAD * generator.standard_normal(len(duals)))


def _add_near(master: CoverMaster, is_over: Callable[[], bool]) -> None:
    """Take in all covers of few services that cost little more than the cheapest: prices tell too few of them apart."""
    nodes = _NEAR_NODES // len(master.services)
    if nodes < _MIN_NEAR_NODES:
        return
    for at, own in enumerate(master.services):
        if is_over():
            return
        cover, _ = own.cheapest(np.zeros(len(own.kinds)))
        # A cover of one large replica has its neighbours one replica further.
        one_more = max((kind.usd_per_hour for kind in own.kinds), default=0.0)
        limit = max(_NEAR * cover.usd_per_hour, cover.usd_per_hour + one_more)
        if cover.short_rps == 0.0:
            for each in own.near(limit, nodes):
                master.add(at, each)


def _completed(master: CoverMaster, covers: Sequence[Cover]) -> list[Cover]:
    """The covers with replicas where some demand is left over and there is room, the most important service first."""
    found = list(covers)
    room = master.room(found)
    by_priority = sorted(
        enumerate(master.services),
        key=lambda pair: (-pair[1].service.priority, pair[0]),
    )
    for at, _ in by_priority:
        # One replica at a time: each may be of another kind, whatever room is left.
        while (better := _larger(master, at, found[at], room)) is not None:
            room = room + master.uses(at, found[at]) - master.uses(at, better)
            found[at] = better
    return found


def _larger(master: CoverMaster, at: int, cover: Cover, room: Reals) -> Cover | None:
    """The best cover with one replica more of a service that leaves something over; None where none is any better."""
    own = master.services[at]
    if cover.short_rps <= 0.0:
        return None
    free = room + master.uses(at, cover) + _ROUNDING
    possible = (
        each for each in own.larger(cover) if np.all(master.uses(at, each) <= free)
    )
    best = min(possible, key=own.total, default=cover)
    return best if own.total(best) < own.total(cover) else None


def _gpu_prices(master: CoverMaster, duals: Reals) -> dict[str, float]:
    """By GPU type, what the stock's row says; slots are no single GPU's."""
    return {
        each.gpu_type: float(-dual)
        for each, dual in zip(master.couplings, duals, strict=True)
        if each.size == 1 and not each.is_paid
    }


def _replicas(
    services: Sequence[ServiceCovers], covers: Sequence[Cover]
) -> Iterator[LlmReplicaPlan]:
    """The replicas of the covers, each with a rate in proportion to what it can carry."""
    for own, cover in zip(services, covers, strict=True):
        # In proportion, so that all replicas are equally far from their limits.
        total = float(sum(own.capacity[kind] * number for kind, number in cover.counts))
        rate = own.service.arrival_rate_rps
        load = min(1.0, rate / total) if total > 0.0 else 0.0
        for at, number in cover.counts:
            yield _replica(own.service.name, own.kinds[at], number, load)


def _replica(service: str, kind: Kind, number: int, load: float) -> LlmReplicaPlan:
    """`number` replicas of a kind, each with that part of what it can carry."""
    return LlmReplicaPlan(
        service=service,
        gpu_type=kind.gpu_type,
        tp=kind.row.tp,
        count=number,
        clock_mhz=kind.row.clock_mhz,
        max_num_batched_tokens=kind.row.max_num_batched_tokens,
        max_num_seqs=kind.row.max_num_seqs,
        arrival_rate_rps=load * kind.row.capacity_rps,
    )


def _unserved(
    master: CoverMaster, covers: Sequence[Cover], duals: Reals
) -> Iterator[Unserved]:
    for own, cover in zip(master.services, covers, strict=True):
        if cover.short_rps > 0.0 or cover.missing:
            yield Unserved(
                service=own.service.name,
                rate_rps=cover.short_rps,
                reason=_reason(master, own, cover, duals),
                replicas_missing=cover.missing,
            )


def _reason(
    master: CoverMaster, own: ServiceCovers, cover: Cover, duals: Reals
) -> UnservedReason:
    """The rule that keeps a service from more."""
    if not own.kinds:
        return "slo"
    replicas = sum(number for _, number in cover.counts)
    if own.service.max_replicas is not None and replicas >= own.service.max_replicas:
        return "replicas"
    types = {kind.gpu_type for kind in own.kinds}
    binding = {
        each.size
        for each, dual in zip(master.couplings, duals, strict=True)
        if dual < 0.0 and each.gpu_type in types
    }
    # Where single GPUs are left, it is their nodes that have too few together.
    return "slots" if binding and 1 not in binding else "stock"
