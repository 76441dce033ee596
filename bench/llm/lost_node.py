"""How long a language model's SLO is broken when a node is lost, next to how long a replica takes to start.

    python -m bench.llm.lost_node [seeds]

Simulated, with the production loop and the settings that ship: Qwen3-32B at TP 2 on three nodes of four H100, two loads
that two nodes carry, and the busiest node lost for good; each with and without `survive: node`, by which replicas for
all of the load are left. Broken: from the loss to the end of the last step of five seconds in which less than the
percentile of the requests that ended was in time; those that had to wait meanwhile are among them, and are late
whenever they end. In the table each seed's run, with the seconds beyond a start.
"""

import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.scenario import SimulationScenario
from bench.report import Figures, print_table, write_results

SEEDS = 4
RATES_RPS = (10.0, 15.0)
START_S = 100
"""That a replica takes from its command until it serves."""
LOST_S, DURATION_S, STEP_S = 600, 1200, 5
PERCENTILE = 0.95


def main(seeds: int = SEEDS) -> None:
    """One line per load, seed and what it survives."""
    table: list[Figures] = []
    for rate_rps, survive in product(RATES_RPS, ("none", "node")):
        document = a_scenario(seeds, rate_rps, survive)
        scenario = SimulationScenario.model_validate(document)
        jobs = jobs_of(scenario, shipped_catalogue(scenario), Path())
        for seed, job in enumerate(jobs, 1):
            asked: Figures = {"rps": rate_rps, "survive": survive, "seed": seed}
            table.append({**asked, **_figures(simulate(job))})
    print_table(table)
    write_results("llm_lost_node", table)


def a_scenario(seeds: int, rate_rps: float, survive: str) -> Mapping[str, Any]:
    """The scenario's document, in which the service survives the loss of that with all of its load."""
    return {
        "metadata": {"name": "lost-node"},
        "spec": {
            "duration_s": DURATION_S,
            "warm_up_s": 300,
            "step_s": STEP_S,
            "seeds": list(range(1, seeds + 1)),
            "policies": ["joint"],
            "fleet": [
                {
                    "name": "h100",
                    "gpu_type": "H100",
                    "nodes": 3,
                    "gpus_per_node": 4,
                    "launch_s": START_S,
                }
            ],
            "services": [
                {
                    "name": "qwen",
                    "kind": "llm",
                    "network": "Qwen3-32B",
                    "slo": {
                        "ttft_ms": 3000,
                        "itl_ms": 100,
                        "itl": "request",
                        "percentile": PERCENTILE,
                    },
                    "llm": {
                        "lengths": {"prompt": 2000, "output": 200, "spread": 0.3},
                        "max_model_len": 8192,
                        "tp": 2,
                    },
                    "survive": survive,
                    "load": {"rate_rps": rate_rps},
                }
            ],
            "faults": [{"kind": "node_lost", "node": "busiest", "start_s": LOST_S}],
        },
    }


def _figures(done: RunResult) -> Figures:
    series = done.series.services["qwen"]
    # A series begins with the time that counts.
    first = DURATION_S - STEP_S * len(series.attainment)
    ends = [first + STEP_S * (at + 1) for at in range(len(series.attainment))]
    broken = [
        end
        for end, share in zip(ends, series.attainment, strict=True)
        if end > LOST_S and share is not None and share < PERCENTILE
    ]
    broken_s = max(broken, default=LOST_S) - LOST_S
    return {
        "replicas before": series.replicas[(LOST_S - first) // STEP_S - 2],
        "replicas after": series.replicas[-1],
        "broken s": broken_s,
        "beyond a start s": broken_s - START_S,
        "in SLO %": round(100.0 * (done.services[0].attainment or 0.0), 2),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
