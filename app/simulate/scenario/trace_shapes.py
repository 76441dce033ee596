"""The rates of the traces that a scenario names, and the lengths of the requests."""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from agents.sim.load.rates import TraceShape
from app.base.errors import InvalidRequest
from app.measurements.rows import refusal
from app.measurements.tables import CsvTable, NumberRange, read_table
from app.simulate.scenario.load import RequestsRef, TraceRef
from app.simulate.traces.files import read_trace
from app.simulate.traces.trace import RateTrace
from solvers.llm.lengths import Counts
from solvers.types.llm import MAX_CONTEXT

_TOKENS = NumberRange(at_least=0.0, at_most=float(MAX_CONTEXT))


def trace_shape(ref: TraceRef, folder: Path) -> TraceShape:
    """The rates of a trace from where it begins. Raises InvalidRequest for one that cannot be read or begun there."""
    shape = _read(folder / ref.file).shape(ref.column)
    # Between two steps a part of a step would have to be drawn, whose requests nobody knows.
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
        rates_rps=shape.rates_rps[begin:] * ref.scale,
        step_s=shape.step_s,
    )


def request_lengths(ref: RequestsRef, folder: Path) -> tuple[Counts, Counts]:
    """(R,) tokens of prompts and of answers, in the order of the file. Raises InvalidRequest."""
    return _read_lengths(folder / ref.file, ref.prompt, ref.output)


# Every run of a scenario reads the same traces.
@lru_cache(maxsize=16)
def _read_lengths(file: Path, prompt: str, output: str) -> tuple[Counts, Counts]:
    def check_header(place: str, names: Sequence[str]) -> None:
        for column in (prompt, output):
            if column in names:
                continue
            there = ", ".join(names)
            problem = f"has no column {column}; it has {there}"
            raise refusal(problem, file=place)

    table = read_table(file, check_header)
    return _tokens(table, prompt), _tokens(table, output)


def _tokens(table: CsvTable, column: str) -> Counts:
    tokens = np.rint(table.numbers(column, _TOKENS))
    # Answers of no token are of requests that failed: an engine gives one at least.
    at_least_one = np.maximum(1, tokens)
    return at_least_one.astype(np.int64)


@lru_cache(maxsize=16)
def _read(file: Path) -> RateTrace:
    return read_trace(file)
