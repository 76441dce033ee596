"""Reliefs: limits that could be loosened, and what that would save.

Where the relaxation has a price for the limit (a GPU more of a scarce type, a replica more), the price is the most that
one more can save, since savings only shrink (`solvers.joint.relaxation.dual_prices`). A looser SLO is estimated at
first order by what the plan's own replicas would carry more. `solve_relaxed` puts the most promising ones to the test.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from solvers.explain.neighbours import NeighbourReader
from solvers.explain.types import Relief
from solvers.types.outcome import Prices
from solvers.types.plan import Plan, gpu_counts
from solvers.types.problem import Problem, ServiceDemand

LOOSER = 1.1
"""By how much SLOs and power caps are loosened."""


def priced_reliefs(
    reader: NeighbourReader,
    plan: Plan,
    prices: Prices,
) -> tuple[Relief, ...]:
    """What the prices alone say, most saving first."""
    problem = reader.problem
    found = [
        *_stocks(problem, plan, prices),
        *_max_replicas(problem, prices),
        *_slos(reader, plan, prices),
    ]
    return sorted_reliefs(relief for relief in found if relief.saving > 0.0)


def sorted_reliefs(reliefs: Iterable[Relief]) -> tuple[Relief, ...]:
    """Largest saving first."""

    def key(relief: Relief) -> tuple[float, str, str]:
        return -relief.saving, relief.kind, relief.subject

    return tuple(sorted(reliefs, key=key))


def _stocks(problem: Problem, plan: Plan, prices: Prices) -> Iterator[Relief]:
    """GPU types that the plan uses up."""
    # A type with GPUs left over is no limit to the plan, whatever the relaxation does with fractions of GPUs.
    used = gpu_counts(plan.gpus)
    for gpu_type in problem.gpu_types:
        if gpu_type.count is not None and used[gpu_type.name] >= gpu_type.count:
            yield Relief(
                kind="stock",
                subject=gpu_type.name,
                words=f"one more {gpu_type.name} ({gpu_type.count} → {gpu_type.count + 1})",
                saving=prices.of_gpu_type(gpu_type.name),
                basis="price",
            )


def _max_replicas(problem: Problem, prices: Prices) -> Iterator[Relief]:
    for service in problem.services:
        price = prices.of_service(service.name)
        if service.max_replicas is None or price is None:
            continue
        # The same dual stands for min_replicas where it is positive: another limit, which is not asked about here.
        if price.per_replica < 0.0:
            yield Relief(
                kind="max_replicas",
                subject=service.name,
                words=f"max_replicas of {service.name} {service.max_replicas} → {service.max_replicas + 1}",
                saving=-price.per_replica,
                basis="price",
            )


def _slos(tight: NeighbourReader, plan: Plan, prices: Prices) -> Iterator[Relief]:
    """What every service's own replicas would carry more under a looser SLO, at the price of a request."""
    problem = tight.problem
    names = {service.name for service in problem.services}
    # All SLOs at once: no replica's capacity depends on the SLO of another one.
    loose = NeighbourReader(with_slos(problem, names))
    gained = _gained_rps(tight, loose, plan)
    for service in problem.services:
        price = prices.of_service(service.name)
        if price is not None:
            yield _slo_relief(service, price.per_rps * math.fsum(gained[service.name]))


def _gained_rps(
    tight: NeighbourReader, loose: NeighbourReader, plan: Plan
) -> defaultdict[str, list[float]]:
    """By service, what each of the plan's GPU entries would carry more of it."""
    gained: defaultdict[str, list[float]] = defaultdict(list)
    for gpu in plan.gpus:
        before = tight.seats(gpu)
        after = loose.seats(gpu)
        for one, other in zip(before or (), after or (), strict=True):
            service = one.replica.service
            rate = tight.problem.service(service).arrival_rate_rps
            # Capacity beyond the arrival rate is no gain.
            more = min(other.capacity_rps, rate) - min(one.capacity_rps, rate)
            gained[service].append(gpu.count * more)
    return gained


def _slo_relief(service: ServiceDemand, saving: float) -> Relief:
    words = f"SLO of {service.name} {service.slo_ms:g} → {LOOSER * service.slo_ms:g} ms"
    return Relief(
        kind="slo",
        subject=service.name,
        words=words,
        saving=saving,
        basis="first_order",
    )


def with_slos(problem: Problem, names: Collection[str]) -> Problem:
    """The problem with looser SLOs of these services."""
    services = tuple(
        replace(service, slo_ms=LOOSER * service.slo_ms)
        if service.name in names
        else service
        for service in problem.services
    )
    return replace(problem, services=services)
