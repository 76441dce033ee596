"""A published experiment with an autoscaler of language models, simulated: what is kept, and with how many replicas.

    python -m bench.llm.stages [seeds]

llm-d's guide (`guides/workload-autoscaling`, 2026, Apache-2.0): Qwen3-32B at TP 2 on H100, rates in stages from 1 to 10 requests per second, 3 to 8 replicas, a start of
100 s; each request is to have its first token within 3 s and the others within 100 ms on average. The production loop
decides for engines whose steps are sums of measured kernels (`bench.llm.engine_truth`), under Poisson arrivals, with
the settings that ship. Replicas count from their start to the end of their drain.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.scenario import SimulationScenario
from bench.report import Figures, print_table, write_results

PUBLISHED: tuple[Figures, ...] = (
    {"who": "llm-d, calibrated P90 predictor", "in SLO %": 95.8, "replicas": 5.93},
    {"who": "llm-d, static", "in SLO %": 100.0, "replicas": 8.0},
)
STAGES = (
    (2.0, 330),
    (4.0, 360),
    (6.0, 360),
    (8.0, 360),
    (10.0, 360),
    (4.0, 360),
    (1.0, 300),
)
"""Requests per second, and for how many seconds."""
SEEDS = 5
GPUS, TP, GPUS_PER_NODE = 16, 2, 8
BEFORE_S = 330
"""The first stage's rate before the time that counts, so that it begins with replicas that are ready."""


def main(seeds: int = SEEDS) -> None:
    """One line per seed, their mean, and what was published."""
    rates = stage_rates()
    table: list[Figures] = []
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "stages.csv"
        lines = [f"{second},{rate}" for second, rate in enumerate(rates)]
        trace.write_text("\n".join(["second,qwen", *lines, ""]))
        scenario = SimulationScenario.model_validate(a_scenario(len(rates), seeds))
        for job in jobs_of(scenario, shipped_catalogue(scenario), Path(place)):
            table.append(_line(simulate(job)))
            print_table(table[-1:])
    mean = {
        name: round(sum(float(line[name]) for line in table) / len(table), 2)
        for name in ("in SLO %", "replicas", "USD")
    }
    table += [{"who": "joint, mean", **mean}, *PUBLISHED]
    print_table(table)
    write_results("llm_stages", {"runs": table})


def stage_rates() -> list[float]:
    """The rate of each second, the time before the experiment among them."""
    rates = [STAGES[0][0]] * BEFORE_S
    for rate_rps, duration_s in STAGES:
        rates += [rate_rps] * duration_s
    return rates


def a_scenario(duration_s: int, seeds: int) -> Mapping[str, Any]:
    """The experiment as a scenario's document."""
    return {
        "metadata": {"name": "stages"},
        "spec": {
            "duration_s": duration_s,
            "warm_up_s": BEFORE_S,
            "step_s": 30,
            "seeds": list(range(1, seeds + 1)),
            "policies": ["joint"],
            "fleet": [
                {
                    "name": "h100",
                    "gpu_type": "H100",
                    "nodes": GPUS // GPUS_PER_NODE,
                    "gpus_per_node": GPUS_PER_NODE,
                    "launch_s": 100,
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
                        "percentile": 0.99,
                    },
                    "llm": {
                        "lengths": {"prompt": 4000, "output": 1000, "spread": 0.08},
                        "max_model_len": 8192,
                        "tp": TP,
                    },
                    "scaling": {"min_replicas": 3, "max_replicas": GPUS // TP},
                    "load": {"trace": {"file": "stages.csv", "column": "qwen"}},
                }
            ],
        },
    }


def _line(result: RunResult) -> Figures:
    (service,) = result.services
    hours = result.counted_s / 3600.0
    return {
        "who": f"joint, seed {result.seed}",
        "in SLO %": round(100.0 * (service.attainment or 0.0), 2),
        "replicas": round(sum(result.gpu_hours.values()) / hours / TP, 2),
        "USD": round(result.cost_usd, 2),
        "starts": result.moves.replicas_started,
        "TTFT p99 ms": round(service.latency_ms["p99"] or 0.0),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
