"""Reliefs put to the test: the relaxation of the loosened problem, solved from the patterns that it had before.

What saves less than the relaxation's own tolerance is not told from nothing, and left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from solvers.explain.neighbours import NeighbourReader
from solvers.explain.relaxed_limits import (
    LOOSER,
    priced_reliefs,
    sorted_reliefs,
    with_slos,
)
from solvers.explain.types import Relief, ReliefKind
from solvers.joint.patterns.deadline import never
from solvers.joint.relaxation.dual_prices import Relaxed, relax
from solvers.joint.reserved import split
from solvers.laws.capacity_law import make_capacity_law
from solvers.tick.survive import without_goal
from solvers.types.outcome import Prices
from solvers.types.plan import Plan
from solvers.types.problem import Problem, ServiceDemand

_MAX_SLOS = 5
_MAX_CHOICES = 3
"""Services whose percentile, loss or choice of GPU types is put to the test, those of the greatest promise first."""
POINT = 0.01
"""A point of attainment."""
LOWEST_PERCENTILE = 0.5
"""Below the median a promise means little (`app.manifests`)."""
_MIN_SAVING = 5e-4
"""Share of the relaxation's cost that a relief must save: less is within the relaxation's own tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A loosened problem that is worth solving."""

    relief: Relief
    """Its saving is what is hoped for."""
    problem: Problem


def solved_reliefs(
    reader: NeighbourReader,
    plan: Plan,
    prices: Prices,
    base: Relaxed,
    *,
    is_over: Callable[[], bool] = never,
) -> tuple[Relief, ...]:
    """The same with the most promising ones solved again while there is time; those that save nothing are left out.

    base: the relaxation that the prices come from, of `split(reader.problem)`.
    """
    known = {
        (relief.kind, relief.subject): relief
        for relief in priced_reliefs(reader, plan, prices)
    }
    # Two relaxations can be compared in money only, and only where both are at their optimum.
    if prices.unit != "usd_per_hour" or not base.relaxation.is_exact:
        return sorted_reliefs(known.values())
    start = base.as_plan()
    for question in _questions(reader, plan, prices, tuple(known.values())):
        if is_over():
            break
        # Limits are loosened on whole types, since people know no halves.
        found = relax(split(question.problem), start=start, is_over=is_over)
        # Time ran out in the middle: the questions that follow would fare no better.
        if found is None or not found.relaxation.is_exact:
            break
        saving = base.cost_usd_per_hour - found.cost_usd_per_hour
        key = question.relief.kind, question.relief.subject
        # The estimate gives way to what was solved, also where that saves nothing.
        known.pop(key, None)
        if saving > _MIN_SAVING * base.cost_usd_per_hour:
            known[key] = replace(question.relief, saving=saving, basis="relaxation")
    return sorted_reliefs(known.values())


def _questions(
    reader: NeighbourReader,
    plan: Plan,
    prices: Prices,
    hopes: Sequence[Relief],
) -> Iterator[_Question]:
    """Loosened problems by what they are worth in time: SLOs, percentiles, losses, caps, then choices of types."""
    slos = [relief for relief in hopes if relief.kind == "slo"]
    for relief in slos[:_MAX_SLOS]:
        yield _Question(
            relief=relief,
            problem=with_slos(reader.problem, {relief.subject}),
        )
    yield from _percentiles(reader.problem, slos)
    yield from _survivals(reader.problem)
    yield from _caps(reader, plan)
    yield from _choices(reader.problem, prices)


def _percentiles(problem: Problem, slos: Sequence[Relief]) -> Iterator[_Question]:
    """One point of attainment less, for the services whose looser SLOs promise most: what the last point costs."""
    names = [relief.subject for relief in slos[:_MAX_CHOICES]]
    for service in map(problem.service, names):
        lower = round(service.percentile - POINT, 6)
        if lower > LOWEST_PERCENTILE:
            relief = _unsolved(
                "percentile",
                service.name,
                f"percentile of {service.name} {service.percentile:g} → {lower:g}: one point of attainment",
            )
            yield _Question(
                relief=relief, problem=with_percentile(problem, service.name, lower)
            )


def with_percentile(problem: Problem, name: str, percentile: float) -> Problem:
    """The problem where that service asks for another percentile; the law gets a row for it where it has none."""
    law = problem.capacity_law
    if percentile not in law.percentiles:
        found = make_capacity_law([percentile], law.batches)
        row = tuple(
            tuple(
                found.utilisation(percentile, batch, ratio) for ratio in law.slo_ratios
            )
            for batch in law.batches
        )
        rows = dict(zip(law.percentiles, law.max_utilisation, strict=True))
        rows[percentile] = row
        law = replace(
            law,
            percentiles=tuple(sorted(rows)),
            max_utilisation=tuple(rows[one] for one in sorted(rows)),
        )
    services = tuple(
        replace(one, percentile=percentile) if one.name == name else one
        for one in problem.services
    )
    return replace(problem, services=services, capacity_law=law)


def _survivals(problem: Problem) -> Iterator[_Question]:
    """Nothing to survive, for each service whose replicas are limited for a loss: what that promise costs."""
    limited = {one.name for one in problem.services if one.max_replica_rps is not None}
    goals = [goal for goal in problem.survival if goal.service in limited]
    # Those with the largest rates most likely cost most.
    for goal in sorted(goals, key=lambda goal: (-goal.rate_rps, goal.service))[
        :_MAX_CHOICES
    ]:
        relief = _unsolved(
            "survive",
            goal.service,
            f"{goal.service} without surviving the loss of a {goal.loss} with {100.0 * goal.share:g} %",
        )
        yield _Question(relief=relief, problem=without_goal(problem, goal))


def _caps(reader: NeighbourReader, plan: Plan) -> Iterator[_Question]:
    """A higher cap for each type on which some replica of the plan is held back by the watts."""
    problem = reader.problem
    for name in sorted(reader.types_held_by(plan, "power")):
        cap_w = problem.gpu_type(name).power_cap_w
        types = tuple(
            replace(one, power_cap_w=LOOSER * cap_w) if one.name == name else one
            for one in problem.gpu_types
        )
        relief = _unsolved(
            "power_cap",
            name,
            f"power cap of {name} {cap_w:g} → {LOOSER * cap_w:g} W",
        )
        yield _Question(relief=relief, problem=replace(problem, gpu_types=types))


def _unsolved(kind: ReliefKind, subject: str, words: str) -> Relief:
    """A relief without a price of its own: what it saves only the relaxation can say."""
    return Relief(
        kind=kind,
        subject=subject,
        words=words,
        saving=0.0,
        basis="relaxation",
    )


def _choices(problem: Problem, prices: Prices) -> Iterator[_Question]:
    """All GPU types for a service that may not use some of them, those that pay most for their requests first."""
    names = [gpu_type.name for gpu_type in problem.gpu_types]
    bound = [
        service
        for service in problem.services
        if not all(service.allows(name) for name in names)
    ]

    def paid(service: ServiceDemand) -> float:
        price = prices.of_service(service.name)
        return 0.0 if price is None else price.per_rps * service.arrival_rate_rps

    for service in sorted(bound, key=paid, reverse=True)[:_MAX_CHOICES]:
        others = ", ".join(name for name in names if not service.allows(name))
        relief = _unsolved(
            "gpu_types",
            service.name,
            f"{service.name} on {others}, too",
        )
        free = replace(service, allowed_gpu_types=None)
        services = tuple(
            free if one.name == service.name else one for one in problem.services
        )
        yield _Question(relief=relief, problem=replace(problem, services=services))
