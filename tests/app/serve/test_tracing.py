"""Traces of ticks: a span per step with the solver's status in it; nothing at all where none are asked for."""

import subprocess
import sys

import pytest

from app.loop.tick import TickOutcome
from app.serve.tracing import TickTracer, is_wanted, make_tracer
from solvers.types.outcome import PlanReport, SolveReport, SolveStatus
from tests.waiting import PATIENCE_S

SECOND_NS = 1_000_000_000
STEPS = ("snapshot", "forecast", "decide", "record", "push")


def outcome() -> TickOutcome:
    """A tick of one second: a tenth to read, six to decide (of which two solves took five), two to write and push."""
    steps = (
        SolveReport(
            technique="autoscale",
            method="cp-sat",
            status=SolveStatus.TIME_LIMIT,
            seconds=0.4,
        ),
        SolveReport(
            technique="placement",
            method="greedy",
            status=SolveStatus.FEASIBLE,
            objective=4.0,
            seconds=0.1,
        ),
    )
    return TickOutcome(
        state="target",
        generation=3,
        plan_id=12,
        policy="hetsev",
        cost_usd_per_hour=4.0,
        seconds={**dict.fromkeys(STEPS, 0.1), "decide": 0.6, "total": 1.0},
        report=PlanReport(
            status="feasible",
            cost_usd_per_hour=4.0,
            method="hetsev",
            gap_percent=2.5,
            steps=steps,
        ),
    )


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "p"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"},
            True,
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        (
            {
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
            },
            False,
        ),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_the_standard_variables_say_whether_there_are_traces(
    environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(environment) is wanted


def test_nothing_is_imported_where_nobody_asks() -> None:
    program = (
        "import sys\nfrom app.serve.tracing import make_tracer\nassert make_tracer({}) is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_a_tick_is_a_span_with_its_steps_and_solves_inside() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    ).InMemorySpanExporter()
    provider = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    TickTracer(provider=provider, now_ns=lambda: 10 * SECOND_NS).note(outcome())
    spans = {span.name: span for span in memory.get_finished_spans()}
    names = {span.context.span_id: name for name, span in spans.items()}
    parents = {
        name: names[span.parent.span_id]
        for name, span in spans.items()
        if span.parent is not None
    }
    solves = {"solve autoscale": "tick.decide", "solve placement": "tick.decide"}
    assert parents == {f"tick.{step}": "tick" for step in STEPS} | solves
    assert {span.context.trace_id for span in spans.values()} == {
        spans["tick"].context.trace_id
    }
    assert (spans["tick"].start_time, spans["tick"].end_time) == (
        9 * SECOND_NS,
        10 * SECOND_NS,
    )
    assert spans["tick.decide"].start_time == 9 * SECOND_NS + SECOND_NS // 5
    assert (
        spans["solve placement"].end_time
        == spans["tick.decide"].start_time + SECOND_NS // 2
    )
    assert spans["solve autoscale"].attributes["plimsoll.status"] == "time_limit"
    assert [spans[f"tick.{step}"].attributes["plimsoll.step"] for step in STEPS] == [
        1,
        4,
        5,
        6,
        7,
    ]
    assert spans["tick"].attributes["plimsoll.gap_percent"] == 2.5
    assert "plimsoll.reason" not in spans["tick"].attributes


def test_the_tracer_sends_by_otlp_under_our_name_unless_another_is_given() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    tracer = make_tracer(asked)
    assert tracer is not None
    assert tracer.provider.resource.attributes["service.name"] == "plimsoll-controller"
    tracer.close()
