"""A published experiment with an autoscaler of language models, simulated: what is kept, and with how many replicas.

    python -m bench.llm.stages [seeds]

llm-d's guide (`guides/workload-autoscaling`, 2026, Apache-2.0): Qwen3-32B at TP 2 on H100, rates in stages from 1 to 10
requests per second, 3 to 8 replicas, a start of 100 s; each request is to have its first token within 3 s and the
others within 100 ms on average. The production loop decides for engines whose steps are sums of measured kernels
(`bench.llm.engine_truth`), with the settings that ship: at even distances, as in the experiment, and under Poisson
arrivals, the mean of several seeds. Replicas count from their start to the end of their drain.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
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
SEEDS = 4
GPUS, TP, GPUS_PER_NODE = 16, 2, 8
BEFORE_S = 1140
"""The first stage's rate before the time that counts: the published predictor was calibrated for as long."""


def main(seeds: int = SEEDS) -> None:
    """One line per kind of arrivals, and what was published."""
    rates = stage_rates()
    table: list[Figures] = []
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "stages.csv"
        lines = [f"{second},{rate}" for second, rate in enumerate(rates)]
        trace.write_text("\n".join(["second,qwen", *lines, ""]))
        for name, is_even in (("even", True), ("Poisson", False)):
            document = a_scenario(len(rates), 1 if is_even else seeds, is_even=is_even)
            scenario = SimulationScenario.model_validate(document)
            jobs = jobs_of(scenario, shipped_catalogue(scenario), Path(place))
            table.append(_line(f"joint, {name} arrivals", [*map(simulate, jobs)]))
            print_table(table[-1:])
    table += PUBLISHED
    print_table(table)
    write_results("llm_stages", table)


def stage_rates() -> list[float]:
    """The rate of each second, the time before the experiment among them."""
    rates = [STAGES[0][0]] * BEFORE_S
    for rate_rps, duration_s in STAGES:
        rates += [rate_rps] * duration_s
    return rates


def a_scenario(duration_s: int, seeds: int, *, is_even: bool) -> Mapping[str, Any]:
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
                    "load": {
                        "even": is_even,
                        "trace": {"file": "stages.csv", "column": "qwen"},
                    },
                }
            ],
        },
    }


def _line(who: str, results: Sequence[RunResult]) -> Figures:
    """Means over runs."""

    def mean(value: Callable[[RunResult], float], digits: int = 2) -> float:
        return round(fmean(map(value, results)), digits)

    return {
        "who": who,
        "in SLO %": mean(lambda each: 100.0 * (each.services[0].attainment or 0.0)),
        "replicas": mean(
            lambda each: sum(each.gpu_hours.values()) * 3600.0 / each.counted_s / TP
        ),
        "USD": mean(lambda each: each.cost_usd),
        "starts": mean(lambda each: float(each.moves.replicas_started), 1),
        "TTFT p99 ms": mean(lambda each: each.services[0].latency_ms["p99"] or 0.0, 0),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
