"""Small scenarios whose results are kept in tests/data/golden_simulations, and what is kept of them.

A change that is meant to change them renews the files, and its commit shows by how much:

    .venv/bin/python -m tests.simulation.golden
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.scenario import SimulationScenario
from tests.app.runs import POOL, SERVICE, a_document

FOLDER = Path(__file__).parents[1] / "data" / "golden_simulations"
DIGITS = 6
"""Of every number that is not a count: the last bits are the platform's."""

_LOOP = {
    "period_s": 10,
    "window_s": 5,
    "stale_after_s": 30,
    "solve_work": 0.1,
    "solve_seconds": 600,
}
"""Enough seconds that only work ends a solve."""
_VGG = {
    **SERVICE,
    "name": "vgg16",
    "network": "vgg16",
    "slo": {"latency_ms": 500, "percentile": 0.98},
}
_T4 = {**POOL, "name": "t4", "gpu_type": "T4"}
_TRAINING = {"kind": "training", "network": "resnet18-training", "batch": 128}
_OFFLINE = {"kind": "offline", "network": "resnet50", "batch": 8}
_POLICIES = ["k8s_hpa", "hetsev", "joint"]

_SPECS: Mapping[str, Mapping[str, Any]] = {
    "steady": {
        "services": [SERVICE, {**_VGG, "load": {"rate_rps": 40}}],
        "fleet": [POOL, _T4],
    },
    "spike": {
        "services": [
            {
                **SERVICE,
                "scaling": {"min_replicas": 1, "downscale_delay_s": 20},
                "load": {
                    "rate_rps": 80,
                    "spikes": [
                        {"start_s": 60, "length_s": 30, "factor": 5, "ramp_s": 10}
                    ],
                },
            }
        ],
    },
    "gpu_loss": {
        "services": [
            {**SERVICE, "scaling": {"min_replicas": 2}},
            {**_VGG, "load": {"rate_rps": 30}},
        ],
        "fleet": [{**POOL, "nodes": 3}],
        "faults": [
            {"kind": "gpu_lost", "node": "v100-1", "start_s": 52},
            {
                "kind": "straggler",
                "node": "v100-2",
                "start_s": 90,
                "end_s": 120,
                "factor": 1.5,
            },
        ],
    },
    # Where energy has its price the planned clock is low, and the governor turns it up as far as the cap allows.
    "governor": {
        "policies": [
            "joint",
            {
                "policy": "joint",
                "name": "governed",
                "settings": {"governor": "batch_dvfs"},
            },
        ],
        "loop": {**_LOOP, "energy_price_usd_per_kwh": 5.0},
        "services": [{**SERVICE, "network": "vgg19-trt", "load": {"rate_rps": 300}}],
        "fleet": [{**POOL, "nodes": 1}],
    },
    # One task that goes on to the end, a short one, and one that needs more than it gets; a GPU is lost under them.
    "tasks": {
        "services": [
            {
                **SERVICE,
                "load": {
                    "rate_rps": 80,
                    "spikes": [{"start_s": 60, "length_s": 30, "factor": 5}],
                },
            }
        ],
        "tasks": [
            {**_TRAINING, "name": "long", "iterations": 100_000},
            {
                **_OFFLINE,
                "name": "short",
                "iterations": 300,
                "submit_s": 35,
                "deadline_s": 140,
            },
            {
                **_OFFLINE,
                "name": "urgent",
                "iterations": 8000,
                "submit_s": 45,
                "deadline_s": 110,
                "priority": 5,
            },
        ],
        "faults": [{"kind": "gpu_lost", "node": "v100-1", "start_s": 97, "end_s": 120}],
    },
    "clients": {
        "truth": "planned",
        "services": [
            {
                **SERVICE,
                "load": {
                    "clients": [
                        {"start_s": 0, "clients": 2},
                        {"start_s": 75, "clients": 12},
                    ]
                },
            },
            {
                **_VGG,
                "load": {"levels": {"rates_rps": [5, 50], "mean_stays_s": [20, 10]}},
            },
        ],
    },
}
NAMES = tuple(_SPECS)


def a_golden_document(name: str) -> dict[str, Any]:
    """Two and a half simulated minutes, the first half minute not counted."""
    shared = {
        "duration_s": 150,
        "warm_up_s": 30,
        "step_s": 30,
        "seeds": [1],
        "policies": _POLICIES,
        "loop": _LOOP,
    }
    return a_document(**{**shared, **_SPECS[name]})


def summary(name: str) -> Any:
    """The scenario's runs as they are kept: all but series and seconds."""
    scenario = SimulationScenario.model_validate(a_golden_document(name))
    jobs = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return {"runs": [_kept(simulate(job)) for job in jobs]}


def path_of(name: str) -> Path:
    """Where the scenario's results are kept."""
    return FOLDER / f"{name}.json"


def _kept(run: RunResult) -> Any:
    document = msgspec.to_builtins(run)
    del document["series"], document["decision_seconds"]
    return _rounded(document)


def _rounded(value: Any) -> Any:
    """Floats to six digits, all else as it is."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return (
        [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
    )


def main() -> None:
    """Write every file again."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        path_of(name).write_text(
            json.dumps(summary(name), indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
