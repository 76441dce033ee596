"""What each governor makes of a power cap that the plan would break: one V100 with ResNet-50 under 110 W.

Run: `python -m bench.governors`. The predictions know half of the watts, so plans believe that the cap is far away, and
nothing but the governor, or the board's own limit, keeps it. 600 rps are more than the GPU can carry under the cap,
full batches all the time; under 300 rps batches vary from second to second. Watts are means over a second. Prints a
table, writes bench/results/governors.json; takes some seconds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.base.logs import nothing_logged
from app.simulate.run.build import make_cluster, shipped_catalogue
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.simulate.scenario.scenario import SimulationScenario
from app.solver.inline import InlineSolver
from bench.report import Figures, print_table, write_results
from solvers.governors.registry import GOVERNORS

CAP_W = 110.0
SETTLED_S = 30
"""A plan, a launch, the queue of all that waited, and the way down from the highest clock are over by then."""
LENGTHS_S = {600: 200, 300: 300}
"""Seconds by rate."""
PERIOD_S = 5
"""Of agents and loop."""
TYPE = "V100-32GB"


def main() -> None:
    """Play every load under every governor, and under none."""
    rows = [
        row_of(rate_rps, governor)
        for rate_rps in LENGTHS_S
        for governor in (None, *GOVERNORS)
    ]
    print_table(rows)
    write_results("governors", rows, settings={"cap_w": CAP_W, "settled_s": SETTLED_S})


def row_of(rate_rps: int, governor: str | None) -> Figures:
    """One load under one governor."""
    closed = _closed_loop(rate_rps, governor)
    with nothing_logged():
        watts = asyncio.run(_play(closed, LENGTHS_S[rate_rps]))
    (total,) = closed.cluster.totals()
    return {
        "rate_rps": rate_rps,
        "governor": governor or "none",
        **against_cap(watts),
        "served_percent": 100.0 * total.served / total.arrivals,
    }


def against_cap(watts: Sequence[float]) -> Figures:
    """What a GPU drew, second by second, in percent of the cap: at most in the beginning, and then when settled."""
    shares = [100.0 * each / CAP_W for each in watts]
    settled = shares[SETTLED_S:]
    return {
        "first_percent": max(shares[:SETTLED_S]),
        "mean_percent": fmean(settled),
        "min_percent": min(settled),
        "max_percent": max(settled),
        "above_s": sum(each > 100.0 for each in settled),
        "settled_s": len(settled),
    }


def _closed_loop(rate_rps: int, governor: str | None) -> ClosedLoop:
    spec = {
        "duration_s": LENGTHS_S[rate_rps],
        "step_s": PERIOD_S,
        "seeds": [1],
        "policies": ["hetsev"],
        "loop": {
            "period_s": PERIOD_S,
            "window_s": PERIOD_S,
            "stale_after_s": 3 * PERIOD_S,
            "governor": governor,
        },
        "agent_period_s": PERIOD_S,
        "fleet": [{"name": "v100", "gpu_type": TYPE, "launch_s": 5}],
        "services": [
            {
                "name": "resnet50",
                "network": "resnet50",
                "slo": {"latency_ms": 300, "percentile": 0.98},
                "scaling": {"min_replicas": 1},
                "load": {"rate_rps": rate_rps},
            }
        ],
    }
    scenario = SimulationScenario.model_validate(
        {"kind": "Scenario", "metadata": {"name": "governors"}, "spec": spec}
    )
    plan = make_cluster(
        scenario,
        scenario.spec.policies[0],
        1,
        catalogue=shipped_catalogue(scenario),
        folder=Path(__file__).parent,
    )
    return ClosedLoop(
        half_known(plan),
        world=load_truth(),
        clock=ManualControlClock(),
        solver=InlineSolver(),
    )


def half_known(plan: ClusterPlan) -> ClusterPlan:
    """The same under the cap, with clocks 30 MHz apart, and with half of the watts in every operating point."""
    clocks = tuple(float(clock) for clock in range(600, 1531, 30))
    return replace(
        plan,
        gpu_types=tuple(
            replace(each, power_cap_w=CAP_W, clocks_mhz=clocks)
            for each in plan.gpu_types
        ),
        points=tuple(
            replace(
                each,
                rows=tuple(
                    row._replace(power_w=row.power_w / 2.0) for row in each.rows
                ),
            )
            for each in plan.points
        ),
    )


async def _play(closed: ClosedLoop, length_s: int) -> list[float]:
    """Mean watts of the GPU in each second."""
    watts = []
    for _ in range(length_s // PERIOD_S):
        energy_j = [_energy_j(closed)]
        for _ in range(PERIOD_S):
            await closed.pass_time(1.0)
            energy_j.append(_energy_j(closed))
        watts += [
            closed.cluster.world.idle_w(TYPE) + after - before
            for before, after in pairwise(energy_j)
        ]
        await closed.step()
        await closed.tick()
    return watts


def _energy_j(closed: ClosedLoop) -> float:
    """Of this period so far, above idle."""
    closed.cluster.advance()
    (node,) = closed.cluster.nodes.values()
    return sum(
        replica.queue.energy_j for gpu in node.gpus for replica in gpu.replicas.values()
    )


if __name__ == "__main__":
    main()
