"""vLLM: the JSON of `vllm bench serve --save-result` and of `vllm bench latency --output-json`; SGLang's likewise.

`--append-result` leaves several objects in one file; each is a sample. Source: vllm/benchmarks/serve.py and latency.py,
sglang/benchmark/serving.py; docs/measure.md gives the mapping.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from app.measurements.benchmarks import (
    BenchmarkConditions,
    BenchmarkRow,
    Imported,
    Latency,
    make_imported,
    refuse_latency,
    required,
)
from app.measurements.plausible import (
    Quantiles,
    RunFigures,
    failure_note,
    failure_problem,
    find_contradiction,
    known_number,
    order_problem,
)
from app.measurements.records import JsonRecord, read_json_records
from app.measurements.rows import file_name
from app.measurements.tables import POSITIVE, NumberRange
from solvers.types.documents.strict_json import describe

MS_PER_S = 1000.0
_COUNT = NumberRange(at_least=1.0)
_REQUEST_MS = ("mean_e2el_ms", "mean_e2e_latency_ms")
"""The mean time of a request, as vLLM and as SGLang call it."""


def read_vllm(
    source: Path, conditions: BenchmarkConditions, *, latency: Latency = Latency.REQUEST
) -> Imported:
    """Samples from vLLM's result files. Raises InvalidRequest."""
    refuse_latency(latency, (Latency.REQUEST, Latency.TOKEN), "vLLM")
    rows = []
    notes = []
    for result in list(read_json_records(source)):
        rows.append(_row(result, conditions, latency))
        if note := failure_note(flat_figures(result.fields)):
            notes.append(f"sample {len(rows)}: {note}")
    return make_imported(rows, conditions, file=file_name(source), notes=notes)


