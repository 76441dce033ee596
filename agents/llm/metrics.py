"""The stand-in's metrics, under the names and with the bounds of vLLM 0.19; counts since its start."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)

from agents.llm.scheduler import BLOCK_TOKENS, LlmScheduler, Step

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 80.0),
)
_TOKENS = (1.0, *(2.0**power for power in range(3, 15)))


class EngineMetrics:
    """What the stand-in has counted, in a registry of its own."""

    def __init__(self, served_as: str, scheduler: LlmScheduler) -> None:
        self._model = served_as
        # Not the global registry: several fake engines live in one process on nodes without GPUs.
        self._registry = CollectorRegistry()
        self._gauge("num_requests_running", lambda: scheduler.running)
        self._gauge("num_requests_waiting", lambda: scheduler.waiting)
        blocks = scheduler.size.kv_blocks
        self._gauge("kv_cache_usage_perc", lambda: scheduler.used_blocks / blocks)
        # The scheduler counts them itself, which a Counter of the library does not allow.
        self._gauge("num_preemptions_total", lambda: scheduler.preemptions)
        cache = {"block_size": str(BLOCK_TOKENS), "num_gpu_blocks": str(blocks)}
        name = "vllm:cache_config"
        info = Info(name, name, ("model_name",), registry=self._registry)
        info.labels(served_as).info(cache)
        self._prompt_tokens = self._counter("prompt_tokens")
        # It has no cache of prefixes, of which vLLM says so with zeros.
        self._counter("prefix_cache_queries")
        self._counter("prefix_cache_hits")
        self._tokens = self._counter("generation_tokens")
        self._ended = self._counter("request_success", finished_reason="length")
        self._first = self._histogram("time_to_first_token_seconds", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", _SECONDS)
        self._lasted = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self._steps = self._histogram("iteration_tokens_total", _TOKENS)
        self._answers = self._histogram("request_generation_tokens", _TOKENS)

    def note_step(self, step: Step, tokens: int) -> None:
        """A step is over; `tokens`: that it gave."""
        self._steps.observe(step.tokens)
        self._prompt_tokens.inc(sum(chunk for _, chunk in step.chunks))
        self._tokens.inc(tokens)

    def note_token(self, seconds: float, *, is_first: bool) -> None:
        """A request has a token; `seconds`: since it came, or since the token before."""
        (self._first if is_first else self._between).observe(seconds)

    def note_end(self, seconds: float, tokens: int) -> None:
        """A request is over."""
        self._ended.inc()
        self._lasted.observe(seconds)
        self._answers.observe(tokens)

    def text(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        full = f"vllm:{name}"
        gauge = Gauge(full, full, ("model_name",), registry=self._registry)
        gauge.labels(self._model).set_function(read)

    def _counter(self, name: str, **labels: str) -> Counter:
        full, values = f"vllm:{name}", {"model_name": self._model, **labels}
        counter = Counter(full, full, tuple(values), registry=self._registry)
        return counter.labels(**values)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        full = f"vllm:{name}"
        histogram = Histogram(
            full, full, ("model_name",), buckets=bounds, registry=self._registry
        )
        return histogram.labels(self._model)
