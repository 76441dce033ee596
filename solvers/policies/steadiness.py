"""Steadiness: whether serving a little more is worth moving replicas while every GPU is in use.

A replica that moves serves nothing until it has started, and on a full GPU there is no room for it to start beside the
one that it follows. So where all GPUs are in use, each small swing of the load would cost more requests than the
better arrangement serves.
"""

from solvers.cost import served_weight, stopped
from solvers.plan import Plan
from solvers.problem import Problem

STARVED = 0.5
"""Whoever is left out by more than this part of their rate does not wait for steadiness."""


def is_worth_moving(problem: Problem, kept: Plan, other: Plan, *, hysteresis: float) -> bool:
    """Whether `other` may stop running replicas to serve more than they do, which is `kept`.

    Always while some GPU is free, where nothing stops, and where somebody is starved who would not be or replicas are
    missing that would not be; else where the part of all weight that is served goes up by more than `hysteresis` times
    the part of the running replicas that stops.
    """
    current = problem.current
    if current is None or _has_free_gpu(problem, current) or _missing(kept) > _missing(other):
        return True
    running = sum(gpu.count * len(gpu.replicas) for gpu in current.gpus)
    moved = stopped(problem, other) - stopped(problem, kept)
    everything = sum(one.priority * one.arrival_rate_rps for one in problem.services)
    if moved <= 0 or not running or everything <= 0.0 or _ends_starvation(problem, kept, other):
        return True
    gain = (served_weight(problem, other) - served_weight(problem, kept)) / everything
    return gain > hysteresis * moved / running


def _has_free_gpu(problem: Problem, current: Plan) -> bool:
    stock = [gpu_type.count for gpu_type in problem.gpu_types]
    return None in stock or sum(gpu.count for gpu in current.gpus) < sum(count or 0 for count in stock)


def _missing(plan: Plan) -> int:
    return sum(entry.replicas_missing for entry in plan.unserved)


def _ends_starvation(problem: Problem, kept: Plan, other: Plan) -> bool:
    before, after = ({entry.service: entry.rate_rps for entry in plan.unserved} for plan in (kept, other))
    return any(
        rate_rps - after.get(name, 0.0) > STARVED * problem.service(name).arrival_rate_rps
        for name, rate_rps in before.items()
    )
