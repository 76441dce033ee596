"""What a plan of language models changes when rates move by up to ten per cent: starts, cost and time.

    python -m bench.llm.replan [--shared ../shared]

The fleets of `bench.llm.fleet`, 1,000 GPUs and 100 services, half and three quarters of them in use. Three ways to plan
once more: with what runs, which the loop does nearly always (`kept`); rearranged, with starts that cost what their GPUs
do meanwhile, as it does every few minutes (`rearranged`); and as if nothing ran (`anew`). Starts are per cent of the
replicas, cost per cent above the plan that is made from nothing. Every plan is checked.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np

from app.loop.make_problem import PLAN_LIFE_S
from bench.llm.fleet import PRICES, Capacities, load_capacities, make_problem
from bench.measured_sets import shared_folder
from bench.report import Figures, print_table, write_results
from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.llm.planner.fleet import LlmFleet, plan_llms
from solvers.llm.planner.keep import keep_llms
from solvers.types.llm import LlmReplicaPlan
from solvers.types.outcome import Budget
from solvers.types.plan import Plan
from solvers.types.problem import Problem

GPUS, SERVICES, SEEDS = 1000, 100, 3
MOVE = 0.1
BUDGET_S = 10.0
USES = {"half": 0.5, "three quarters": 0.75}


def moved(problem: Problem, seed: int) -> Problem:
    """The problem with other rates, which what served the first ones runs for."""
    first = plan_of(problem, plan_llms(problem, Budget(seconds=BUDGET_S)))
    factors = np.random.default_rng(seed).uniform(1.0 - MOVE, 1.0 + MOVE, SERVICES)
    services = zip(problem.llm_services, factors, strict=True)
    return replace(
        problem,
        current=first,
        llm_services=tuple(
            replace(each, arrival_rate_rps=each.arrival_rate_rps * float(factor))
            for each, factor in services
        ),
    )


def plan_of(problem: Problem, fleet: LlmFleet) -> Plan:
    """As a plan that the checker knows."""
    plan = Plan(policy="joint", llm_replicas=fleet.replicas, unserved=fleet.unserved)
    assert not violations(problem, plan)
    return plan


def started(before: Plan, after: Plan) -> float:
    """Replicas that are new, per cent of those that ran."""
    were, are = (Counter[object](), Counter[object]())
    for counts, plan in ((were, before), (are, after)):
        for each in plan.llm_replicas:
            counts[_kind(each)] += each.count
    return 100.0 * (are - were).total() / were.total()


def _kind(replica: LlmReplicaPlan) -> tuple[object, ...]:
    return (
        replica.service,
        replica.gpu_type,
        replica.tp,
        replica.max_num_batched_tokens,
    )


def _kept(problem: Problem) -> LlmFleet:
    found = keep_llms(problem, Budget(seconds=BUDGET_S))
    assert found is not None, "fleets have room"
    return found


def _rearranged(problem: Problem) -> LlmFleet:
    prices = [each.price_usd_per_hour for each in problem.gpu_types]
    usd = float(np.mean(prices)) / PLAN_LIFE_S
    priced = replace(problem, start_usd_per_second_and_gpu=usd)
    return plan_llms(priced, Budget(seconds=BUDGET_S))


def _anew(problem: Problem) -> LlmFleet:
    return plan_llms(replace(problem, current=None), Budget(seconds=BUDGET_S))


WAYS: dict[str, Callable[[Problem], LlmFleet]] = {
    "kept": _kept,
    "rearranged": _rearranged,
    "anew": _anew,
}


def measure(problem: Problem, names: Figures) -> Iterator[Figures]:
    """A row for each way."""
    assert problem.current is not None
    least = cost_usd_per_hour(problem, plan_of(problem, _anew(problem)))
    for way, plan_by in WAYS.items():
        began = perf_counter()
        fleet = plan_by(problem)
        seconds = perf_counter() - began
        plan = plan_of(problem, fleet)
        cost = cost_usd_per_hour(problem, plan)
        yield {
            **names,
            "planned": way,
            "started_percent": round(started(problem.current, plan), 1),
            "cost_percent": round(100.0 * (cost / least - 1.0), 2),
            "seconds": round(seconds, 2),
            "short_services": len(fleet.unserved),
        }


def run(capacities: Capacities) -> Iterator[Figures]:
    """Every fleet."""
    for prices in PRICES:
        for use, share in USES.items():
            for seed in range(SEEDS):
                problem = make_problem(
                    capacities,
                    PRICES[prices],
                    gpus=GPUS,
                    services=SERVICES,
                    seed=seed,
                    use=share,
                )
                names: Figures = {"prices": prices, "in use": use, "seed": seed}
                yield from measure(moved(problem, seed), names)


def main() -> None:
    """Print the table and write it."""
    shared = shared_folder(__doc__)
    if shared is None:
        return
    rows = list(run(load_capacities(shared / "data" / "llm_fleet" / "capacities.csv")))
    print_table(rows)
    write_results("llm_replan", rows)


if __name__ == "__main__":
    main()
