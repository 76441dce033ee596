"""Grouping: services in groups, each planned by a policy of its own on GPUs of its own, one group after the other.

Sets: groups k = 1 … K in their operator's order, the last of them the services of no group; S_k, the services of k; GPU
types g. Parameters: the problem; N_g, its GPUs of type g (∞ where it sets no limit); W, its power budget; H_kg, the
GPUs of type g that carry services of later groups now and none of k's. Variables: x_k, the plan of group k, of which
n_g(x_k) GPUs of type g draw w(x_k) watts.

Objective: that of each group's own policy, the first group's first. Constraints:

* only the services of k are in x_k;
* n_g(x_k) ≤ N_g − Σ_{j<k} n_g(x_j) − H_kg: a group has what no group before it uses, and leaves what later ones run on;
  where that does not serve it, the same without H: a group goes before those after it;
* w(x_k) ≤ W − Σ_{j<k} w(x_j);
* what every plan of a problem keeps.

So no GPU carries replicas of two groups, and of what runs a group's policy sees its own replicas only. Which GPUs these
are is not decided here: `bind` leaves every replica where it is as far as it can. The sum of the groups' bounds bounds
no plan that shares GPUs across them, so the whole has none. Source: ours.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.laws.cost import (
    cost_usd_per_hour,
    gpu_power_w,
    llm_power_w,
    served_weight,
)
from solvers.types.outcome import PLAN_STATUSES, PlanReport, PlanStatus, SolveReport
from solvers.types.plan import GpuPlan, Plan, gpu_counts, used_gpus
from solvers.types.problem import Problem
from solvers.types.state import GpuType

OTHERS = "others"
"""What reports call the services of no group."""
METHOD = "groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """One group as it is decided."""

    group: str
    policy: str
    services: frozenset[str]
    """Names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What its policy answered."""

    part: PlanGroup
    plan: Plan
    report: PlanReport


def part_problem(
    problem: Problem,
    services: Collection[str],
    *,
    before: Sequence[Plan] = (),
    leaving: Collection[str] = (),
) -> Problem:
    """The problem of one group: its services, on the GPUs and watts that the plans before it do not use.

    `leaving`: services of later groups; the GPUs that carry these now, and none of its own, are left to them.
    Raises InvalidInput for a plan before it that names what the problem lacks.
    """
    mine = tuple(service for service in problem.services if service.name in services)
    networks = {service.network for service in mine}
    models = tuple(each for each in problem.llm_services if each.name in services)
    used = sum(map(used_gpus, before), Counter[str]())
    gpu_types = _without(problem, used + _held(problem, services, leaving))
    counts = {each.name: each.count for each in gpu_types}
    return replace(
        problem,
        services=mine,
        llm_services=models,
        llm_points=tuple(
            points for points in problem.llm_points if points.service in services
        ),
        points=tuple(points for points in problem.points if points.network in networks),
        gpu_types=gpu_types,
        current=_own(problem.current, services, counts),
        power_budget_w=_watts_left(problem, before),
    )


def _without(problem: Problem, taken: Counter[str]) -> tuple[GpuType, ...]:
    """The GPU types without the taken GPUs."""
    # GPUs that are used and GPUs that are held back may be the same, so that together they can exceed the count.
    return tuple(
        each
        if each.count is None
        else _fewer(each, max(0, each.count - taken[each.name]))
        for each in problem.gpu_types
    )


def _fewer(gpu_type: GpuType, count: int) -> GpuType:
    # Who comes first may have broken as many sets as its GPUs fill, and by `bind_models` no more.
    used = (gpu_type.count or 0) - count
    slots = tuple(
        (size, max(0, sets - math.ceil(used / size)))
        for size, sets in gpu_type.free_slots
    )
    return replace(gpu_type, count=count, free_slots=slots)


def merged(
    problem: Problem, name: str, decided: Sequence[GroupPlan]
) -> tuple[Plan, PlanReport]:
    """One plan of all groups' plans, called `name`, and a report that says whose policy spoke where."""
    plan = Plan(
        policy=name,
        gpus=tuple(gpu for one in decided for gpu in one.plan.gpus),
        llm_replicas=tuple(each for one in decided for each in one.plan.llm_replicas),
        unserved=tuple(entry for one in decided for entry in one.plan.unserved),
    )
    # Only under this objective do reports state what is served.
    is_goodput = problem.objective == "max_goodput"
    report = PlanReport(
        status=_status([one.report.status for one in decided]),
        cost_usd_per_hour=cost_usd_per_hour(problem, plan),
        seconds=math.fsum(one.report.seconds for one in decided),
        method=METHOD,
        messages=tuple(each for one in decided for each in _messages(one)),
        served_weight=served_weight(problem, plan) if is_goodput else None,
        steps=tuple(
            _of_group(one, step) for one in decided for step in one.report.steps
        ),
    )
    return plan, report


