"""vLLM: the JSON of `vllm bench serve --save-result` and of `vllm bench latency --output-json`.

`--append-result` leaves several objects in one file; each is a sample. Source: vllm/benchmarks/serve.py and latency.py;
docs/measure.md gives the mapping.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.base.errors import InvalidRequest
from app.measurements.benchmarks import (
    BenchmarkConditions,
    BenchmarkRow,
    Imported,
    Latency,
    make_imported,
    refuse_latency,
    required,
)
from app.measurements.rows import file_name, read_bytes, refusal
from app.measurements.tables import POSITIVE, NumberRange
from solvers.types.documents.strict_json import describe

MS_PER_S = 1000.0
_COUNT = NumberRange(at_least=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """One JSON object, and where it starts in its file."""

    file: str
    text: str
    start: int
    fields: Mapping[str, object]

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def number(self, name: str, allowed: NumberRange = POSITIVE) -> float:
        """A field's number. Raises InvalidRequest, which names line and column of the field."""
        value = self.fields.get(name)
        # In Python a bool is an int, which no latency is.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(
                f"must be a number {allowed}, not {describe(value)}", name
            )
        if not math.isfinite(value) or not allowed.holds_one(float(value)):
            raise self.refusal(f"must be {allowed}, not {value}", name)
        return float(value)

    def refusal(self, problem: str, name: str) -> InvalidRequest:
        """The error that names a field; without the field, the object."""
        # The first occurrence behind the object's start: a decoder keeps no positions of its own.
        at = self.text.find(f'"{name}"', self.start)
        offset = at if at >= 0 and name in self.fields else self.start
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        return InvalidRequest(problem, f"{self.file}:{line}:{column}: {name}")


def read_vllm(
    source: Path, conditions: BenchmarkConditions, *, latency: Latency = Latency.REQUEST
) -> Imported:
    """Samples from vLLM's result files. Raises InvalidRequest."""
    refuse_latency(latency, (Latency.REQUEST, Latency.TOKEN), "vLLM")
    results = list(_read_results(source))
    rows = [_row(result, conditions, latency) for result in results]
    return make_imported(rows, conditions, file=file_name(source))


def _row(
    result: _Result, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    if result.has("avg_latency"):
        return _offline_row(result, conditions, latency)
    if result.has("request_throughput"):
        return _serving_row(result, conditions, latency)
    # Both kinds of file are named: the reader may have saved the wrong one of two.
    known = "request_throughput (vllm bench serve) nor avg_latency (vllm bench latency)"
    raise result.refusal(
        f"neither {known} is here; other benchmarks tell no latency",
        "request_throughput",
    )


def _offline_row(
    result: _Result, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    """`vllm bench latency`: one batch from its prompts to its last token, in seconds."""
    refuse_latency(latency, (Latency.REQUEST,), "vllm bench latency")
    return BenchmarkRow(
        network=required(
            conditions.network,
            "--network",
            "the file of vllm bench latency does not say the network",
        ),
        batch=required(
            conditions.batch,
            "--batch",
            "the file of vllm bench latency does not say its --batch-size",
        ),
        latency_ms=result.number("avg_latency") * MS_PER_S,
    )


def _serving_row(
    result: _Result, conditions: BenchmarkConditions, latency: Latency
) -> BenchmarkRow:
    """`vllm bench serve`: continuous batches, whose mean size follows from Little's law."""
    network = conditions.network or _network(result)
    request_ms = _request_ms(result)
    # Requests under way = rate × time of each; fewer than one on average still means a batch of one.
    under_way = max(1.0, result.number("request_throughput") * request_ms / MS_PER_S)
    latency_ms = (
        request_ms if latency is Latency.REQUEST else result.number("mean_tpot_ms")
    )
    return BenchmarkRow(
        network=network, batch=conditions.batch or under_way, latency_ms=latency_ms
    )


def _request_ms(result: _Result) -> float:
    """Mean time of a request; without it, first token plus the others at their mean pace."""
    if result.has("mean_e2el_ms"):
        return result.number("mean_e2el_ms")
    tokens = result.number("total_output_tokens", _COUNT) / result.number(
        "completed", _COUNT
    )
    if tokens <= 1.0:  # Of a single token there is no pace.
        return result.number("mean_ttft_ms")
    return result.number("mean_ttft_ms") + (tokens - 1.0) * result.number(
        "mean_tpot_ms"
    )


def _network(result: _Result) -> str:
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


def _read_results(source: Path) -> Iterator[_Result]:
    """The JSON objects of a file, one after another."""
    file = file_name(source)
    try:
        text = read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refusal(
            f"not UTF-8 text: {error.reason} at byte {error.start + 1}", file=file
        ) from error
    decoder = json.JSONDecoder()
    start = _skip_blanks(text, 0)
    if start == len(text):
        raise refusal("the file is empty; it must hold a JSON object", file=file)
    # Not one document per line: `--append-result` writes objects one behind the other, each over many lines.
    while start < len(text):
        try:
            document, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise InvalidRequest(
                f"not JSON: {error.msg}", f"{file}:{error.lineno}:{error.colno}"
            ) from error
        except (RecursionError, ValueError) as error:
            raise refusal(f"not JSON that can be read: {error}", file=file) from error
        yield _result(file, text, start, document)
        start = _skip_blanks(text, end)


def _result(file: str, text: str, start: int, document: object) -> _Result:
    fields = document if isinstance(document, dict) else {}
    result = _Result(file=file, text=text, start=start, fields=fields)
    if not isinstance(document, dict):
        raise result.refusal(f"must be an object, not {describe(document)}", "document")
    return result


def _skip_blanks(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
