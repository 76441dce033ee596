"""Runs of language models' servers as other tools measured them: clients, token lengths and the time between tokens.

Known are the results of `vllm bench serve` and SGLang's `bench_serving` (an object each, one behind the other), of
GuideLLM (`benchmarks`), and of AIPerf and GenAI-Perf (one run). Only means are read, of runs in which a fixed number of
clients sent one request after the other; docs/measure.md says which fields.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.base.errors import InvalidRequest
from app.measurements.plausible import (
    Quantiles,
    RunFigures,
    failure_note,
    failure_problem,
    find_contradiction,
    known_number,
    order_problem,
)
from app.measurements.records import read_json_records
from app.measurements.rows import file_name
from app.measurements.times import by_name
from app.measurements.vllm import flat_figures, flat_quantiles
from solvers.types.errors import InvalidInput

MAX_RUNS = 500
"""As many as a Network may state."""
MAX_FIGURE = 1e9
_MIN_BUSY_SHARE = 0.8
"""Clients at a limited rate count as a fixed number only where they were busy for so much of the time."""
_STREAM = "measure with streaming"
_CLIENTS = "measure with a fixed number of clients, such as --concurrency 8"
_MS_PER = by_name(
    {
        "ns, nanoseconds": 1e-6,
        "us, µs, \N{GREEK SMALL LETTER MU}s, microseconds": 1e-3,
        "ms, milliseconds": 1.0,
        "s, sec, seconds": 1e3,
    }
)
_ONE_RUN = "profile_export_aiperf.json of each run (profile_export_genai_perf.json)"
_OTHERS = {
    "metadata": f"holds single requests of AIPerf, or several runs together: give {_ONE_RUN}",
    "experiments": f"holds single requests of perf_analyzer: give {_ONE_RUN}",
}
"""Files that AIPerf and GenAI-Perf write next to their results, by a field of each."""
_TOKENS = by_name({", token, tokens, count": 1.0})
_PER_S = re.compile(r"(?:.*/\s*)?(s|sec|second|min|minute)(?:/user)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """One closed-loop run."""

    clients: float
    prompt: float
    """Mean tokens."""
    output: float
    """Mean tokens."""
    tpot_ms: float
    note: str = ""
    """What the user should know of it."""


def read_runs(path: Path) -> tuple[ServerRun, ...]:
    """All runs of a file. Raises InvalidInput, whose field begins with the file's name."""
    name = file_name(path)
    try:
        documents = [record.fields for record in read_json_records(path)]
    except InvalidRequest as error:
        raise InvalidInput(error.field or name, error.detail) from error
    runs: list[ServerRun] = []
    for at, document in enumerate(documents):
        place = name if len(documents) == 1 else f"{name}: run {at + 1}"
        runs += _runs(place, document)
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InvalidInput(name, f"has {len(runs)} runs; there must be 1 to {MAX_RUNS}")
    return tuple(runs)


def _runs(name: str, document: Mapping[str, object]) -> Iterator[ServerRun]:
    benchmarks = document.get("benchmarks")
    # Older releases of AIPerf and GenAI-Perf put the metrics into an object of their own.
    records = document.get("records")
    metrics = records if isinstance(records, Mapping) else document
    if isinstance(benchmarks, list):
        for at, entry in enumerate(benchmarks):
            yield _guidellm(Place(f"{name}: benchmarks[{at}]", entry))
    elif "mean_tpot_ms" in document:
        yield _vllm(Place(name, document))
    elif "inter_token_latency" in metrics:
        yield _aiperf(Place(name, {**document, **metrics}))
    elif "request_latency" in metrics or "mean_e2e_latency_ms" in document:
        raise InvalidInput(name, f"tells no time between tokens: {_STREAM}")
    elif aggregate := next((each for each in _OTHERS if each in document), None):
        raise InvalidInput(name, _OTHERS[aggregate])
    else:
        raise InvalidInput(
            name,
            "is no result of `vllm bench serve --save-result`, SGLang's bench_serving, GuideLLM, AIPerf or GenAI-Perf",
        )


