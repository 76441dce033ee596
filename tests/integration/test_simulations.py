"""Simulations over the API: a real scenario in a real process, and everything that may happen to it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.api_harness import Api, running_api

pytestmark = pytest.mark.integration

SCENARIO = {
    "kind": "Scenario",
    "metadata": {"name": "small"},
    "spec": {
        "duration_s": 60,
        "step_s": 30,
        "policies": ["k8s_hpa", "hetsev"],
        "loop": {"period_s": 15},
        "fleet": [{"name": "t4", "gpu_type": "T4", "nodes": 2}],
        "services": [
            {
                "name": "classify",
                "network": "resnet50",
                "slo": {"latency_ms": 400, "percentile": 0.98},
                "load": {"rate_rps": 20},
            }
        ],
    },
}


@pytest.fixture
def api(database: str) -> Iterator[Api]:
    with running_api(database) as found:
        yield found


def ask(api: Api, **wanted: object) -> Any:
    answer = api.call("POST", "simulations", {"scenario": SCENARIO, **wanted}, token="operator")
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/api/v1/simulations/{answer.json()['id']}"
    return answer.json()


def until(look: Callable[[], Any], within_s: float = 120.0) -> Any:
    """What `look` finds, as soon as it is true; the time is for machines that do other things as well."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


def ended(api: Api, number: int) -> Any:
    def look() -> Any:
        row = api.get(f"simulations/{number}")
        return row if row["finished_at"] else None

    return until(look)


def test_a_scenario_is_run_and_its_reports_are_there(api: Api) -> None:
    made = ask(api)
    assert (made["state"], made["progress"], made["policies"]) == ("queued", 0.0, ["k8s_hpa", "hetsev"])
    done = ended(api, made["id"])
    assert (done["state"], done["error"], done["progress"]) == ("finished", None, 1.0)
    assert [each["policy"] for each in done["summary"]["policies"]] == ["k8s_hpa", "hetsev"]
    page = api.call("GET", f"simulations/{made['id']}/report", token="viewer")
    assert "small: policies side by side" in page.text
    figures = api.get(f"simulations/{made['id']}/report.json")
    costs = [each["cost_usd"]["mean"] for each in figures["policies"]]
    assert [each["cost_usd"]["mean"] for each in done["summary"]["policies"]] == costs
