"""Every plan of a tiny problem, by the checker's law and nothing of the policies."""

import itertools
from collections.abc import Iterator

from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import Problem
from tests.solvers.instances import gpu_plan, replica_on
from tests.solvers.small_plans import capacity_rps

Capacities = dict[str, float]


def optimum(problem: Problem) -> tuple[float, float]:
    """The most served weight and the least cost in USD/h of a plan that serves it; stocks must be finite.

    Services must not limit their replicas.
    """
    by_type = [
        [
            (
                sum(cost for cost, _ in gpus),
                _totals(problem, [capacities for _, capacities in gpus]),
            )
            for used in range((gpu_type.count or 0) + 1)
            for gpus in itertools.combinations_with_replacement(
                _patterns(problem, gpu_type.name), used
            )
        ]
        for gpu_type in problem.gpu_types
    ]
    best = (0.0, 0.0)
    for choice in itertools.product(*by_type):
        totals = _totals(problem, [capacities for _, capacities in choice])
        weight = sum(
            each.priority * min(each.arrival_rate_rps, totals[each.name])
            for each in problem.services
        )
        best = max(best, (round(weight, 6), -sum(cost for cost, _ in choice)))
    return best[0], -best[1]


def _patterns(problem: Problem, gpu_type: str) -> list[tuple[float, Capacities]]:
    """Cost and capacities of everything that one GPU of the type may carry."""
    return [
        (
            cost_usd_per_hour(problem, Plan(policy="brute", gpus=(gpu,))),
            {
                replica.service: capacity_rps(problem, gpu, index)
                for index, replica in enumerate(gpu.replicas)
            },
        )
        for gpu in _gpus(problem, gpu_type)
        if not _is_unlawful(problem, gpu)
    ]


def _gpus(problem: Problem, gpu_type: str) -> Iterator[GpuPlan]:
    for clock_mhz in problem.gpu_type(gpu_type).clocks_mhz:
        choices: list[list[ReplicaPlan | None]] = []
        for service in problem.services:
            points = problem.points_of(service.network, gpu_type)
            rows = (
                [row for row in points.rows if row.clock_mhz == clock_mhz]
                if points
                else []
            )
            choices.append(
                [
                    None,
                    *(
                        replica_on(service.name, row.sm_percent, batch=row.batch)
                        for row in rows
                    ),
                ]
            )
        for mix in itertools.product(*choices):
            replicas = tuple(each for each in mix if each is not None)
            if replicas:
                yield gpu_plan(*replicas, gpu_type=gpu_type, clock_mhz=clock_mhz)


def _is_unlawful(problem: Problem, gpu: GpuPlan) -> bool:
    broken = violations(problem, Plan(policy="brute", gpus=(gpu,)))
    return any(entry.rule not in ("demand", "stock") for entry in broken)


def _totals(problem: Problem, parts: list[Capacities]) -> Capacities:
    return {
        service.name: sum(part.get(service.name, 0.0) for part in parts)
        for service in problem.services
    }