class Place:
    """An object in a file, which says where a figure is missing."""

    def __init__(self, path: str, value: object) -> None:
        self._path = path
        self.fields = value if isinstance(value, Mapping) else {}

    def at(self, *names: str) -> object:
        """What is at these names, one below the other; None where nothing is."""
        value: object = self.fields
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def number(self, *names: str) -> float:
        """A number of at least 0 at these names; NaN where there is none."""
        return known_number(self.at(*names), at_most=MAX_FIGURE)

    def figure(self, *names: str, remedy: str = _STREAM) -> float:
        """A number above 0 at these names. Raises InvalidInput."""
        number = self.number(*names)
        if not number > 0.0:
            problem = f"is missing, or no number above 0: {remedy}"
            raise self.refusal(problem, *names)
        return number

    def unit(self, metric: str, units: Mapping[str, float]) -> float:
        """The unit of a metric that states it. Raises InvalidInput for one that is not known."""
        unit = self.at(metric, "unit")
        if unit is None:
            return 1.0
        if str(unit).casefold().strip() not in units:
            known = ", ".join(each for each in units if each)
            problem = f"is {unit!r}, and must be one of {known}"
            raise self.refusal(problem, metric, "unit")
        return units[str(unit).casefold().strip()]

    def average(self, metric: str, units: Mapping[str, float]) -> float:
        """The mean of a metric in the base unit; NaN where there is none. Raises InvalidInput."""
        return self.number(metric, "avg") * self.unit(metric, units)

    def per_second(self, metric: str) -> float:
        """The mean of a rate; NaN where there is none, or its unit is not known."""
        match = _PER_S.fullmatch(str(self.at(metric, "unit") or "s").casefold())
        if match is None:
            return math.nan
        return self.number(metric, "avg") / (60.0 if match[1].startswith("m") else 1.0)

    def refusal(self, problem: str, *names: str) -> InvalidInput:
        """The error that names a field, or the object."""
        field = ".".join(names)
        return InvalidInput(f"{self._path}: {field}" if field else self._path, problem)

    def check_order(self, name: str, levels: Quantiles, mean: float) -> None:
        """Raises InvalidInput for quantiles that contradict each other."""
        if problem := order_problem(name, levels, mean=mean):
            raise self.refusal(f"{problem}; such figures cannot be used")

    def run(self, figures: RunFigures, *, prompt: float) -> ServerRun:
        """The run, once its figures are found to be usable. Raises InvalidInput."""
        if problem := failure_problem(figures):
            raise self.refusal(problem)
        if problem := find_contradiction(figures):
            raise self.refusal(f"{problem}; such figures cannot be used")
        note = failure_note(figures)
        return ServerRun(
            clients=figures.clients,
            prompt=prompt,
            output=figures.output_tokens,
            tpot_ms=figures.tpot_ms,
            note=f"{self._path}: {note}" if note else "",
        )


def _vllm(place: Place) -> ServerRun:
    figures = flat_figures(place.fields)
    # Failures first: they are why the other figures are missing.
    if problem := failure_problem(figures):
        raise place.refusal(problem)
    completed = place.figure("completed", remedy="measure again")
    clients = place.figure(
        "max_concurrency",
        remedy="measure with a fixed number of clients, by --max-concurrency",
    )
    # Checked for their messages only; the figures are those above.
    place.figure("mean_tpot_ms")
    place.figure("total_output_tokens")
    rate = place.at("request_rate")
    is_limited = rate is not None and str(rate).casefold() not in ("inf", "infinity")
    if is_limited and not figures.under_way >= _MIN_BUSY_SHARE * clients:
        problem = f"was {rate}, so that fewer than {clients:g} clients were under way: measure with --request-rate inf"
        raise place.refusal(problem, "request_rate")
    for name, (levels, mean) in flat_quantiles(place.fields).items():
        place.check_order(f"{name}_ms", levels, mean)
    return place.run(figures, prompt=place.figure("total_input_tokens") / completed)


def _guidellm(place: Place) -> ServerRun:
    def mean(metric: str) -> float:
        return place.figure("metrics", metric, "successful", "mean")

    def known(metric: str) -> float:
        return place.number("metrics", metric, "successful", "mean")

    for metric in _GUIDELLM_TIMES:
        found = place.at("metrics", metric, "successful", "percentiles")
        place.check_order(metric, _guidellm_levels(found), math.nan)
    return place.run(
        RunFigures(
            clients=_streams(place),
            completed=_total(place, "successful"),
            # What was still under way at the end did not fail.
            failed=_total(place, "errored"),
            rate_rps=known("requests_per_second"),
            output_tokens=mean("output_token_count"),
            request_ms=known("request_latency") * 1000.0,
            ttft_ms=known("time_to_first_token_ms"),
            tpot_ms=mean("inter_token_latency_ms"),
        ),
        prompt=mean("prompt_token_count"),
    )


def _guidellm_levels(percentiles: object) -> Quantiles:
    """Levels and values of `p05` and `p999`, which are 0.05 and 0.999."""
    return {
        float(f"0.{name[1:]}"): known_number(value)
        for name, value in Place("", percentiles).fields.items()
        if re.fullmatch(r"p\d{2,}", str(name))
    }


def _total(place: Place, status: str) -> float:
    inner = place.number("metrics", "request_totals", status)
    return place.number("request_totals", status) if math.isnan(inner) else inner


def _streams(place: Place) -> float:
    """The clients as they were configured; without them, those that were in flight, whatever the strategy."""
    # `args` until 0.3, `config` since: sweeps have runs at fixed rates, too.
    for outer in ("config", "args"):
        kind = place.at(outer, "strategy", "type_")
        if kind == "synchronous":
            return 1.0
        name = "streams" if kind == "concurrent" else "max_concurrency"
        streams = place.number(outer, "strategy", name)
        if kind in ("concurrent", "throughput") and streams >= 1.0:
            return streams
    in_flight = place.figure(
        "metrics", "request_concurrency", "successful", "mean", remedy=_CLIENTS
    )
    # One client with pauses between its requests has fewer than one in flight.
    return max(1.0, in_flight)


