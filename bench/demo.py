"""The demo's result without its clock: cost of `k8s_hpa` over that of ours on the same requests, and the SLOs.

Run: `python -m bench.demo`. Prints two tables and writes bench/results/demo.json and demo_services.json.

The demo's cluster, services and load (app/demo/scenario.py) on a clock that jumps, with a store in memory; solvers
count work units instead of seconds, so that a seed gives one result on every machine.
"""

import asyncio
import time
from dataclasses import dataclass

from agents.sim.cluster import ServiceTotals
from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.demo.feed import attainment
from app.demo.scenario import DURATION_S, demo_cluster
from app.simulate.run.accounting import Bill, make_bill
from app.simulate.run.closed_loop import ClosedLoop
from app.solver.process import InlineSolver
from bench.report import Figures, print_table, write_results

SEED = 1
OURS = ("joint", "hetsev")
BASELINE = "k8s_hpa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy over the whole trace."""

    bill: Bill
    totals: tuple[ServiceTotals, ...]
    plans_pushed: int
    wall_s: float


async def simulate(policy: str, seed: int) -> Outcome:
    """The whole trace under one policy."""
    plan, clock, began = (
        demo_cluster(policy, seed),
        ManualControlClock(),
        time.perf_counter(),
    )
    loop = ClosedLoop(
        plan,
        world=load_truth(),
        clock=clock,
        solver=InlineSolver(),
        promises_may_break=policy == BASELINE,
    )
    for _ in range(round(DURATION_S / plan.agent_period_s)):
        await loop.pass_time(plan.agent_period_s)
        await loop.step()
        await loop.tick_if_due()
    pushed = loop.store.pushed
    return Outcome(
        bill=make_bill(pushed, plan.gpu_types, clock.now()),
        totals=loop.cluster.totals(),
        plans_pushed=len(pushed),
        wall_s=time.perf_counter() - began,
    )


def costs(outcomes: dict[str, Outcome]) -> list[Figures]:
    """One row per policy, and the ratios in both accountings: the baseline pays for whole GPUs in either."""
    rows: list[Figures] = [
        {
            "policy": policy,
            "whole_gpu_usd": outcome.bill.total_usd,
            "used_memory_usd": sum(outcome.bill.memory_usd.values()),
            "plans_pushed": outcome.plans_pushed,
            "wall_s": outcome.wall_s,
        }
        for policy, outcome in outcomes.items()
    ]
    return [
        *rows,
        *(_ratios(ours, outcomes[ours].bill, outcomes[BASELINE].bill) for ours in OURS),
    ]


def _ratios(name: str, ours: Bill, baseline: Bill) -> Figures:
    return {
        "policy": f"{BASELINE} / {name}",
        "whole_gpu_usd": baseline.total_usd / ours.total_usd,
        "used_memory_usd": baseline.total_usd / sum(ours.memory_usd.values()),
        "plans_pushed": None,
        "wall_s": None,
    }


def services(outcomes: dict[str, Outcome]) -> list[Figures]:
    """One row per policy and service."""
    return [
        {
            "policy": policy,
            "service": totals.service,
            "requests": totals.arrivals,
            "in_slo_percent": 100.0 * (attainment(totals) or 0.0),
            "rejected": totals.rejected,
            "usd": outcome.bill.whole_gpu_usd.get(totals.service, 0.0),
        }
        for policy, outcome in outcomes.items()
        for totals in outcome.totals
    ]


def main() -> None:
    """Simulate all policies, print the tables, write the JSON."""
    outcomes = {
        policy: asyncio.run(simulate(policy, SEED)) for policy in (*OURS, BASELINE)
    }
    print(f"Demo, {DURATION_S / 60:.0f} minutes of load, seed {SEED}: cost")
    print_table(costs(outcomes))
    print("\nRequests within the SLO (98 % are promised)")
    print_table(services(outcomes))
    write_results("demo", costs(outcomes))
    write_results("demo_services", services(outcomes))


if __name__ == "__main__":
    main()
