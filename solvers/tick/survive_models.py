"""Survive, for language models: how many replicas a service needs, and how large, so that enough is left after a loss.

Few replicas carry such a service, each on GPUs of its own, so that their number is counted and not only their rates.

Sets and parameters
    r ∈ R        ways to run a replica, each on one GPU type
    D_r          how many GPUs, nodes or zones with room for such a replica may be lost, one at once; ≥ 2
    a_r, w_r     rps that one replica can carry, and the price of its GPUs
    λ, f, σ      as in `solvers.tick.survive`

Figures of each way, were it the only one
    K_r = ⌈σ f / a_r⌉                                     replicas that must be left
    N_r = max(K_r + ⌈K_r / (D_r − 1)⌉, ⌈λ / a_r⌉)         replicas, at least: spread evenly, a loss takes ⌈N_r / D_r⌉
    c_r = max(σ f / (N_r − ⌈N_r / D_r⌉), λ / N_r) ≤ a_r    rps that each is planned for

The way with the lowest N_r w_r is the measure for all: at least N_r replicas are planned for N_r c_r, and no replica of
any way counts for more than c_r, so that none of them is a larger loss. Where there is no room for λ, f takes its
place, since bursts that come with a loss are not reckoned with. Where the replicas stand is up to
`solvers.tick.bind_models`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from solvers.tick.survive import LossDomains, SurvivalLimits
from solvers.types.llm import LlmDemand, LlmRow
from solvers.types.problem import Problem
from solvers.types.state import GpuType
from solvers.types.survival import SurvivalGoal

_OTHER_WAY = 1.25
"""Times the price of the ways that run, below which another one becomes the measure: each change starts replicas."""
_MARGIN = 1.01
"""Times what a replica is planned for that it may count for: the planner rounds capacities down to whole steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelLimits:
    """What a service would need if all its replicas were run in one way."""

    limits: SurvivalLimits
    price: tuple[float, float, str, int]
    """(USD per hour, GPUs, GPU type, GPUs of each); the lowest is chosen."""


def with_model_limits(problem: Problem, domains: LossDomains) -> Problem:
    """The problem whose language models are planned so that the goals can be reached that their teams asked for.

    domains: of all GPUs that may be used. Nothing is asked for where the service's limit of replicas or the stock of
    every GPU type is too small.
    """
    goals = {goal.service: goal for goal in problem.survival}
    models = []
    for model in problem.llm_services:
        goal = goals.get(model.name)
        limits = _limits(problem, model, goal, domains)
        if goal is None or limits is None:
            models.append(model)
            continue
        models.append(_limited(model, limits))
        goals[model.name] = replace(
            goal,
            rate_rps=model.arrival_rate_rps,
            min_replicas=model.min_replicas,
        )
    return replace(
        problem,
        llm_services=tuple(models),
        survival=tuple(goals.values()),
    )


def _limited(model: LlmDemand, limits: SurvivalLimits) -> LlmDemand:
    return replace(
        model,
        arrival_rate_rps=limits.rate_rps,
        min_replicas=limits.min_replicas,
        max_replica_rps=limits.max_replica_rps,
    )


def _limits(
    problem: Problem,
    model: LlmDemand,
    goal: SurvivalGoal | None,
    domains: LossDomains,
) -> SurvivalLimits | None:
    """What the cheapest way needs; None where nothing is asked for, or nothing can be done."""
    if goal is None or not goal.is_asked:
        return None
    forecast = replace(model, arrival_rate_rps=goal.needed_rps / goal.share)
    # Where room for bursts does not fit as well, what is kept for a loss is room for either.
    for asked in (model, forecast):
        ways = list(_ways(problem, asked, goal, domains[goal.loss]))
        if ways:
            return min(ways, key=lambda way: way.price).limits
    return None


def _ways(
    problem: Problem,
    model: LlmDemand,
    goal: SurvivalGoal,
    by_type: Mapping[str, Mapping[str, int]],
) -> Iterator[_ModelLimits]:
    """Those for which the service may have enough replicas, and there are enough GPUs."""
    current = problem.current.llm_replicas if problem.current else ()
    running = {
        (each.gpu_type, each.tp) for each in current if each.service == model.name
    }
    for gpu_type, row in _rows(problem, model):
        # A node with fewer GPUs than a replica spans is no place for it.
        sizes = by_type.get(gpu_type.name, {}).values()
        places = sum(size >= row.tp for size in sizes)
        if places < 2:
            continue
        limits = model_limits(model, goal, row.capacity_rps, places)
        if _is_too_much(model, gpu_type, row, limits.min_replicas):
            continue
        factor = 1.0 if (gpu_type.name, row.tp) in running else _OTHER_WAY
        price = _price(gpu_type, row, limits.min_replicas, factor)
        yield _ModelLimits(limits=limits, price=price)


def _rows(problem: Problem, model: LlmDemand) -> Iterator[tuple[GpuType, LlmRow]]:
    """The ways to run the service that carry anything."""
    for gpu_type in problem.gpu_types:
        if not model.allows(gpu_type.name):
            continue
        for row in problem.llm_rows(model.name, gpu_type.name):
            if row.capacity_rps > 0.0:
                yield gpu_type, row


def _price(
    gpu_type: GpuType, row: LlmRow, replicas: int, factor: float
) -> tuple[float, float, str, int]:
    gpus = replicas * row.tp
    # GPUs that are paid for anyway cost nothing more.
    rented = max(0, gpus - gpu_type.paid_count)
    usd = factor * rented * gpu_type.price_usd_per_hour
    return usd, factor * gpus, gpu_type.name, row.tp


def model_limits(
    model: LlmDemand, goal: SurvivalGoal, capacity_rps: float, places: int
) -> SurvivalLimits:
    """What a plan must keep to where each replica can carry so much, and stands in one of `places` (≥ 2)."""
    needed = _ceil(goal.needed_rps / capacity_rps)
    replicas = max(
        needed + math.ceil(needed / (places - 1)),
        _ceil(model.arrival_rate_rps / capacity_rps),
        model.min_replicas,
    )
    left = replicas - math.ceil(replicas / places)
    replica_rps = max(goal.needed_rps / left, model.arrival_rate_rps / replicas)
    return SurvivalLimits(
        rate_rps=replicas * replica_rps,
        min_replicas=replicas,
        max_replica_rps=_MARGIN * replica_rps,
    )


def _ceil(number: float) -> int:
    # Rounded, since what replicas carry exactly may be a little more by the last digits.
    return math.ceil(round(number, 9))


def _is_too_much(
    model: LlmDemand, gpu_type: GpuType, row: LlmRow, replicas: int
) -> bool:
    """Whether `replicas` are more than the service may have, or than find GPUs."""
    if model.max_replicas is not None and replicas > model.max_replicas:
        return True
    if gpu_type.count is None:
        return False
    sets = dict(gpu_type.free_slots).get(row.tp, gpu_type.count // row.tp)
    return replicas > sets
