"""The same scenario, seeds and work budget give the same report, byte for byte, in whatever process it is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.runner import cli
from tests.app.runs import SERVICE, a_document
from tests.simulation.golden import a_golden_document


def everything() -> dict[str, Any]:
    """Policies whose solvers are bounded by work; a governor, clients, bursts, tasks and faults."""
    specs = [a_golden_document(name)["spec"] for name in ("tasks", "clients")]
    governed = {
        "policy": "joint",
        "settings": {"governor": "batch_dvfs", "energy_price_usd_per_kwh": 5.0},
    }
    bursts = {"rate_rps": 150, "bursts": {"service": "code"}}
    crowd, vgg = specs[1]["services"]
    services = [{**SERVICE, "load": bursts}, {**crowd, "name": "crowd"}, vgg]
    own = {"services": services, "policies": ["hetsev", governed], "step_s": 10}
    return a_document(**specs[0] | own | {"duration_s": 110, "seeds": [7]})


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
