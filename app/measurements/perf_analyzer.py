"""Triton perf_analyzer: the CSV that `perf_analyzer -f FILE` writes, a row per concurrency or request rate.

Times are in whole microseconds, GPU memory in bytes, and GPU figures are `UUID:value;` per GPU (only with
`--verbose-csv --collect-metrics`). Neither network nor batch (`-b`) are in the file. Source: the tool's
report_writer.cc; docs/measure.md gives the mapping.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from app.measurements.benchmarks import (
    MIB,
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
    find_contradiction,
    order_problem,
    server_problem,
)
from app.measurements.rows import refusal, require_columns
from app.measurements.tables import (
    NOT_NEGATIVE,
    POSITIVE,
    CsvTable,
    NumberRange,
    Reals,
    parse_number,
    read_table,
)

CONCURRENCY = "Concurrency"
_RATE = "Request Rate"
_COMPUTE = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")
_COMPUTE_ONCE = ("Server Compute",)
_SERVER_PARTS = ("Server Queue", *_COMPUTE, *_COMPUTE_ONCE)
_CLIENT = ("Avg latency", "p50 latency")
_POWER = "Avg GPU Power Usage"
_MEMORY = "Max GPU Memory Usage"
US_PER_MS = 1000.0
# Bytes are more than the largest number that Plimsoll counts in its own units.
_BYTES_OR_W = NumberRange(at_least=0.0, at_most=1e15)


def read_perf_analyzer(
    source: Path, conditions: BenchmarkConditions, *, latency: Latency = Latency.SERVER
) -> Imported:
    """Samples from perf_analyzer's CSV. Raises InvalidRequest."""
    refuse_latency(latency, (Latency.SERVER, Latency.CLIENT), "perf_analyzer")
    network = required(
        conditions.network,
        "--network",
        "perf_analyzer's file does not say which network was measured",
    )
    batch = required(
        conditions.batch,
        "--batch",
        "perf_analyzer's file does not say the batch size (its -b)",
    )
    table = read_table(source, _check_header)
    # First, so that a figure that is too large is refused for what it is.
    for row in range(len(table)):
        _refuse_row(table, row, batch, latency)
    in_us = _server_us(table) if latency is Latency.SERVER else _client_us(table)
    kept = [
        row
        for row in range(len(table))
        # A client's time holds the wait for other requests, of which the server's own knows nothing.
        if latency is Latency.SERVER or _is_single(table, row)
    ]
    power_w, several = _per_gpu(table, _POWER)
    memory_b, _ = _per_gpu(table, _MEMORY)
    rows = [
        BenchmarkRow(
            network=network,
            batch=batch,
            latency_ms=float(in_us[row] / US_PER_MS),
            power_w=float(power_w[row]),
            memory_mib=float(memory_b[row] / MIB),
        )
        for row in kept
    ]
    notes = list(_notes(table, len(table) - len(kept), has_several_gpus=several))
    return make_imported(rows, conditions, file=table.file, notes=notes)


def _notes(table: CsvTable, queued: int, *, has_several_gpus: bool) -> Iterator[str]:
    if queued and CONCURRENCY not in table.cells:
        yield (
            f"left out {queued} of {len(table)} rows, measured at a request rate: how many requests were under way is "
            "not known; measure with --concurrency-range 1, or take the server's time by --latency server"
        )
    elif queued:
        yield f"left out {queued} of {len(table)} rows, with more than one request under way: clients queue there"
    if has_several_gpus:
        yield "left out power and memory: they were measured on several GPUs"


def _check_header(place: str, names: Sequence[str]) -> None:
    # Either column is enough; a file with neither is named by the one that most files have.
    if CONCURRENCY not in names and _RATE not in names:
        require_columns(place, names, [CONCURRENCY], "perf_analyzer's CSV")
    require_columns(place, names, ["Inferences/Second"], "perf_analyzer's CSV")


