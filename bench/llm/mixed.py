"""Language models next to services that share GPUs, on one fleet: gap to the bound of the whole.

    python -m bench.llm.mixed [--shared ../shared]

50 language models, as in `bench.llm.fleet`, next to 50 services of the catalogue on 1,000 GPUs; policy `joint`, 10 s.
`others_gap_percent`: the gap of these services alone, as a share of the cost of all.
"""

import math
from dataclasses import replace

import numpy as np

from app.catalogue.catalogue import list_networks, load_gpu_types, load_profiles
from app.solver.process import PlanAnswer, PlanRequest, run_policy
from bench.llm.fleet import BUDGET_S, PRICES, load_capacities, make_problem
from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.outcome import Budget
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import Observed

GPUS = 1000
MODELS = SERVICES = 50
USE = {"plenty": 0.5, "tight": 0.8, "scarce": 0.9}
"""Shares of the fleet that the language models alone would use."""
CATALOGUE_NAMES = {
    "l40s": "L40S",
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
}
"""GPU types for which the catalogue has operating points, by their names here."""
NETWORKS = 10
SLOS_MS = (50.0, 100.0, 200.0)


def with_others(problem: Problem, services: int, seed: int) -> Problem:
    """The problem with `services` services that share GPUs next to its language models."""
    generator = np.random.default_rng(seed)
    networks = list_networks("inference")[:NETWORKS]
    ours = {name: own for own, name in CATALOGUE_NAMES.items()}
    points = tuple(
        replace(each, gpu_type=ours[each.gpu_type])
        for each in load_profiles(networks, ours)
    )
    shipped = {ours[each.name]: each for each in load_gpu_types(ours)}
    types = tuple(
        replace(
            shipped.get(each.name, each),
            name=each.name,
            price_usd_per_hour=each.price_usd_per_hour,
            memory_mib=each.memory_mib,
            count=each.count,
            gpus_per_node=each.gpus_per_node,
        )
        for each in problem.gpu_types
    )
    clocks = {each.name: each.clocks_mhz[-1] for each in types}
    batches = sorted({row.batch for each in points for row in each.rows})
    return replace(
        problem,
        max_replicas_per_gpu=4,
        capacity_law=make_capacity_law([0.95], batches),
        gpu_types=types,
        points=points,
        services=tuple(
            ServiceDemand(
                name=f"other-{at:03d}",
                network=networks[at % len(networks)],
                slo_ms=float(generator.choice(SLOS_MS)),
                percentile=0.95,
                arrival_rate_rps=float(np.exp(generator.normal(5.5, 1.0))),
            )
            for at in range(services)
        ),
        llm_points=tuple(
            replace(
                each,
                rows=tuple(
                    # A board of 350 W has no room for the watts of the other types.
                    row._replace(clock_mhz=clocks[each.gpu_type], power_w_per_gpu=200.0)
                    for row in each.rows
                ),
            )
            for each in problem.llm_points
        ),
    )


def measure_mixed(problem: Problem, fleet: str) -> Figures:
    """One row of the second table."""
    alone = _solved(replace(problem, llm_services=(), llm_points=())).report
    answer = _solved(problem)
    report = answer.report
    bound = alone.lower_bound_usd_per_hour
    own = alone.cost_usd_per_hour - bound if bound is not None else math.nan
    return {
        "fleet": fleet,
        "cost_usd_per_hour": round(report.cost_usd_per_hour, 2),
        "gap_percent": None
        if report.gap_percent is None
        else round(report.gap_percent, 2),
        "others_gap_percent": round(100.0 * own / report.cost_usd_per_hour, 2),
        "seconds": round(report.seconds, 1),
        "short_services": len(answer.plan.unserved),
        "violations": len(violations(problem, answer.plan)),
    }


def _solved(problem: Problem) -> PlanAnswer:
    return run_policy(
        PlanRequest(
            policy="joint",
            problem=problem,
            observed=Observed(at_s=0.0),
            memory=None,
            budget=Budget(seconds=BUDGET_S, work=BUDGET_S),
        )
    )


def main() -> None:
    """Print the table and write it."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    capacities = load_capacities(shared / "data" / "llm_fleet" / "capacities.csv")
    rows = []
    for fleet, use in USE.items():
        problem = make_problem(
            capacities,
            PRICES["planner"],
            gpus=GPUS,
            services=MODELS,
            seed=0,
            use=use,
        )
        rows.append(measure_mixed(with_others(problem, SERVICES, seed=99), fleet))
    print_table(rows)
    write_results("llm_mixed", rows)


if __name__ == "__main__":
    main()
