"""The rates of the traces that a scenario names, and the lengths of the requests."""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from agents.sim.load.rates import TraceShape
from app.base.errors import InvalidRequest
from app.measurements.records import read_records
from app.measurements.rows import refusal
from app.measurements.tables import CsvTable, NumberRange
from app.measurements.times import find_column
from app.simulate.scenario.load import RequestsRef, TraceRef
from app.simulate.traces.files import read_trace
from app.simulate.traces.forms import ANSWERS, PROMPTS, column_of
from app.simulate.traces.trace import RateTrace
from solvers.llm.lengths import Counts
from solvers.types.llm import MAX_CONTEXT

_TOKENS = NumberRange(at_least=0.0, at_most=float(MAX_CONTEXT))


def trace_shape(ref: TraceRef, folder: Path) -> TraceShape:
    """The rates of a trace from where it begins. Raises InvalidRequest for one that cannot be read or begun there."""
    shape = _read(folder / ref.file).shape(ref.column)
    # Between two steps a part of a step would have to be drawn, whose requests are unknown.
    begin = round(ref.start_s / shape.step_s)
    if not math.isclose(begin * shape.step_s, ref.start_s, abs_tol=1e-6):
        raise InvalidRequest(
            f"{ref.file} has steps of {shape.step_s:g} s, so it cannot begin at {ref.start_s:g} s"
        )
    if begin >= len(shape.rates_rps):
        end_s = len(shape.rates_rps) * shape.step_s
        raise InvalidRequest(
            f"{ref.file} ends at {end_s:g} s, so it cannot begin at {ref.start_s:g} s"
        )
    return TraceShape(
        rates_rps=shape.rates_rps[begin:] * ref.scale, step_s=shape.step_s
    )


def request_lengths(ref: RequestsRef, folder: Path) -> tuple[Counts, Counts]:
    """(R,) tokens of prompts and of answers, in the order of the file. Raises InvalidRequest."""
    return _read_lengths(folder / ref.file, ref.prompt, ref.output)


# Every run of a scenario reads the same traces.
@lru_cache(maxsize=16)
def _read_lengths(
    file: Path, prompt: str | None, output: str | None
) -> tuple[Counts, Counts]:
    table = read_records(file)
    return (
        _tokens(table, _column(table, prompt, PROMPTS, "prompt")),
        _tokens(table, _column(table, output, ANSWERS, "output")),
    )


def _column(
    table: CsvTable, wanted: str | None, usual: Sequence[str], field: str
) -> str:
    names = tuple(table.cells)
    found = column_of(names, usual) if wanted is None else find_column(names, wanted)
    if found is None:
        there = ", ".join(names)
        problem = (
            f"has no column {wanted}" if wanted else f"say by {field} which column"
        )
        raise refusal(f"{problem}; it has {there}", file=table.file)
    return found


def _tokens(table: CsvTable, column: str) -> Counts:
    tokens = np.rint(table.numbers(column, _TOKENS))
    # Answers of no token are of requests that failed: an engine gives one at least.
    at_least_one = np.maximum(1, tokens)
    return at_least_one.astype(np.int64)


@lru_cache(maxsize=16)
def _read(file: Path) -> RateTrace:
    return read_trace(file)