def _server_us(table: CsvTable) -> Reals:
    # Some reports have one column for all three parts.
    parts = _COMPUTE if _COMPUTE[0] in table.cells else _COMPUTE_ONCE
    if parts[0] not in table.cells:
        problem = (
            f"there is no column {_COMPUTE[1]}: the server kept no statistics; "
            f"--latency client takes the client's"
        )
        raise refusal(problem, file=table.file, column=_COMPUTE[1])
    total: Reals = np.sum([table.numbers(part, NOT_NEGATIVE) for part in parts], axis=0)
    if np.any(total <= 0.0):
        problem = "the server computed nothing here (0 µs); did all answers come from its cache?"
        raise table.refusal(
            problem,
            row=int(np.argmin(total)),
            column=parts[-1 if len(parts) == 1 else 1],
        )
    return total


def _client_us(table: CsvTable) -> Reals:
    column = next((name for name in _CLIENT if name in table.cells), None)
    if column is None:
        raise refusal(
            f"there is neither a column {_CLIENT[0]} nor {_CLIENT[1]}", file=table.file
        )
    return table.numbers(column, POSITIVE)


def _is_single(table: CsvTable, row: int) -> bool:
    """Whether one request was under way at a time; with a request rate it is not known."""
    return table.cells.get(CONCURRENCY, ("",) * len(table))[row] == "1"


def _refuse_row(table: CsvTable, row: int, batch: float, latency: Latency) -> None:
    """Raises InvalidRequest for a row whose figures cannot all be true."""
    cells = {name: _number_or_nan(column[row]) for name, column in table.cells.items()}
    column = CONCURRENCY if CONCURRENCY in cells else _RATE
    problem = _client_problem(cells, batch)
    if not problem and latency is Latency.SERVER:
        # The server subtracts counters; where they overtake each other, a part of its time has many digits.
        parts = {name: cells.get(name, 0.0) for name in _SERVER_PARTS}
        column = max(parts, key=lambda name: np.nan_to_num(parts[name]))
        problem = server_problem(
            parts.values(),
            cells.get("Avg latency", math.nan),
            _levels(cells),
            unit="µs",
        )
    if problem:
        raise table.refusal(
            f"{problem}; such figures cannot be used", row=row, column=column
        )


def _client_problem(cells: Mapping[str, float], batch: float) -> str:
    """Which of the clients' figures contradict each other; nothing where none do."""
    client_us = cells.get("Avg latency", math.nan)
    if problem := order_problem("latency", _levels(cells), mean=client_us):
        return problem
    run = RunFigures(
        clients=cells.get(CONCURRENCY, math.nan),
        rate_rps=cells["Inferences/Second"] / batch,
        request_ms=client_us / US_PER_MS,
    )
    found = find_contradiction(run)
    return f"{found}; is --batch the tool's -b?" if found else ""


def _levels(cells: Mapping[str, float]) -> Quantiles:
    return {
        level / 100.0: cells.get(f"p{level} latency", math.nan)
        for level in (50, 90, 95, 99)
    }


def _number_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _per_gpu(table: CsvTable, column: str) -> tuple[Reals, bool]:
    """(N,) the figure of the only GPU, NaN where there is none or it is 0; and whether several GPUs have one."""
    values = np.full(len(table), np.nan)
    several = False
    for row, cell in enumerate(table.cells.get(column, ())):
        entries = [entry for entry in cell.split(";") if entry.strip()]
        several |= len(entries) > 1
        if len(entries) == 1:
            # `UUID:value`: the value is behind the last colon, whatever the UUID looks like.
            text = entries[0].rpartition(":")[2].strip()
            values[row] = _figure(table, text, row, column) or np.nan
    return (np.full(len(table), np.nan) if several else values), several


def _figure(table: CsvTable, text: str, row: int, column: str) -> float:
    try:
        return parse_number(text, _BYTES_OR_W)
    except ValueError as error:
        raise table.refusal(str(error), row=row, column=column) from error
