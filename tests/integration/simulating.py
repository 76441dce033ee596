"""A scenario of a minute and what tests do with it over the API."""

import contextlib
import os
from typing import Any

import psutil

from tests.integration.api_harness import Api
from tests.waiting import until

SCENARIO: dict[str, Any] = {
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


def scenario(**spec: object) -> dict[str, Any]:
    """The same with some fields otherwise."""
    return {**SCENARIO, "spec": {**SCENARIO["spec"], **spec}}


def ask(api: Api, document: object = SCENARIO, **wanted: object) -> int:
    """The id of the simulation that is asked for."""
    answer = api.call(
        "POST", "simulations", {"scenario": document, **wanted}, token="operator"
    )
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/api/v1/simulations/{answer.json()['id']}"
    return int(answer.json()["id"])


def hasten() -> None:
    """Let simulations that this process has started run next to others.

    They are scheduled where a machine has nothing else to do, which one that is busy for minutes never has.
    """
    for child in psutil.Process().children():
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(child.pid) == os.SCHED_IDLE:
                os.sched_setscheduler(child.pid, os.SCHED_OTHER, os.sched_param(0))


def in_state(api: Api, number: int, *states: str) -> Any:
    """The simulation, as soon as it is in one of these states."""

    def look() -> Any:
        hasten()
        row = api.get(f"simulations/{number}")
        return row if row["state"] in states else None

    return until(look)
