"""Policy `mudi` in the whole loop: training gets done, and services keep their SLOs before everything."""

from pathlib import Path

import pytest

from app.simulate.run.build import shipped_catalogue
from app.simulate.run.results import RunResult
from app.simulate.run.run import jobs_of, simulate
from tests.app.runs import a_scenario

SERVICES = (("images", "resnet50", 150.0, 40.0), ("text", "vgg16", 330.0, 60.0))
TRAININGS = (
    ("resnet18-training", 128, 2000),
    ("lm-training", 20, 5000),
    ("bert-training", 16, 300),
    ("lm-training", 20, 4000),
    ("recommendation-training", 2048, 6000),
)
FLEET = {
    "name": "a100",
    "gpu_type": "A100-40GB",
    "nodes": 1,
    "gpus_per_node": 4,
    "launch_s": 10,
}


def run(policy: str, *, spike: float = 1.0) -> RunResult:
    """Two services with two A100s each, and five trainings, for eight minutes."""
    spikes = [{"start_s": 240, "length_s": 60, "factor": spike, "ramp_s": 60}]
    scenario = a_scenario(
        duration_s=480,
        warm_up_s=60,
        step_s=30,
        seeds=[3],
        policies=[policy],
        loop={"period_s": 5, "max_replicas_per_gpu": 1},
        fleet=[FLEET],
        services=[
            {
                "name": name,
                "network": network,
                "slo": {"latency_ms": slo_ms, "percentile": 0.98},
                "scaling": {"min_replicas": 2},
                "load": {"rate_rps": rate_rps, "spikes": spikes},
            }
            for name, network, slo_ms, rate_rps in SERVICES
        ],
        tasks=[
            {
                "name": f"t{number}",
                "kind": "training",
                "network": network,
                "batch": batch,
                "iterations": count,
            }
            for number, (network, batch, count) in enumerate(TRAININGS)
        ],
    )
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    return simulate(job)


@pytest.mark.parametrize("spike", [3.0, pytest.param(1.0, marks=pytest.mark.thorough)])
def test_training_gets_done_and_every_slo_is_kept(spike: float) -> None:
    found = run("mudi", spike=spike)
    assert found.refused == 0
    assert all(
        service.attainment is not None and service.attainment >= 0.98
        for service in found.services
    )
    assert all(task.finished_s is not None for task in found.tasks)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["muxflow", "gslice", "gpulets"])
def test_baselines_run_training_too_and_no_physical_rule_is_broken(policy: str) -> None:
    found = run(policy)
    assert found.refused == 0
    assert sum(task.done_iterations > 0.0 for task in found.tasks) >= 3
