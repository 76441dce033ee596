"""Traces made of traces: scaled, smoothed, faster or slower, cut, with fewer series. Each change leaves a note."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from app.base.errors import InvalidRequest
from app.measurements.tables import Reals
from app.simulate.traces.trace import RateTrace

MIN_STEP_S = 1.0
"""What a trace is averaged to when its time is compressed: the simulator draws second by second."""
_TOLERANCE = 1e-9


def scaled(trace: RateTrace, factors: Mapping[str, float]) -> RateTrace:
    """Rates of the named series times their factor. Raises InvalidRequest."""
    columns = np.ones(len(trace.names))
    for name, factor in factors.items():
        columns[trace.place(name)] = factor
    named = ", ".join(f"{name} × {factor:g}" for name, factor in factors.items())
    return replace(trace, rates_rps=trace.rates_rps * columns).with_note(
        f"change: scaled {named}"
    )


def factors_to(trace: RateTrace, means_rps: Mapping[str, float]) -> dict[str, float]:
    """Factors that bring the named series to a mean rate. Raises InvalidRequest for a series without requests."""
    factors = {}
    for name, wanted_rps in means_rps.items():
        mean_rps = float(trace.means_rps[trace.place(name)])
        if mean_rps == 0.0 and wanted_rps > 0.0:
            raise InvalidRequest(
                f"{name} has no requests, so that no factor makes its mean {wanted_rps:g} rps"
            )
        factors[name] = wanted_rps / mean_rps if mean_rps else 1.0
    return factors


def smoothed(trace: RateTrace, width_s: float) -> RateTrace:
    """Each rate the mean of the `width_s` around it, less of it at the ends; every series keeps its requests.

    Counts hold the noise of a Poisson stream, which a simulation redraws and a factor above 1 blows up: a mean over
    w steps divides its variance by w. Bursts shorter than the width go with it. Raises InvalidRequest.
    """
    # An odd number of steps, so that the mean stands in their middle and nothing is shifted in time.
    reach = round((width_s / trace.step_s - 1.0) / 2.0)
    if reach < 1:
        raise InvalidRequest(
            f"a mean over {width_s:g} s needs at least three steps, here of {trace.step_s:g} s"
        )
    steps = np.arange(len(trace.rates_rps))
    first = np.maximum(steps - reach, 0)
    last = np.minimum(steps + reach + 1, len(steps))
    # Differences of running sums cost the same for any width.
    sums = _sums(trace)
    means = (sums[last] - sums[first]) / (last - first)[:, None]
    totals = means.sum(axis=0)
    # Shorter means at the ends change the total, so each series is scaled back to its own requests. Rounding errors
    # of sums must not leave a rate below 0 where nothing arrives.
    kept = np.maximum(means, 0.0) * np.divide(
        sums[-1],
        totals,
        out=np.ones_like(totals),
        where=totals > 0.0,
    )
    note = f"change: mean over {(2 * reach + 1) * trace.step_s:g} s"
    return replace(trace, rates_rps=kept).with_note(note)


def compressed(trace: RateTrace, factor: float) -> RateTrace:
    """The same rates, but time goes `factor` times as fast: 24 makes a day an hour with a 24th of its requests.

    Steps become shorter, or longer for a factor below 1, so that nothing is lost; down to one second, from where on
    they are averaged, and what is left of less than a second at the end is dropped. Raises InvalidRequest.
    """
    if not 0.0 < factor < np.inf:
        raise InvalidRequest(
            f"time cannot go {factor:g} times as fast; the factor must be above 0"
        )
    step_s = trace.step_s / factor
    note = f"change: time × {factor:g}"
    # A trace that was finer than a second to begin with stays as fine as it was.
    if step_s >= min(MIN_STEP_S, trace.step_s) * (1.0 - _TOLERANCE):
        return replace(trace, step_s=step_s).with_note(note)
    new_step_s = min(MIN_STEP_S, trace.step_s)
    steps = int(len(trace.rates_rps) * step_s / new_step_s * (1.0 + _TOLERANCE))
    return replace(
        trace,
        rates_rps=_resampled(trace, steps, new_step_s / step_s),
        step_s=new_step_s,
    ).with_note(note)


def cut(trace: RateTrace, start_s: float, end_s: float) -> RateTrace:
    """The steps that begin in [start, end), from second 0 on. Raises InvalidRequest where the trace is shorter."""
    if end_s > trace.duration_s * (1.0 + _TOLERANCE):
        raise InvalidRequest(
            f"the trace ends after {trace.duration_s:g} s, before {end_s:g} s"
        )
    # The tolerance keeps a step whose beginning is the moment itself but for rounding.
    first, last = (
        int(np.ceil(moment_s / trace.step_s - _TOLERANCE))
        for moment_s in (start_s, end_s)
    )
    if last - first < 2:
        raise InvalidRequest(
            f"fewer than two steps of {trace.step_s:g} s begin from {start_s:g} s until {end_s:g} s"
        )
    note = f"change: seconds {first * trace.step_s:.12g} to {last * trace.step_s:.12g}"
    return replace(trace, rates_rps=trace.rates_rps[first:last]).with_note(note)


def chosen(trace: RateTrace, names: Sequence[str]) -> RateTrace:
    """Some series, in this order. Raises InvalidRequest."""
    columns = [trace.place(name) for name in names]
    kept = replace(trace, names=tuple(names), rates_rps=trace.rates_rps[:, columns])
    return kept.with_note(f"change: series {', '.join(names)} of {len(trace.names)}")


def _sums(trace: RateTrace) -> Reals:
    """(T + 1, S) rates summed up to the beginning of each step, and to the end of the last one."""
    return np.vstack([np.zeros(len(trace.names)), np.cumsum(trace.rates_rps, axis=0)])


def _resampled(trace: RateTrace, steps: int, width: float) -> Reals:
    """(steps, S) means over `width` old steps each, by their share of it."""
    sums = _sums(trace)
    edges = np.minimum(np.arange(steps + 1) * width, len(trace.rates_rps))
    at_edges = np.column_stack(
        [np.interp(edges, np.arange(len(sums)), column) for column in sums.T]
    )
    # Differences of sums may fall a rounding error below 0 where nothing arrives.
    return np.maximum(np.diff(at_edges, axis=0) / width, 0.0)
