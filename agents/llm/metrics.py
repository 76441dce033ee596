"""The stand-in's metrics, under vLLM's names: counts since its start, as vLLM 0.19 tells them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agents.llm.scheduler import BLOCK_TOKENS, LlmScheduler, Step

# The bounds are vLLM's.
_BOUNDS_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    80.0,
)
_BOUNDS_TOKENS = (
    1.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
)


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        place = sum(value > bound for bound in self.bounds)
        self.counts[place] += times
        self.total += value * times

    def lines(self, name: str, label: str) -> Iterable[str]:
        counted = 0
        for bound, count in zip(
            (*self.bounds, float("inf")),
            self.counts or [0] * (len(self.bounds) + 1),
            strict=True,
        ):
            counted += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{{label},le="{shown}"}} {counted}'
        yield f"{name}_sum{{{label}}} {self.total:.9g}"
        yield f"{name}_count{{{label}}} {counted}"


class EngineMetrics:
    """What the stand-in has counted."""

    def __init__(self, served_as: str) -> None:
        self._label = f'model_name="{served_as}"'
        self._prompt_tokens = self._tokens = self._ended = 0
        self._times = {
            name: _Histogram(_BOUNDS_S)
            for name in (
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "e2e_request_latency_seconds",
            )
        }
        self._steps = _Histogram(_BOUNDS_TOKENS)
        self._answers = _Histogram(_BOUNDS_TOKENS)

    def note_step(self, step: Step, tokens: int) -> None:
        """A step is over; `tokens`: that it gave."""
        self._steps.observe(float(step.tokens))
        self._prompt_tokens += sum(chunk for _, chunk in step.chunks)
        self._tokens += tokens

    def note_token(self, seconds: float, *, is_first: bool) -> None:
        """A request has a token; `seconds`: since it came, or since the token before."""
        name = (
            "time_to_first_token_seconds" if is_first else "inter_token_latency_seconds"
        )
        self._times[name].observe(seconds)

    def note_end(self, seconds: float, tokens: int) -> None:
        """A request is over."""
        self._ended += 1
        self._times["e2e_request_latency_seconds"].observe(seconds)
        self._answers.observe(float(tokens))

    def text(self, scheduler: LlmScheduler) -> str:
        """The page in Prometheus' format."""
        label, size = self._label, scheduler.size
        gauges = {
            "num_requests_running": float(scheduler.running),
            "num_requests_waiting": float(scheduler.waiting),
            "kv_cache_usage_perc": scheduler.used_blocks / size.kv_blocks,
            "num_preemptions_total": float(scheduler.preemptions),
            "prompt_tokens_total": float(self._prompt_tokens),
            "generation_tokens_total": float(self._tokens),
        }
        lines = [f"vllm:{name}{{{label}}} {value:g}" for name, value in gauges.items()]
        lines.append(
            f'vllm:request_success_total{{{label},finished_reason="length"}} {self._ended}'
        )
        cache = f'block_size="{BLOCK_TOKENS}",num_gpu_blocks="{size.kv_blocks}"'
        lines.append(f"vllm:cache_config_info{{{label},{cache}}} 1")
        lines += self._steps.lines("vllm:iteration_tokens_total", label)
        lines += self._answers.lines("vllm:request_generation_tokens", label)
        for name, histogram in self._times.items():
            lines += histogram.lines(f"vllm:{name}", label)
        return "\n".join(lines) + "\n"