def _held(
    problem: Problem, services: Collection[str], leaving: Collection[str]
) -> Counter[str]:
    """GPUs by type that carry some of the later groups' services now, and none of these."""
    if problem.current is None:
        return Counter()
    held = gpu_counts(
        gpu
        for gpu in problem.current.gpus
        if _runs_any(gpu, leaving) and not _runs_any(gpu, services)
    )
    for each in problem.current.llm_replicas:
        if each.service in leaving:
            held[each.gpu_type] += each.gpus
    return held


def _own(
    current: Plan | None, services: Collection[str], counts: Mapping[str, int | None]
) -> Plan | None:
    """What runs of these services, on no more GPUs than there are; where these are short, those that carry nothing else
    are kept."""
    if current is None:
        return None
    left: dict[str, float] = {
        name: math.inf if count is None else count for name, count in counts.items()
    }
    unserved = tuple(entry for entry in current.unserved if entry.service in services)
    kept = _as_far_as_left(_running(current, services, left), left)
    gpus = tuple(_only(gpu, services) for gpu in kept)
    models = tuple(each for each in current.llm_replicas if each.service in services)
    return replace(current, gpus=gpus, llm_replicas=models, unserved=unserved)


def _running(
    current: Plan, services: Collection[str], left: Mapping[str, float]
) -> list[GpuPlan]:
    """The GPUs that carry these services; where there are too few left, those that carry nothing else come first."""
    running = [gpu for gpu in current.gpus if _runs_any(gpu, services)]
    if any(count > left.get(name, 0) for name, count in gpu_counts(running).items()):
        # By their content, so that what is kept does not hang on the order in which they stand.
        running.sort(key=lambda gpu: (not _runs_only(gpu, services), repr(gpu)))
    return running


def _as_far_as_left(
    gpus: Sequence[GpuPlan], left: dict[str, float]
) -> Iterator[GpuPlan]:
    """As many of the GPUs as there are left of each type; changes `left`."""
    for gpu in gpus:
        count = int(min(gpu.count, left.get(gpu.gpu_type, 0)))
        if count:
            left[gpu.gpu_type] -= count
            yield replace(gpu, count=count)


def _only(gpu: GpuPlan, services: Collection[str]) -> GpuPlan:
    """The GPU without other groups' replicas: a group's policy must not plan with GPUs that it would share."""
    mine = tuple(each for each in gpu.replicas if each.service in services)
    return replace(gpu, replicas=mine)


def _runs_any(gpu: GpuPlan, services: Collection[str]) -> bool:
    return any(replica.service in services for replica in gpu.replicas)


def _runs_only(gpu: GpuPlan, services: Collection[str]) -> bool:
    return all(replica.service in services for replica in gpu.replicas)


def _watts_left(problem: Problem, before: Sequence[Plan]) -> float | None:
    if problem.power_budget_w is None:
        return None
    drawn = math.fsum(
        gpu.count * gpu_power_w(problem, gpu) for plan in before for gpu in plan.gpus
    )
    drawn += math.fsum(
        each.gpus * llm_power_w(problem, each)
        for plan in before
        for each in plan.llm_replicas
    )
    return max(0.0, problem.power_budget_w - drawn)


def _status(statuses: Sequence[PlanStatus]) -> PlanStatus:
    """The least certain one; parts that are optimal each make a plan that is not proven so."""
    # The statuses are listed from the most to the least certain.
    worst: PlanStatus = (
        max(statuses, key=PLAN_STATUSES.index) if statuses else "feasible"
    )
    return "feasible" if worst == "optimal" and len(statuses) > 1 else worst


def _messages(one: GroupPlan) -> tuple[str, ...]:
    report, part = one.report, one.part
    gpus = sum(gpu.count for gpu in one.plan.gpus)
    spoke = (
        f"{part.group}: {part.policy} decided, {report.status} at ${report.cost_usd_per_hour:.4f} per hour "
        f"({report.method or 'no method stated'}; services {len(part.services)}, GPUs {gpus})"
    )
    return spoke, *(f"{part.group}: {message}" for message in report.messages)


def _of_group(one: GroupPlan, step: SolveReport) -> SolveReport:
    return replace(step, technique=f"{one.part.group}: {step.technique}")
