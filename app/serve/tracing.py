"""Traces of ticks by OpenTelemetry: one span per tick, one per step in it, one per solve in the decision.

They are made after the tick from what it measured, so the loop knows nothing of them. Without the extra `otel`, or
without a place to send them to, there is no tracer and nothing is imported. The standard variables are read, by us:
OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT; by the
library: the others, e.g. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_*.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from app.loop.tick import TickOutcome
from solvers.types.outcome import SolveReport

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

log = structlog.get_logger(__name__)

STEPS: Mapping[str, int] = {
    "snapshot": 1,
    "forecast": 4,
    "decide": 5,
    "record": 6,
    "push": 7,
}
"""The loop's own numbers of the steps whose time it takes; 2 and 3 take none."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTracer:
    """Turns outcomes of ticks into spans."""

    provider: "TracerProvider"
    now_ns: Callable[[], int] = time.time_ns

    def note(self, outcome: TickOutcome) -> None:
        """One trace of a tick that has just ended."""
        from opentelemetry import trace

        tracer = self.provider.get_tracer("plimsoll.loop")
        # Only durations are measured in the tick, so that spans are laid out backwards from its end.
        end_ns = self.now_ns()
        began_ns = end_ns - round(outcome.seconds.get("total", 0.0) * _NS)
        root = tracer.start_span(
            "tick", start_time=began_ns, attributes=_attributes(outcome)
        )
        inside = trace.set_span_in_context(root)
        step_ns = began_ns
        for name, seconds in outcome.seconds.items():
            # The sum is the root span's own length.
            if name == "total":
                continue
            span = tracer.start_span(
                f"tick.{name}",
                inside,
                start_time=step_ns,
                attributes=_step_attributes(name),
            )
            if name == "decide" and outcome.report is not None:
                _add_solves(
                    tracer,
                    trace.set_span_in_context(span),
                    outcome.report.steps,
                    step_ns,
                )
            step_ns += round(seconds * _NS)
            span.end(end_time=step_ns)
        root.end(end_time=end_ns)

    def close(self) -> None:
        """Send what waits."""
        self.provider.shutdown()


def make_tracer(environment: Mapping[str, str]) -> TickTracer | None:
    """The tracer that the standard variables ask for; None: they ask for none, or the library is not there."""
    if not is_wanted(environment):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "traces are asked for, but OpenTelemetry is not there: install plimsoll[otel]"
        )
        return None
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first where they are set.
    name = environment.get("OTEL_SERVICE_NAME", "plimsoll-controller")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return TickTracer(provider=provider)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces by OTLP."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporters:
        return "otlp" in (each.strip() for each in exporters.split(","))
    return any(environment.get(name, "").strip() for name in ENDPOINTS)


def _attributes(outcome: TickOutcome) -> dict[str, str | int | float]:
    """What is known of the tick; attributes that have no value are left out."""
    report = outcome.report
    found: dict[str, str | int | float | None] = {
        "plimsoll.state": outcome.state or "held",
        "plimsoll.reason": outcome.reason or None,
        "plimsoll.generation": outcome.generation,
        "plimsoll.plan_id": outcome.plan_id,
        "plimsoll.policy": outcome.policy or None,
        "plimsoll.cost_usd_per_hour": outcome.cost_usd_per_hour,
        "plimsoll.status": None if report is None else report.status,
        "plimsoll.method": None if report is None else report.method,
        "plimsoll.gap_percent": None if report is None else report.gap_percent,
        "plimsoll.violations": len(outcome.violations),
        "plimsoll.unserved_rps": outcome.unserved_rps,
    }
    return {name: value for name, value in found.items() if value is not None}


def _step_attributes(name: str) -> dict[str, int]:
    return {"plimsoll.step": STEPS[name]} if name in STEPS else {}


def _add_solves(
    tracer: "Tracer", inside: "Context", solves: tuple[SolveReport, ...], began_ns: int
) -> None:
    """Spans of the solves, one after the other: how long each took is measured, when it began is not."""
    for solve in solves:
        attributes: dict[str, str | float] = {
            "plimsoll.problem": solve.technique,
            "plimsoll.solver": solve.method,
            "plimsoll.status": str(solve.status),
        }
        if solve.objective is not None:
            attributes["plimsoll.objective"] = solve.objective
        if solve.bound is not None:
            attributes["plimsoll.bound"] = solve.bound
        span = tracer.start_span(
            f"solve {solve.technique}",
            inside,
            start_time=began_ns,
            attributes=attributes,
        )
        began_ns += round(solve.seconds * _NS)
        span.end(end_time=began_ns)
