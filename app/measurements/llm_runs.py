"""Runs of language models' servers as other tools measured them: clients, token lengths and the time between tokens.

Known are the results of `vllm bench serve` (one run), of GuideLLM (`benchmarks`, one each), and of AIPerf and
GenAI-Perf (one run). Only means are read, of runs in which a fixed number of clients sent one request after the other.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.measurements.rows import file_name, read_bytes
from solvers.types.errors import InvalidInput

MAX_RUNS = 1000
MAX_FIGURE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """One closed-loop run."""

    clients: float
    prompt: float
    """Mean tokens."""
    output: float
    """Mean tokens."""
    tpot_ms: float


def read_runs(path: Path) -> tuple[ServerRun, ...]:
    """All runs of a file. Raises InvalidInput, whose field begins with the file's name."""
    name = file_name(path)
    try:
        document = json.loads(read_bytes(path))
    except ValueError as error:
        raise InvalidInput(name, f"is not JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise InvalidInput(name, "must be an object, as the tools write it")
    runs = tuple(_runs(name, document))
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InvalidInput(name, f"has {len(runs)} runs; there must be 1 to {MAX_RUNS}")
    return runs


def _runs(name: str, document: Mapping[str, object]) -> Iterator[ServerRun]:
    benchmarks = document.get("benchmarks")
    if isinstance(benchmarks, list):
        for at, entry in enumerate(benchmarks):
            yield _guidellm(Place(f"{name}: benchmarks[{at}]", entry))
    elif "mean_tpot_ms" in document:
        yield _vllm(Place(name, document))
    elif "inter_token_latency" in document:
        yield _aiperf(Place(name, document))
    else:
        raise InvalidInput(
            name,
            "is no result of `vllm bench serve --save-result`, GuideLLM, AIPerf or GenAI-Perf",
        )


class Place:
    """An object in a file, which says where a figure is missing."""

    def __init__(self, path: str, value: object) -> None:
        self._path, self._value = path, value

    def figure(self, *names: str) -> float:
        """A number above 0 at these names, one below the other."""
        value = self._value
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # NaN fails both comparisons.
        if not is_number or not 0.0 < float(value) <= MAX_FIGURE:  # type: ignore[arg-type]
            field = ".".join(names)
            raise InvalidInput(
                f"{self._path}: {field}",
                "is missing, or no number above 0: measure with streaming, and with a fixed number of clients",
            )
        return float(value)  # type: ignore[arg-type]

    def has(self, *names: str) -> bool:
        """Whether there is anything at these names."""
        value = self._value
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value is not None


def _vllm(place: Place) -> ServerRun:
    completed = place.figure("completed")
    return ServerRun(
        clients=place.figure("max_concurrency"),
        prompt=place.figure("total_input_tokens") / completed,
        output=place.figure("total_output_tokens") / completed,
        tpot_ms=place.figure("mean_tpot_ms"),
    )


def _guidellm(place: Place) -> ServerRun:
    def mean(metric: str) -> float:
        return place.figure("metrics", metric, "successful", "mean")

    return ServerRun(
        # What was in flight, whatever the strategy: sweeps have runs at fixed rates, too.
        clients=mean("request_concurrency"),
        prompt=mean("prompt_token_count"),
        output=mean("output_token_count"),
        tpot_ms=mean("inter_token_latency_ms"),
    )


def _aiperf(place: Place) -> ServerRun:
    is_genai_perf = place.has("input_config", "perf_analyzer")
    kept = ("perf_analyzer", "stimulus") if is_genai_perf else ("loadgen",)
    return ServerRun(
        clients=place.figure("input_config", *kept, "concurrency"),
        prompt=place.figure("input_sequence_length", "avg"),
        output=place.figure("output_sequence_length", "avg"),
        tpot_ms=place.figure("inter_token_latency", "avg"),
    )
