"""The same scenario, seeds and work budget give the same report, byte for byte, in whatever process it is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.runner import cli
from tests.app.runs import POOL, SERVICE, a_document


def everything() -> dict[str, Any]:
    """Policies whose solvers are bounded by work; a governor, clients, bursts, two GPU types, tasks and faults."""
    governed = {
        "policy": "joint",
        "settings": {"governor": "batch_dvfs", "energy_price_usd_per_kwh": 5.0},
    }
    return a_document(
        duration_s=70,
        warm_up_s=30,
        step_s=10,
        seeds=[7],
        policies=["hetsev", governed],
        loop={
            "period_s": 10,
            "window_s": 5,
            "stale_after_s": 30,
            "solve_work": 0.1,
            "solve_seconds": 600,
        },
        fleet=[POOL, {**POOL, "name": "t4", "gpu_type": "T4"}],
        services=[
            {**SERVICE, "load": {"rate_rps": 150, "bursts": {"service": "code"}}},
            {**SERVICE, "name": "vgg16", "network": "vgg16", "load": {"clients": 6}},
            {
                **SERVICE,
                "name": "jump",
                "load": {"levels": {"rates_rps": [20, 200], "mean_stays_s": [10, 10]}},
            },
        ],
        tasks=[
            {
                "name": "t",
                "kind": "training",
                "network": "resnet18-training",
                "batch": 128,
                "iterations": 100_000,
            },
            {
                "name": "due",
                "kind": "offline",
                "network": "resnet50",
                "batch": 8,
                "iterations": 500,
                "submit_s": 33.3,
                "deadline_s": 80,
            },
        ],
        faults=[
            {"kind": "gpu_lost", "node": "v100-1", "start_s": 41.5, "end_s": 60},
            {"kind": "stale", "node": "t4-1", "start_s": 50, "end_s": 70, "delay_s": 8},
        ],
    )


def report(folder: Path, document: dict[str, Any], *, processes: int) -> bytes:
    """The file that the command writes, without its end: how many seconds each decision took."""
    scenario, written = folder / "scenario.yaml", folder / "report.json"
    scenario.write_text(json.dumps(document))
    result = cli("simulate", scenario, "-o", written, "-j", str(processes))
    assert result.code == 0, result.err
    head, seconds, _ = written.read_bytes().partition(b'\n "seconds": ')
    assert seconds and len(runs_of(head)) == 2
    return head


@pytest.mark.thorough
def test_the_report_is_the_same_a_second_time_and_by_two_processes_and_another_seed_s_is_not(
    tmp_path: Path,
) -> None:
    first = report(tmp_path, everything(), processes=1)
    assert report(tmp_path, everything(), processes=1) == first
    # Each has a hash seed of its own, so that an order by hash would show.
    assert report(tmp_path, everything(), processes=2) == first
    other = everything()
    other["spec"]["seeds"] = [8]
    another = report(tmp_path, other, processes=1)
    assert arrived(another) != arrived(first)


def arrived(head: bytes) -> list[int]:
    return [service["arrived"] for service in runs_of(head)[0]["services"]]


def runs_of(head: bytes) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(head.rstrip(b",") + b"}")["runs"]
    return runs
