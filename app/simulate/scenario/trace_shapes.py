"""The rates of the traces that a scenario names."""

import math
from functools import lru_cache
from pathlib import Path

from agents.sim.load.rates import TraceShape
from app.base.errors import InvalidRequest
from app.simulate.scenario.load import TraceRef
from app.simulate.traces.files import read_trace
from app.simulate.traces.trace import RateTrace


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


# Every run of a scenario reads the same traces.
@lru_cache(maxsize=16)
def _read(file: Path) -> RateTrace:
    return read_trace(file)