def _row(
    result: JsonRecord, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    _refuse_failures(result)
    if _has(result, "avg_latency"):
        return _offline_row(result, conditions, latency)
    if _has(result, "request_throughput"):
        return _serving_row(result, conditions, latency)
    # Both kinds of file are named: the reader may have saved the wrong one of two.
    known = "request_throughput (vllm bench serve) nor avg_latency (vllm bench latency)"
    raise result.refusal(
        f"neither {known} is here; other benchmarks tell no latency",
        "request_throughput",
    )


def _offline_row(
    result: JsonRecord, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    """`vllm bench latency`: one batch from its prompts to its last token, in seconds."""
    refuse_latency(latency, (Latency.REQUEST,), "vllm bench latency")
    if problem := _offline_problem(result):
        raise result.refusal(f"{problem}; such figures cannot be used", "avg_latency")
    return BenchmarkRow(
        network=required(
            # In the file since vLLM 0.31.
            conditions.network
            or (_network(result) if _has(result, "model_id") else None),
            "--network",
            "the file of vllm bench latency does not say the network",
        ),
        batch=required(
            conditions.batch,
            "--batch",
            "the file of vllm bench latency does not say its --batch-size",
        ),
        latency_ms=_number(result, "avg_latency") * MS_PER_S,
    )


def _offline_problem(result: JsonRecord) -> str:
    """Which of the times of `vllm bench latency` contradict each other; nothing where none do."""
    listed = result.fields.get("latencies")
    known = [known_number(each) for each in listed] if isinstance(listed, list) else []
    stated = result.fields.get("percentiles")
    levels = {
        float(name) / 100.0: known_number(value)
        for name, value in (stated.items() if isinstance(stated, Mapping) else ())
        if re.fullmatch(r"\d{1,2}(\.\d+)?", str(name))
    }
    if known:
        levels |= {0.0: min(known), 1.0: max(known)}
    return order_problem("latency", levels, mean=_known(result.fields, "avg_latency"))


def _serving_row(
    result: JsonRecord, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    """`vllm bench serve`: continuous batches, whose mean size follows from Little's law."""
    network = conditions.network or _network(result)
    request_ms = _request_ms(result)
    _refuse_contradictions(result)
    # Requests under way = rate × time of each; fewer than one on average still means a batch of one.
    under_way = max(1.0, _number(result, "request_throughput") * request_ms / MS_PER_S)
    latency_ms = (
        request_ms if latency is Latency.REQUEST else _number(result, "mean_tpot_ms")
    )
    return BenchmarkRow(
        network=network, batch=conditions.batch or under_way, latency_ms=latency_ms
    )


def _request_ms(result: JsonRecord) -> float:
    """Mean time of a request; without it, first token plus the others at their mean pace."""
    for name in _REQUEST_MS:
        if _has(result, name):
            return _number(result, name)
    tokens = _number(result, "total_output_tokens", _COUNT) / _number(
        result, "completed", _COUNT
    )
    if tokens <= 1.0:  # Of a single token there is no pace.
        return _number(result, "mean_ttft_ms")
    return _number(result, "mean_ttft_ms") + (tokens - 1.0) * _number(
        result, "mean_tpot_ms"
    )


def _network(result: JsonRecord) -> str:
    """`Llama-3.1-8B-Instruct` of `meta-llama/Llama-3.1-8B-Instruct`."""
    name = result.fields.get("model_id")
    if (
        not isinstance(name, str)
        or not name.rstrip("/").rpartition("/")[2].isprintable()
        or not name.strip("/ ")
    ):
        raise result.refusal(
            "must name the network; or say it with --network", "model_id"
        )
    return name.rstrip("/").rpartition("/")[2].strip()


def _has(result: JsonRecord, name: str) -> bool:
    return result.fields.get(name) is not None


def _number(result: JsonRecord, name: str, allowed: NumberRange = POSITIVE) -> float:
    """A field's number. Raises InvalidRequest, which names line and column of the field."""
    value = result.fields.get(name)
    number = known_number(value)
    if not allowed.holds_one(number):
        raise result.refusal(f"must be a number {allowed}, not {describe(value)}", name)
    return number


def _refuse_failures(result: JsonRecord) -> None:
    if problem := failure_problem(flat_figures(result.fields)):
        raise result.refusal(problem, "completed")


def _refuse_contradictions(result: JsonRecord) -> None:
    for quantity, (levels, mean) in flat_quantiles(result.fields).items():
        if problem := order_problem(f"{quantity}_ms", levels, mean=mean):
            raise result.refusal(
                f"{problem}; such figures cannot be used", f"mean_{quantity}_ms"
            )
    if problem := find_contradiction(flat_figures(result.fields)):
        raise result.refusal(
            f"{problem}; such figures cannot be used", "request_throughput"
        )


_FLAT = re.compile(r"(median|p([\d.]+)|min|max)_(\w+?)_ms")
_ENDS = {"min": 0.0, "median": 0.5, "max": 1.0}


def flat_quantiles(
    fields: Mapping[str, object],
) -> Mapping[str, tuple[Quantiles, float]]:
    """Quantiles and mean of each quantity, such as those of `p99_ttft_ms` and `mean_ttft_ms`."""
    levels: dict[str, dict[float, float]] = {}
    for name in fields:
        if match := _FLAT.fullmatch(name):
            known = levels.setdefault(match[3], {})
            known[_level(match)] = _known(fields, name)
    return {
        name: (known, _known(fields, f"mean_{name}_ms"))
        for name, known in levels.items()
    }


def _level(match: re.Match[str]) -> float:
    return float(match[2]) / 100.0 if match[2] else _ENDS[match[1]]


def flat_figures(fields: Mapping[str, object]) -> RunFigures:
    """The figures of one result."""
    completed = _known(fields, "completed")
    output = (
        _known(fields, "total_output_tokens") / completed if completed else math.nan
    )
    measured = [_known(fields, name) for name in _REQUEST_MS]
    return RunFigures(
        clients=_known(fields, "max_concurrency"),
        completed=completed,
        failed=_failed(fields, completed),
        duration_s=_known(fields, "duration"),
        rate_rps=_known(fields, "request_throughput"),
        output_tokens=output,
        output_tokens_per_s=_known(fields, "output_throughput"),
        request_ms=next((each for each in measured if not math.isnan(each)), math.nan),
        ttft_ms=_known(fields, "mean_ttft_ms"),
        tpot_ms=_known(fields, "mean_tpot_ms"),
    )


def _failed(fields: Mapping[str, object], completed: float) -> float:
    failed = _known(fields, "failed")
    if math.isnan(failed):
        # Not every release counts them: those that were sent and not completed failed.
        failed = max(0.0, _known(fields, "num_prompts") - completed)
    errors = fields.get("errors")
    listed = sum(bool(each) for each in errors) if isinstance(errors, list) else 0
    return max(float(listed), failed)


def _known(fields: Mapping[str, object], name: str) -> float:
    """A number of at least 0; NaN where there is none."""
    return known_number(fields.get(name))
