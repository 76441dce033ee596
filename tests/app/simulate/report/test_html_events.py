"""Faults and spikes: what was missed in them, and when services were in SLO again, by hand."""

import math
from dataclasses import replace

import pytest

from app.simulate.report.html_events import ReportedEvent, events_section, recovery_s
from app.simulate.run.results import RunResult, ServiceSeries
from tests.app.runs import SERVICE, a_run, a_scenario, a_service_result

GOOD, BAD = 0.99, 0.5


def course(
    *attainment: float | None, missed: list[int] | None = None, seed: int = 1
) -> RunResult:
    """Steps of 60 s from second 60 on, of a service that is to have 98 % in SLO."""
    count = len(attainment)
    series = ServiceSeries(
        arrival_rate_rps=[1.0] * count,
        planned_rps=[1.0] * count,
        attainment=list(attainment),
        p99_ms=[None] * count,
        replicas=[1] * count,
        missed=missed or [0] * count,
    )
    run = a_run(seed=seed, services=(a_service_result("resnet50"),))
    return replace(
        run,
        series=replace(
            run.series, power_w=[0.0] * count, services={"resnet50": series}
        ),
    )


@pytest.mark.parametrize(
    ("attainment", "after_s"),
    [
        ((GOOD, GOOD, GOOD, GOOD), 0.0),
        ((BAD, GOOD, GOOD, GOOD), 0.0),  # That was before.
        # From 130 s to 180 s; what comes later has another reason.
        ((GOOD, BAD, GOOD, BAD), 50.0),
        ((GOOD, GOOD, BAD, GOOD), 110.0),
        ((GOOD, BAD, None, GOOD), 50.0),  # Nothing that finished was late.
        ((GOOD, BAD, BAD, BAD), math.inf),
        ((GOOD, GOOD, GOOD, BAD), 0.0),  # That began when it was over.
    ],
)
def test_it_is_over_when_a_step_is_in_slo_again(
    attainment: tuple[float | None, ...], after_s: float
) -> None:
    # It touches the steps from 120 s and from 180 s.
    event = ReportedEvent(title="e", start_s=130.0, end_s=190.0, service="resnet50")
    assert recovery_s(course(*attainment), event, 60.0) == after_s


def test_of_services_that_are_not_concerned_nothing_counts() -> None:
    event = ReportedEvent(title="e", start_s=60.0, end_s=120.0, service="another")
    assert recovery_s(course(BAD), event, 60.0) == 0.0


def test_every_fault_and_spike_has_a_row_under_every_policy() -> None:
    spike = {"start_s": 150, "length_s": 10, "factor": 3, "ramp_s": 20}
    scenario = a_scenario(
        duration_s=300,
        warm_up_s=60,
        services=[{**SERVICE, "load": {"rate_rps": 1, "spikes": [spike]}}],
        faults=[
            {"kind": "silent", "node": "v100-1", "start_s": 10, "end_s": 60},
            {"kind": "gpu_lost", "node": "v100-1", "start_s": 185},
        ],
    )
    one = [
        course(GOOD, BAD, GOOD, GOOD, missed=[1, 2, 4, 8]),
        course(GOOD, BAD, BAD, GOOD, missed=[0, 4, 0, 0], seed=2),
    ]
    page = "".join(
        events_section(
            scenario.spec, {"one": one, "two": [course(GOOD, GOOD, BAD, BAD)]}
        )
    )
    assert "silent" not in page
    # The spike goes from 130 s to 180 s, one step: 2 and 4 missed; in the second seed it is over at 240 s.
    assert "<td>resnet50: 3 times the load from 2 min 30 s on</td><td" in page
    assert '<td class="left">two</td><td>0</td><td>never out</td>' in page
    # The GPU is lost from 185 s on, two steps: 12 and 0 missed.
    assert '<td class="left">one</td><td>6</td><td>55 s</td>' in page
    assert (
        '<td class="left">two</td><td>0</td><td><span class="bad">not to the end</span></td>'
        in page
    )
