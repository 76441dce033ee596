"""Our own CSV: samples and queries in, samples and predictions out. docs/measure.md describes the columns.

A query file has the conditions' columns; a samples file has the measured ones, too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from app.base.errors import InvalidRequest
from app.measurements.rows import refusal, require_columns
from app.measurements.tables import (
    POSITIVE,
    CsvTable,
    NumberRange,
    Reals,
    parse_number,
    read_table,
)
from solvers.predict.data.fit import Predictions
from solvers.predict.data.sample_checks import MAX_BATCH
from solvers.predict.data.samples import (
    Neighbour,
    NeighbourSet,
    Queries,
    Samples,
    make_queries,
    make_samples,
)
from solvers.types.errors import InvalidInput

_PERCENT = NumberRange(above=0.0, at_most=100.0)
BATCH = NumberRange(at_least=1.0, at_most=MAX_BATCH)

CONDITIONS: Mapping[str, NumberRange | None] = {
    "network": None,
    "gpu_type": None,
    "batch": BATCH,
    "sm_percent": _PERCENT,
    "clock_mhz": POSITIVE,
    "time_quota_percent": _PERCENT,
    "power_limit_w": POSITIVE,
    "neighbours": None,
}
MEASURED: Mapping[str, NumberRange] = {
    "latency_ms": POSITIVE,
    "power_w": POSITIVE,
    "memory_mib": POSITIVE,
    "l2_util_percent": NumberRange(at_least=0.0, at_most=100.0),
}
PREDICTED = ("latency_ms", "latency_ms_low", "latency_ms_high", "technique")
_ROW = re.compile(r"rows\[(\d+)\]\.(\w+)")
_NEEDED = ("network", "gpu_type", "batch", "sm_percent")
_ALIASES = {"time_quota_pct": "time_quota_percent"}
_FOREIGN_NAMES = {
    "model": "network",
    "gpu": "gpu_type",
    "batch_size": "batch",
    "sm_pct": "sm_percent",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleFiles:
    """Samples, and where each was read."""

    samples: Samples
    tables: tuple[CsvTable, ...]

    def refusal(self, problem: str, *, row: int, column: str) -> InvalidRequest:
        """The error that names a sample's place in its file."""
        # Samples of several files are numbered through; each table takes its own part of the numbers away.
        for table in self.tables:
            if row < len(table):
                return table.refusal(problem, row=row, column=column)
            row -= len(table)
        raise IndexError(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors:
    """How far predictions are from measurements; errors are |predicted − measured| / measured."""

    size: int
    mean: float
    p90: float
    within: float
    """Share of the measurements that lie in their interval."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueryFile:
    """Queries, what their file wrote, and the latencies that it may hold as well."""

    queries: Queries
    table: CsvTable
    measured_latency_ms: Reals
    """(N,) NaN where the file says nothing."""

    def compare(self, predictions: Predictions) -> PredictionErrors | None:
        """The predictions against the latencies that the file holds; None when it holds none."""
        measured = self.measured_latency_ms
        rows = np.flatnonzero(~np.isnan(measured))
        if not len(rows):
            return None
        errors = np.abs(predictions.latency_ms - measured)[rows] / measured[rows]
        # NaN compares as false, so that rows without a measurement are outside; they are left out below.
        is_within = (predictions.latency_ms_low <= measured) & (
            measured <= predictions.latency_ms_high
        )
        return PredictionErrors(
            size=len(rows),
            mean=float(np.mean(errors)),
            p90=float(np.quantile(errors, 0.9)),
            within=float(np.mean(is_within[rows])),
        )


def read_samples(sources: Sequence[Path]) -> SampleFiles:
    """The samples of one or more files (`-` = stdin), in their order. Raises InvalidRequest."""
    check = partial(_check_header, (*_NEEDED, "latency_ms"), "a samples file")
    tables = tuple(read_table(source, check) for source in sources)
    measured = {
        name: _joined([_numbers(table, name, allowed) for table in tables])
        for name, allowed in _optional()
    }
    latency_ms = _joined([table.numbers("latency_ms", POSITIVE) for table in tables])
    return SampleFiles(
        samples=make_samples(_queries(tables), latency_ms, **measured), tables=tables
    )


def read_queries(source: Path) -> QueryFile:
    """The queries of a file (`-` = stdin). Raises InvalidRequest."""
    table = read_table(source, partial(_check_header, _NEEDED, "a query file"))
    measured = _numbers(table, "latency_ms", POSITIVE)
    return QueryFile(
        queries=_queries([table]), table=table, measured_latency_ms=measured
    )


def find_row(error: InvalidInput) -> tuple[int, str] | None:
    """Row and column of an error about `rows[i].column`, as the predictors raise it; None for other errors."""
    place = _ROW.fullmatch(error.field)
    return None if place is None else (int(place[1]), place[2])


def query_rows(queries: Queries) -> Iterator[Sequence[str]]:
    """A header and rows of conditions; a column that no query knows anything of is left out."""
    yield from _rows(_condition_columns(queries))


def sample_rows(samples: Samples) -> Iterator[Sequence[str]]:
    """A header and rows; a column that no sample knows anything of is left out."""
    measured = {"latency_ms": samples.latency_ms} | {
        name: getattr(samples, name) for name, _ in _optional()
    }
    yield from _rows(_condition_columns(samples.at) | _known(measured))


def prediction_rows(
    query: QueryFile, predictions: Predictions, extra: Mapping[str, Reals]
) -> Iterator[Sequence[str]]:
    """A header and rows: the conditions as the file wrote them, the predictions, and extra columns."""
    kept = {
        name: cells
        for name, cells in query.table.cells.items()
        if _canonical(name) in CONDITIONS
    }
    values = (
        predictions.latency_ms,
        predictions.latency_ms_low,
        predictions.latency_ms_high,
    )
    yield (*kept, *PREDICTED, *extra)
    yield from zip(
        *kept.values(),
        *map(_texts, values),
        predictions.technique,
        *map(_texts, extra.values()),
        strict=True,
    )


def _condition_columns(at: Queries) -> dict[str, Iterable[str]]:
    columns: dict[str, Iterable[str]] = {"network": at.network, "gpu_type": at.gpu_type}
    # The order of the columns is that of docs/measure.md.
    columns |= {"batch": _texts(at.batch), "sm_percent": _texts(at.sm_percent)}
    # Full quota is the default of a file that has no such column, so that nothing is lost without it.
    if np.any(at.time_quota_percent != 100.0):
        columns["time_quota_percent"] = _texts(at.time_quota_percent)
    columns |= _known({"clock_mhz": at.clock_mhz, "power_limit_w": at.power_limit_w})
    if any(at.neighbours):
        columns["neighbours"] = [
            "+".join(map(_neighbour_text, neighbours)) for neighbours in at.neighbours
        ]
    return columns


def _known(columns: Mapping[str, Reals]) -> dict[str, Iterable[str]]:
    return {
        name: _texts(values)
        for name, values in columns.items()
        if not np.isnan(values).all()
    }


def _rows(columns: Mapping[str, Iterable[str]]) -> Iterator[Sequence[str]]:
    yield tuple(columns)
    yield from zip(*columns.values(), strict=True)


def _optional() -> list[tuple[str, NumberRange]]:
    return [
        (name, allowed) for name, allowed in MEASURED.items() if name != "latency_ms"
    ]


def _check_header(
    needed: Sequence[str], kind: str, place: str, names: Sequence[str]
) -> None:
    _check_known(place, names)
    require_columns(place, names, needed, kind)


def _check_known(place: str, names: Sequence[str]) -> None:
    known = [*CONDITIONS, *MEASURED]
    for index, name in enumerate(names):
        canonical = _canonical(name)
        if canonical not in known:
            close = get_close_matches(
                _FOREIGN_NAMES.get(name.lower(), name), known, n=1
            )
            guess = f"did you mean {close[0]}? " if close else ""
            problem = f"unknown column; {guess}{'T' if close else 't'}he columns are {', '.join(known)}"
            raise refusal(problem, file=place, column=name or repr(name))
        # By canonical name: a column and its alias would state the same thing twice.
        if canonical in map(_canonical, names[:index]):
            raise refusal(
                f"the header has {canonical} already", file=place, column=name
            )


def _canonical(name: str) -> str:
    return _ALIASES.get(name, name)


def _queries(tables: Sequence[CsvTable]) -> Queries:
    numbers = {
        name: _joined(
            [
                _numbers(table, name, allowed, is_needed=name in _NEEDED)
                for table in tables
            ]
        )
        for name, allowed in CONDITIONS.items()
        if allowed is not None
    }
    # Unlike the other conditions it has a default that is a number.
    quota = numbers.pop("time_quota_percent")
    return make_queries(
        tuple(chain.from_iterable(table.names("network") for table in tables)),
        tuple(chain.from_iterable(table.names("gpu_type") for table in tables)),
        **numbers,
        time_quota_percent=np.where(np.isnan(quota), 100.0, quota),
        neighbours=tuple(chain.from_iterable(map(_neighbours, tables))),
    )


def _numbers(
    table: CsvTable, name: str, allowed: NumberRange, *, is_needed: bool = False
) -> Reals:
    """(N,) numbers of a column by its canonical name; NaN where the column is absent."""
    written = next(
        (column for column in table.cells if _canonical(column) == name), None
    )
    return (
        np.full(len(table), np.nan)
        if written is None
        else table.numbers(written, allowed, or_empty=not is_needed)
    )


def _joined(columns: Sequence[Reals]) -> Reals:
    return np.concatenate(columns)


def _neighbours(table: CsvTable) -> Sequence[NeighbourSet]:
    if "neighbours" not in table.cells:
        return ((),) * len(table)
    cells = table.cells["neighbours"]
    parsed: dict[str, NeighbourSet] = {}
    for row, cell in enumerate(cells):
        # Parsed once per distinct text: files repeat the same neighbours in thousands of rows.
        if cell not in parsed:
            try:
                parsed[cell] = (
                    tuple(_neighbour(entry.strip()) for entry in cell.split("+"))
                    if cell
                    else ()
                )
            except ValueError as error:
                raise table.refusal(str(error), row=row, column="neighbours") from error
    return [parsed[cell] for cell in cells]


def _neighbour(text: str) -> Neighbour:
    # From the right: a network's name may hold colons, as those of container images do.
    parts = [part.strip() for part in text.rsplit(":", 2)]
    if len(parts) != 3 or not parts[0] or not parts[0].isprintable():
        raise ValueError(f"must be network:batch:sm_percent, joined by +, not {text!r}")
    try:
        return Neighbour(
            parts[0], parse_number(parts[1], BATCH), parse_number(parts[2], _PERCENT)
        )
    except ValueError as error:
        raise ValueError(f"neighbour {text!r}: {error}") from error


def _neighbour_text(neighbour: Neighbour) -> str:
    batch, sm_percent = _texts(np.array([neighbour.batch, neighbour.sm_percent]))
    return f"{neighbour.network}:{batch}:{sm_percent}"


def _texts(values: Reals) -> list[str]:
    """(N,) numbers of nine digits, more than any measurement has; nothing for NaN."""
    # NaN alone differs from itself.
    return ["" if value != value else f"{value:.9g}" for value in values.tolist()]
