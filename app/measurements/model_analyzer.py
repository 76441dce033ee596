"""Triton Model Analyzer: `metrics-model-inference.csv`, and `metrics-model-gpu.csv` for power and memory.

Times are in milliseconds rounded to 0.1, memory in megabytes of 10^6 bytes. The server's compute times are not among
the columns by default: name them with `inference_output_fields`. Source: the tool's result_table_manager.py and record
types; docs/measure.md gives the mapping.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.measurements.benchmarks import (
    MIB,
    BenchmarkConditions,
    BenchmarkRow,
    Imported,
    Latency,
    make_imported,
    refuse_latency,
)
from app.measurements.csv_files import BATCH
from app.measurements.plausible import RunFigures, find_contradiction, server_problem
from app.measurements.rows import refusal, require_columns
from app.measurements.tables import NOT_NEGATIVE, POSITIVE, CsvTable, Reals, read_table

_COMPUTE = tuple(
    f"Server Compute {part} time (ms)" for part in ("Input", "Infer", "Output")
)
_CLIENT = "Avg Latency (ms)"
_RATE = "Throughput (infer/sec)"
_CLIENT_P99 = "p99 Latency (ms)"
_POWER, _MEMORY = "GPU Power Usage (W)", "GPU Memory Usage (MB)"
_CONFIG, _CONCURRENCY = "Model Config Path", "Concurrency"
_MAX_BATCH, _INSTANCES = "Max Batch Size", "Instance Group"
_KEY = (_CONFIG, "Batch", _CONCURRENCY)
_NEEDED = ("Model", *_KEY, _INSTANCES)
_ONE_ON_GPU = re.compile(r"1[:/]GPU")
_MEGABYTE = 1e6

Key = tuple[str, ...]
Flags = npt.NDArray[np.bool_]


def read_model_analyzer(
    source: Path,
    conditions: BenchmarkConditions,
    *,
    latency: Latency = Latency.SERVER,
    gpu_metrics: Path | None = None,
) -> Imported:
    """Samples from Model Analyzer's inference metrics, with the GPU's where given. Raises InvalidRequest."""
    refuse_latency(latency, (Latency.SERVER, Latency.CLIENT), "Model Analyzer")
    table = read_table(source, partial(_check_header, _NEEDED, "inference"))
    rows = _rows(table, conditions, latency, gpu_metrics)
    is_one = np.array(
        [_ONE_ON_GPU.fullmatch(cell) is not None for cell in table.cells[_INSTANCES]]
    )
    is_known = _is_batch_known(table, latency)
    used = np.flatnonzero(is_one & is_known).tolist()
    notes = _notes(
        len(table), shared=int(np.sum(~is_one)), queued=int(np.sum(is_one & ~is_known))
    )
    return make_imported(
        [rows[row] for row in used], conditions, file=table.file, notes=notes
    )


def _rows(
    table: CsvTable,
    conditions: BenchmarkConditions,
    latency: Latency,
    gpu_metrics: Path | None,
) -> list[BenchmarkRow]:
    """Every row of the table, also those that say too little to be used."""
    networks = table.names("Model")
    batches = table.numbers("Batch", BATCH)
    latency_ms = (
        _server_ms(table)
        if latency is Latency.SERVER
        else table.numbers(_client_column(table), POSITIVE)
    )
    _refuse_crowds(table, batches)
    if latency is Latency.SERVER:
        _refuse_absurd(table, latency_ms)
    figures = {} if gpu_metrics is None else _read_gpu_figures(gpu_metrics)
    rows = []
    for row in range(len(table)):
        # A measurement without figures of its GPU is a sample all the same.
        power_w, memory_mib = figures.get(_key(table, row), (np.nan, np.nan))
        rows.append(
            BenchmarkRow(
                network=conditions.network or networks[row],
                batch=conditions.batch or float(batches[row]),
                latency_ms=float(latency_ms[row]),
                power_w=power_w,
                memory_mib=memory_mib,
            )
        )
    return rows


def _notes(size: int, *, shared: int, queued: int) -> list[str]:
    notes = []
    if shared:
        notes.append(
            f"left out {shared} of {size} rows, without exactly one instance on the GPU: several slow each other down"
        )
    if queued:
        notes.append(
            f"left out {queued} of {size} rows, with waiting requests: the server may have made larger batches of them"
        )
    return notes


def _check_header(
    needed: Sequence[str], kind: str, place: str, names: Sequence[str]
) -> None:
    require_columns(place, names, needed, f"Model Analyzer's metrics-model-{kind}.csv")


def _server_ms(table: CsvTable) -> Reals:
    missing = [column for column in _COMPUTE if column not in table.cells]
    if missing:
        problem = (
            "the server's compute times are missing; add perf_server_compute_input, perf_server_compute_infer and "
            "perf_server_compute_output to Model Analyzer's inference_output_fields"
        )
        raise refusal(problem, file=table.file, column=missing[0])
    total: Reals = np.sum(
        [table.numbers(column, NOT_NEGATIVE) for column in _COMPUTE], axis=0
    )
    # A time of 0 would be a network that takes no time; the file has it rounded away.
    if np.any(total <= 0.0):
        problem = (
            "the server computed for less than 0.05 ms, which Model Analyzer rounds "
            "to 0; import perf_analyzer's CSV"
        )
        raise table.refusal(problem, row=int(np.argmin(total)), column=_COMPUTE[1])
    return total


def _refuse_absurd(table: CsvTable, server_ms: Reals) -> None:
    """Raises InvalidRequest for a server that took longer than its clients waited."""
    mean_ms, p99_ms = (_figures(table, name) for name in (_CLIENT, _CLIENT_P99))
    for row, time_ms in enumerate(server_ms.tolist()):
        levels = {0.99: float(p99_ms[row])}
        if problem := server_problem([time_ms], float(mean_ms[row]), levels, unit="ms"):
            raise table.refusal(
                f"{problem}; such figures cannot be used", row=row, column=_COMPUTE[1]
            )


def _refuse_crowds(table: CsvTable, batches: Reals) -> None:
    """Raises InvalidRequest for more requests under way than there were clients."""
    rates, mean_ms = (_figures(table, name) for name in (_RATE, _CLIENT))
    for row, clients in enumerate(table.numbers(_CONCURRENCY, POSITIVE).tolist()):
        run = RunFigures(
            clients=clients,
            rate_rps=float(rates[row] / batches[row]),
            request_ms=float(mean_ms[row]),
        )
        if problem := find_contradiction(run):
            raise table.refusal(
                f"{problem}; such figures cannot be used", row=row, column=_CONCURRENCY
            )


def _client_column(table: CsvTable) -> str:
    if _CLIENT not in table.cells:
        problem = "this column is missing; add perf_latency_avg to Model Analyzer's inference_output_fields"
        raise refusal(problem, file=table.file, column=_CLIENT)
    return _CLIENT


def _is_batch_known(table: CsvTable, latency: Latency) -> Flags:
    """(N,) whether the server computed batches of the client's size: nothing waited, or nothing larger is allowed."""
    is_single: Flags = np.array([cell == "1" for cell in table.cells[_CONCURRENCY]])
    if latency is Latency.CLIENT or _MAX_BATCH not in table.cells:
        return is_single
    # 0 = the network takes no batches: each request is computed by itself.
    batches = table.numbers("Batch", BATCH)
    return is_single | (table.numbers(_MAX_BATCH, NOT_NEGATIVE) <= batches)


