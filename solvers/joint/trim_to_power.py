"""A plan made to fit a power budget by leaving out what is worth least per watt: quick, and proven of nothing.

For plans that were made without regard to watts, such as one that follows from what runs: few replicas go, none moves.

    sets        replicas r of the plan's GPUs, of each single one
    parameters  w_r = priority of its service × rps that it carries; watts_r, with the GPU's idle watts for its last one
    rule        while the plan draws more than the budget, the replica of the least w_r / watts_r goes, or all those of
                the GPU of the least Σ w_r / watts where that is less; the first in the order of the plan among equals

What a replica carried is unserved for reason `power`, also where others have room for some of it. Neighbours of those
that go execute no slower, so that every promise to those that stay is kept.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from solvers.laws.cost import gpu_power_w
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import Problem, ServiceDemand

_ROUNDING = 1e-9
"""A sum of watts may be off by this share, a thousandth of the 1e-6 that the checker allows."""


def draws_w(problem: Problem, plan: Plan) -> float:
    """Watts of all used GPUs at full load. Raises InvalidInput for a service, GPU type or row that is unknown."""
    return math.fsum(gpu.count * gpu_power_w(problem, gpu) for gpu in plan.gpus)


def fits(problem: Problem, plan: Plan) -> bool:
    """Whether a plan is within the problem's power budget; so is every plan where there is none."""
    return problem.power_budget_w is None or draws_w(
        problem,
        plan,
    ) <= problem.power_budget_w * (1.0 + _ROUNDING)


def trimmed(problem: Problem, plan: Plan) -> Plan:
    """The plan without what the power budget has no watts for; the plan itself where it fits.

    O(replicas that go · GPU entries). Raises InvalidInput as `draws_w`.
    """
    budget_w = problem.power_budget_w
    if budget_w is None or fits(problem, plan):
        return plan
    gpus = _single_gpus(plan)
    lost = Counter[str]()
    drawn_w = draws_w(problem, plan)
    while gpus and drawn_w > budget_w * (1.0 + _ROUNDING):
        cut = min(_cuts(problem, gpus), key=lambda cut: cut.weight_per_w)
        gpus[cut.before] -= 1
        # Unary plus drops the entries of which none is left.
        gpus = +gpus
        if cut.after is not None:
            gpus[cut.after] += 1
        drawn_w -= cut.saved_w
        lost.update(replica.service for replica in cut.removed)
    entries = tuple(replace(gpu, count=count) for gpu, count in gpus.items())
    return replace(plan, gpus=entries, unserved=_unserved(problem, plan, entries, lost))


class _Cut(NamedTuple):
    """What may go from one GPU."""

    weight_per_w: float
    saved_w: float
    before: GpuPlan
    after: GpuPlan | None
    removed: tuple[ReplicaPlan, ...]


def _single_gpus(plan: Plan) -> Counter[GpuPlan]:
    """Entries of one GPU each, with their number."""
    # Of several GPUs that run the same, some may go and the others stay.
    gpus = Counter[GpuPlan]()
    for gpu in plan.gpus:
        gpus[replace(gpu, count=1)] += gpu.count
    return gpus


def _cuts(problem: Problem, gpus: Counter[GpuPlan]) -> Iterator[_Cut]:
    """What may go next: an entire GPU, or one of its replicas."""
    for gpu in gpus:
        gpu_w = gpu_power_w(problem, gpu)
        weight = _weight(problem, gpu.replicas)
        yield _Cut(weight / gpu_w, gpu_w, gpu, None, gpu.replicas)
        # The last replica goes with its GPU, whose idle watts go too.
        for at in range(len(gpu.replicas) if len(gpu.replicas) > 1 else 0):
            rest = replace(gpu, replicas=gpu.replicas[:at] + gpu.replicas[at + 1 :])
            saved_w = gpu_w - gpu_power_w(problem, rest)
            removed = (gpu.replicas[at],)
            # A replica that draws nothing frees no watts, whatever it is worth.
            if saved_w > 0.0:
                yield _Cut(
                    _weight(problem, removed) / saved_w,
                    saved_w,
                    gpu,
                    rest,
                    removed,
                )


def _weight(problem: Problem, replicas: Sequence[ReplicaPlan]) -> float:
    return math.fsum(
        problem.service(each.service).priority * each.arrival_rate_rps
        for each in replicas
    )


def _unserved(
    problem: Problem,
    plan: Plan,
    gpus: Sequence[GpuPlan],
    lost: Counter[str],
) -> tuple[Unserved, ...]:
    """What the plan left unserved, and what went, by service."""
    before = {entry.service: entry for entry in plan.unserved}
    entries = (
        _lost_entry(service, gpus) if lost[service.name] else before.get(service.name)
        for service in sorted(problem.services, key=lambda each: each.name)
    )
    return tuple(entry for entry in entries if entry is not None)


def _lost_entry(service: ServiceDemand, gpus: Sequence[GpuPlan]) -> Unserved | None:
    """What a service that lost replicas is short of; None where the others carry all of its rate."""
    own = [
        (gpu.count, each)
        for gpu in gpus
        for each in gpu.replicas
        if each.service == service.name
    ]
    served_rps = math.fsum(count * each.arrival_rate_rps for count, each in own)
    missing = max(0, service.min_replicas - sum(count for count, _ in own))
    rate_rps = max(0.0, service.arrival_rate_rps - served_rps)
    if not missing and rate_rps <= 0.0:
        return None
    return Unserved(
        service=service.name,
        rate_rps=rate_rps,
        reason="power",
        replicas_missing=missing,
    )
