"""Reliefs: limits that could be loosened, and what that would save.

Where the relaxation has a price for the limit (a GPU more of a scarce type, a replica more), the price is the most that
one more can save, since savings only shrink (`prices`). A looser SLO is estimated at first order by what the plan's own
replicas would carry more; the most promising ones, power caps and GPU types that are not allowed are then put to the
test by solving the relaxation again, from the patterns that it had.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from solvers.joint.company import Company
from solvers.joint.explanation import Relief
from solvers.joint.generate import never
from solvers.joint.prices import Relaxed, relax
from solvers.outcome import Prices
from solvers.plan import Plan
from solvers.problem import Problem, ServiceDemand

LOOSER = 1.1
"""By how much SLOs and power caps are loosened."""
_MOST_SLOS = 5
_MOST_CHOICES = 3
"""Services whose SLO, or choice of GPU types, is put to the test, those of the greatest promise first."""
_LEAST_SAVING = 5e-4
"""Of the relaxation's cost: less than its own tolerance is not told from nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A loosened problem that is worth solving."""

    relief: Relief
    """Its saving is what is hoped for."""
    problem: Problem


def priced_reliefs(problem: Problem, plan: Plan, prices: Prices) -> tuple[Relief, ...]:
    """What the prices alone say, most saving first."""
    found = [*_stocks(problem, prices), *_most_replicas(problem, prices), *_slos(problem, plan, prices)]
    return _sorted(relief for relief in found if relief.saving > 0.0)


def tested_reliefs(
    problem: Problem, plan: Plan, prices: Prices, base: Relaxed, *, is_over: Callable[[], bool] = never
) -> tuple[Relief, ...]:
    """The same with the most promising ones solved again while there is time; those that save nothing are left out.

    base: the problem's relaxation that the prices come from.
    """
    known = {(relief.kind, relief.subject): relief for relief in priced_reliefs(problem, plan, prices)}
    if prices.unit != "usd_per_hour" or not base.relaxation.is_exact:
        return _sorted(known.values())
    start = base.as_plan()
    for question in _questions(problem, plan, prices, tuple(known.values())):
        if is_over():
            break
        found = relax(question.problem, start=start, is_over=is_over)
        if found is None or not found.relaxation.is_exact:
            break
        saving = base.cost_usd_per_hour - found.cost_usd_per_hour
        key = question.relief.kind, question.relief.subject
        known.pop(key, None)
        if saving > _LEAST_SAVING * base.cost_usd_per_hour:
            known[key] = replace(question.relief, saving=saving, basis="relaxation")
    return _sorted(known.values())


def _sorted(reliefs: Iterable[Relief]) -> tuple[Relief, ...]:
    return tuple(sorted(reliefs, key=lambda relief: (-relief.saving, relief.kind, relief.subject)))


def _stocks(problem: Problem, prices: Prices) -> Iterator[Relief]:
    for gpu_type in problem.gpu_types:
        if gpu_type.count is not None:
            yield Relief(
                kind="stock",
                subject=gpu_type.name,
                words=f"one more {gpu_type.name} ({gpu_type.count} → {gpu_type.count + 1})",
                saving=prices.of_gpu_type(gpu_type.name),
                basis="price",
            )


def _most_replicas(problem: Problem, prices: Prices) -> Iterator[Relief]:
    for service in problem.services:
        price = prices.of_service(service.name)
        if service.max_replicas is not None and price is not None and price.per_replica < 0.0:
            yield Relief(
                kind="max_replicas",
                subject=service.name,
                words=f"max_replicas of {service.name} {service.max_replicas} → {service.max_replicas + 1}",
                saving=-price.per_replica,
                basis="price",
            )


def _slos(problem: Problem, plan: Plan, prices: Prices) -> Iterator[Relief]:
    """What every service's own replicas would carry more under a looser SLO, at the price of a request."""
    loose = Company(_with_slos(problem, {service.name for service in problem.services}))
    tight = Company(problem)
    gained: dict[str, list[float]] = {service.name: [] for service in problem.services}
    for gpu in plan.gpus:
        before, after = tight.seats(gpu), loose.seats(gpu)
        for one, other in zip(before or (), after or (), strict=True):
            rate = problem.service(one.replica.service).arrival_rate_rps
            more = min(other.capacity_rps, rate) - min(one.capacity_rps, rate)
            gained[one.replica.service].append(gpu.count * more)
    for service in problem.services:
        price = prices.of_service(service.name)
        if price is not None:
            saving = price.per_rps * math.fsum(gained[service.name])
            yield _slo_relief(service, saving)


def _slo_relief(service: ServiceDemand, saving: float) -> Relief:
    words = f"SLO of {service.name} {service.slo_ms:g} → {LOOSER * service.slo_ms:g} ms"
    return Relief(kind="slo", subject=service.name, words=words, saving=saving, basis="first_order")


def _questions(problem: Problem, plan: Plan, prices: Prices, hopes: Sequence[Relief]) -> Iterator[_Question]:
    """Loosened problems in the order in which they are worth their time: SLOs, then caps, then choices of types."""
    slos = [relief for relief in hopes if relief.kind == "slo"]
    for relief in slos[:_MOST_SLOS]:
        yield _Question(relief=relief, problem=_with_slos(problem, {relief.subject}))
    yield from _caps(problem, plan)
    yield from _choices(problem, prices)


def _caps(problem: Problem, plan: Plan) -> Iterator[_Question]:
    """Of the types on which some replica of the plan is held back by the watts."""
    for name in sorted(_short_of_watts(problem, plan)):
        cap_w = problem.gpu_type(name).power_cap_w
        words = f"power cap of {name} {cap_w:g} → {LOOSER * cap_w:g} W"
        types = tuple(
            replace(one, power_cap_w=LOOSER * cap_w) if one.name == name else one for one in problem.gpu_types
        )
        relief = Relief(kind="power_cap", subject=name, words=words, saving=0.0, basis="relaxation")
        yield _Question(relief=relief, problem=replace(problem, gpu_types=types))


def _short_of_watts(problem: Problem, plan: Plan) -> set[str]:
    company = Company(problem)
    return {
        gpu.gpu_type
        for gpu in plan.gpus
        if company.seats(gpu) is not None and any(use.rule == "power" and use.is_full for use in company.uses(gpu))
    }


def _choices(problem: Problem, prices: Prices) -> Iterator[_Question]:
    """All GPU types for a service that may not use some of them, those that pay most for their requests first."""
    names = [gpu_type.name for gpu_type in problem.gpu_types]
    bound = [service for service in problem.services if not all(service.allows(name) for name in names)]

    def paid(service: ServiceDemand) -> float:
        price = prices.of_service(service.name)
        return 0.0 if price is None else price.per_rps * service.arrival_rate_rps

    for service in sorted(bound, key=paid, reverse=True)[:_MOST_CHOICES]:
        others = ", ".join(name for name in names if not service.allows(name))
        relief = Relief(
            kind="gpu_types",
            subject=service.name,
            words=f"{service.name} on {others}, too",
            saving=0.0,
            basis="relaxation",
        )
        free = replace(service, allowed_gpu_types=None)
        services = tuple(free if one.name == service.name else one for one in problem.services)
        yield _Question(relief=relief, problem=replace(problem, services=services))


def _with_slos(problem: Problem, names: Collection[str]) -> Problem:
    """The problem with looser SLOs of these services."""
    services = tuple(
        replace(service, slo_ms=LOOSER * service.slo_ms) if service.name in names else service
        for service in problem.services
    )
    return replace(problem, services=services)
