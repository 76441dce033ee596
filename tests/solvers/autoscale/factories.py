"""Autoscaling problems for tests: factories that name only what matters, random ones, and a brute-force optimum."""

import itertools
import random

from solvers.autoscale.problem import (
    AutoscaleProblem,
    AutoscaleSolution,
    ScalingOption,
    ServiceTarget,
    TypeTotals,
)


def make_problem(
    services: list[ServiceTarget],
    options: list[ScalingOption],
    totals: list[TypeTotals] | None = None,
    *,
    launch_weight_per_s: float = 0.0,
) -> AutoscaleProblem:
    """A problem; without totals every GPU type that an option names is unlimited."""
    types = sorted({option.gpu_type for option in options})
    return AutoscaleProblem(
        services=tuple(services),
        options=tuple(options),
        totals=tuple(
            totals
            if totals is not None
            else (TypeTotals(gpu_type=name) for name in types)
        ),
        launch_weight_per_s=launch_weight_per_s,
    )


def make_option(
    service: str,
    gpu_type: str,
    *,
    rps: float,
    usd: float,
    running: int = 0,
    **needs: float,
) -> ScalingOption:
    return ScalingOption(
        service=service,
        gpu_type=gpu_type,
        capacity_rps=rps,
        cost_usd_per_hour=usd,
        running=running,
        **needs,
    )


def random_problem(
    seed: int,
    *,
    services: int = 2,
    gpu_types: int = 2,
    gpus: int = 2,
    all_fresh: bool = False,
) -> AutoscaleProblem:
    """A random problem in which stock, SM percent, memory, power and replica limits may all bind."""
    draw = random.Random(seed)
    names = [f"type-{index}" for index in range(gpu_types)]
    price = {name: draw.choice([0.35, 0.9, 1.2, 3.06]) for name in names}
    targets, options = [], []
    for index in range(services):
        least = draw.choice([0, 0, 1, 2])
        most = draw.choice([None, None, least + 1])
        targets.append(
            ServiceTarget(
                name=f"service-{index}",
                arrival_rate_rps=draw.choice(
                    [0.0, draw.uniform(1, 400), draw.uniform(1, 400)]
                ),
                priority=draw.choice([1.0, 2.0, 5.0]),
                min_replicas=least,
                max_replicas=most,
            )
        )
        for name in names:
            if draw.random() < 0.85:
                options.append(
                    make_option(
                        f"service-{index}",
                        name,
                        rps=price[name] * draw.uniform(40, 140),
                        usd=price[name] * draw.choice([0.25, 0.5, 1.0]),
                        running=0 if all_fresh else draw.choice([0, 0, 1, 2, 3]),
                        launch_s=draw.choice([0.0, 20.0, 60.0]),
                        memory_mib=draw.choice([3000.0, 7000.5]),
                        sm_percent=draw.choice([30.0, 50.0, 100.0]),
                        power_w=draw.choice([40.0, 90.0]),
                    )
                )
    totals = [
        TypeTotals(
            gpu_type=name,
            gpus=gpus,
            memory_mib=16000 * gpus,
            sm_percent=100 * gpus,
            power_w=150 * gpus,
        )
        for name in names
    ]
    return make_problem(
        targets, options, totals, launch_weight_per_s=draw.choice([0.0, 0.002, 0.05])
    )


def brute_force(problem: AutoscaleProblem) -> tuple[float, float, float]:
    """The best (served weight, missing weight, cost) over all counts within the stock, which must be finite."""
    gpus = {total.gpu_type: total.gpus or 0 for total in problem.totals}
    ranges = [range(gpus[option.gpu_type] + 1) for option in problem.options]
    ratings = [
        rate(problem, counts)
        for counts in itertools.product(*ranges)
        if _is_allowed(problem, counts)
    ]
    served = max(rating[0] for rating in ratings)
    ratings = [
        rating for rating in ratings if rating[0] >= served - 1e-6 * max(1.0, served)
    ]
    missing = min(rating[1] for rating in ratings)
    return (
        served,
        missing,
        min(rating[2] for rating in ratings if rating[1] <= missing + 1e-9),
    )


def rate(
    problem: AutoscaleProblem, counts: tuple[int, ...]
) -> tuple[float, float, float]:
    """(served weight, missing weight, cost) of counts in the order of problem.options, written from the formulation."""
    served = missing = cost = 0.0
    for service in problem.services:
        own = [
            (option, count)
            for option, count in zip(problem.options, counts, strict=True)
            if option.service == service.name
        ]
        capacity = sum(option.capacity_rps * count for option, count in own)
        served += service.priority * min(service.arrival_rate_rps, capacity)
        missing += service.priority * max(
            0, service.min_replicas - sum(count for _, count in own)
        )
    for option, count in zip(problem.options, counts, strict=True):
        change = count - option.running
        launching = problem.launch_weight_per_s * option.launch_s * max(change, 0)
        cost += option.cost_usd_per_hour * (change + launching)
    return served, missing, cost


def counts_of(
    problem: AutoscaleProblem, solution: AutoscaleSolution
) -> tuple[int, ...]:
    """The solution's counts in the order of problem.options."""
    found = {(entry.service, entry.gpu_type): entry.count for entry in solution.counts}
    return tuple(found[option.service, option.gpu_type] for option in problem.options)


def broken_limits(problem: AutoscaleProblem, solution: AutoscaleSolution) -> list[str]:
    """Which limits the solution breaks; written from the formulation, without the technique's own code."""
    counts = counts_of(problem, solution)
    return [] if _is_allowed(problem, counts) else [f"counts {counts} break a limit"]


def _is_allowed(problem: AutoscaleProblem, counts: tuple[int, ...]) -> bool:
    pairs = list(zip(problem.options, counts, strict=True))
    for total in problem.totals:
        own = [
            (option, count)
            for option, count in pairs
            if option.gpu_type == total.gpu_type
        ]
        if total.gpus is not None and any(count > total.gpus for _, count in own):
            return False
        for name in ("memory_mib", "sm_percent", "power_w"):
            if sum(getattr(option, name) * count for option, count in own) > getattr(
                total, name
            ) * (1 + 1e-9):
                return False
    for name in ("cpu_cores", "cpu_memory_mib"):
        if sum(getattr(option, name) * count for option, count in pairs) > getattr(
            problem, name
        ) * (1 + 1e-9):
            return False
    for service in problem.services:
        replicas = sum(
            count for option, count in pairs if option.service == service.name
        )
        if service.max_replicas is not None and replicas > service.max_replicas:
            return False
    return True