def _aiperf(place: Place) -> ServerRun:
    for metric in ("request_latency", "time_to_first_token", "inter_token_latency"):
        place.check_order(metric, _levels(place, metric), place.number(metric, "avg"))
    tpot_ms = place.average("inter_token_latency", _MS_PER)
    if not tpot_ms > 0.0:
        place.figure("inter_token_latency", "avg")
    for metric in ("input_sequence_length", "output_sequence_length"):
        place.figure(metric, "avg")
    return place.run(
        RunFigures(
            clients=_aiperf_clients(place),
            completed=place.number("request_count", "avg"),
            failed=_aiperf_failed(place),
            rate_rps=place.per_second("request_throughput"),
            output_tokens=place.average("output_sequence_length", _TOKENS),
            output_tokens_per_s=place.per_second("output_token_throughput"),
            request_ms=place.average("request_latency", _MS_PER),
            ttft_ms=place.average("time_to_first_token", _MS_PER),
            tpot_ms=tpot_ms,
        ),
        prompt=place.average("input_sequence_length", _TOKENS),
    )


def _levels(place: Place, metric: str) -> Quantiles:
    found = {
        level / 100.0: place.number(metric, f"p{level}")
        for level in (1, 5, 10, 25, 50, 75, 90, 95, 99)
    }
    return {0.0: place.number(metric, "min"), 1.0: place.number(metric, "max")} | found


def _aiperf_failed(place: Place) -> float:
    """Failed requests; 0 where the export has no count of them, since it leaves out what is 0."""
    counted = place.number("error_request_count", "avg")
    summary = place.at("error_summary")
    listed = [
        Place("", each).number("count")
        for each in (summary if isinstance(summary, list) else ())
    ]
    return math.fsum(listed) if math.isnan(counted) else counted


_GUIDELLM_TIMES = (
    "request_latency",
    "time_to_first_token_ms",
    "inter_token_latency_ms",
)
_CLIENT_PATHS = (
    ("input_config", "loadgen"),
    ("input_config", "perf_analyzer", "stimulus"),
    ("input_config",),
)
"""Where the number of clients is: AIPerf until 0.8, GenAI-Perf, and the flat form of older releases of it."""
_RATES = ("request_rate", "rate", "user_centric_rate")


def _aiperf_clients(place: Place) -> float:
    """The clients of the phase that was measured. Raises InvalidInput where their number was not fixed."""
    load = _measured_phase(place) or _client_settings(place)
    if rate := _rate_of(load):
        problem = f"was measured at a fixed rate, of {rate:g} per second, so that the clients vary: {_CLIENTS}"
        raise place.refusal(problem, "input_config")
    is_replay = place.at("input_config", "input", "fixed_schedule") is True
    if is_replay or load.at("type") not in (None, "concurrency"):
        problem = f"was measured with requests at given times: {_CLIENTS}"
        raise place.refusal(problem, "input_config")
    clients = load.number("concurrency")
    if clients >= 1.0:
        return clients
    # An export leaves out what was not set; one client is what AIPerf then takes, and its own count says so.
    in_flight = place.number("effective_concurrency", "avg")
    if in_flight > 0.0 or load.at("type") == "concurrency":
        return max(1.0, in_flight)
    raise place.refusal(f"is missing: {_CLIENTS}", "input_config", "concurrency")


def _measured_phase(place: Place) -> Place | None:
    """AIPerf's since 0.9; other phases warm the server up. Raises InvalidInput where there are several."""
    phases = place.at("input_config", "phases")
    entries = phases if isinstance(phases, list) else [phases] if phases else []
    measured = [each for each in entries if _is_measured(each)]
    if len(measured) > 1:
        problem = "has several phases that measure, and one set of figures: run one"
        raise place.refusal(problem, "input_config", "phases")
    return Place("", measured[0]) if measured else None


def _client_settings(place: Place) -> Place:
    """What other releases and tools say of the load."""
    # The more specific places first: input_config holds other settings as well.
    found = [Place("", place.at(*path)) for path in _CLIENT_PATHS]
    said = [
        each for each in found if each.number("concurrency") > 0.0 or _rate_of(each)
    ]
    return (said or found)[0]


def _rate_of(load: Place) -> float:
    """The rate at which requests were sent; 0 where clients sent them."""
    rates = [load.number(each) for each in _RATES]
    return next((each for each in rates if each > 0.0), 0.0)


def _is_measured(phase: object) -> bool:
    load = Place("", phase)
    kind = load.at("kind") or load.at("name") or "profiling"
    return kind == "profiling" and load.at("exclude_from_results") is not True