def _key(table: CsvTable, row: int) -> Key:
    return tuple(table.cells[column][row] for column in _KEY)


def _read_gpu_figures(source: Path) -> Mapping[Key, tuple[float, float]]:
    """Power in W and memory in MiB of every measurement. Raises InvalidRequest when it ran on several GPUs."""
    table = read_table(source, partial(_check_header, (*_KEY, "GPU UUID"), "gpu"))
    power_w, memory_mb = (_figures(table, column) for column in (_POWER, _MEMORY))
    found: dict[Key, tuple[float, float]] = {}
    for row in range(len(table)):
        key = _key(table, row)
        # Power of several GPUs must not be added up: the sample is about one.
        if key in found:
            problem = "a second GPU of the same measurement; profile on one GPU, or leave --gpu-metrics away"
            raise table.refusal(problem, row=row, column="GPU UUID")
        found[key] = float(power_w[row]), float(memory_mb[row] * _MEGABYTE / MIB)
    return found


def _figures(table: CsvTable, column: str) -> Reals:
    """(N,) NaN where the GPU told nothing, or 0."""
    if column not in table.cells:
        return np.full(len(table), np.nan)
    values = table.numbers(column, NOT_NEGATIVE, or_empty=True)
    # No GPU draws 0 W or holds 0 bytes: 0 stands for a figure that was not read.
    return np.where(values > 0.0, values, np.nan)
