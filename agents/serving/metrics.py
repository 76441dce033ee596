"""What a worker counts, for Prometheus. Every label has a closed set of values, whatever clients send."""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from agents.serving.engines.errors import DropReason

Outcome: TypeAlias = Literal["ok", "bad", "not_taken", "late", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "bad", "not_taken", "late", "failed")
DROP_REASONS: tuple[DropReason, ...] = (
    "queue_full",
    "not_ready",
    "deadline",
    "abandoned",
    "stopped",
)

GAUGES: Mapping[str, str] = {
    "queue_length": "Waiting requests.",
    "batch_limit_rows": "Maximum number of rows in a batch now.",
    "delay_limit_seconds": "Maximum wait for a full batch now.",
    "ready": "1 while requests are accepted.",
    "sm_count": "Multiprocessors that the process may use; 0: no GPU.",
}

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
SECONDS = tuple(0.0005 * 2.0**step for step in range(18))
"""0.5 ms to 65 s, doubling."""


class WorkerMetrics:
    """One worker's counts since it started, in a registry of their own."""

    def __init__(self) -> None:
        # Not the global registry: several workers may live in one process, as they do in tests.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = self._counter(
            "requests",
            "Inference requests answered, by outcome.",
            "outcome",
        )
        self._drops = self._counter(
            "drops", "Requests that were not run, by reason.", "reason"
        )
        self._batches = self._counter("batches", "Batches that ended.", "outcome")
        self._rows = self._histogram(
            "batch_size_rows", "Rows of the batches that ran.", ROWS
        )
        self._execution = self._histogram(
            "execution_seconds", "Time of a batch in the engine.", SECONDS
        )
        self._latency = self._histogram(
            "latency_seconds",
            "Arrival of a request to its answer, if it was run.",
            SECONDS,
        )
        # A series that is there from the start can be alerted on: nothing is then 0, not absent.
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        for reason in DROP_REASONS:
            self._drops.labels(reason)
        for ended in ("ok", "failed"):
            self._batches.labels(ended)
        self.batches = 0
        """Batches that ran to their end; the sums below are of the same batches."""
        self.requests = 0
        """Requests answered with a result."""
        self.rows = 0
        self.execution_s = 0.0

    def observe(self, name: str, read: Callable[[], float]) -> None:
        """Add one of GAUGES, which is read when it is asked for."""
        Gauge(
            f"plimsoll_worker_{name}", GAUGES[name], registry=self._registry
        ).set_function(read)

    def answered(self, outcome: Outcome, latency_s: float) -> None:
        """A request was answered."""
        self._requests.labels(outcome).inc()
        if outcome == "ok":
            self.requests += 1
            # Only of answers: a refusal in a microsecond would make an overloaded worker look fast.
            self._latency.observe(latency_s)

    def batch_ended(self, *, rows: int, execution_s: float, is_ok: bool) -> None:
        """A batch ended; `execution_s` counts only where it did so well."""
        self._batches.labels("ok" if is_ok else "failed").inc()
        if is_ok:
            self.batches += 1
            self.rows += rows
            self.execution_s += execution_s
            self._rows.observe(rows)
            self._execution.observe(execution_s)

    def dropped(self, reason: DropReason) -> None:
        """A request was not run."""
        self._drops.labels(reason).inc()

    def text(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str, label: str) -> Counter:
        return Counter(
            f"plimsoll_worker_{name}", help_text, (label,), registry=self._registry
        )

    def _histogram(
        self, name: str, help_text: str, buckets: tuple[float, ...]
    ) -> Histogram:
        return Histogram(
            f"plimsoll_worker_{name}",
            help_text,
            buckets=buckets,
            registry=self._registry,
        )
