"""Piecewise-linear latency: per batch two straight lines over the SM share, which meet at a breakpoint.

    latency_ms(b, p) = l0(b) + k(b) · (p - p0(b)),  k(b) = k1(b) for p <= p0(b), else k2(b),  k1 <= k2 <= 0

At every measured batch with three shares or more, p0, l0, k1 and k2 are the least-squares fit of the relative errors
(`solvers.predict.regression.two_segments`). Shares measured at other batches only are filled in from those, at half the
weight: or else a batch that misses the least share would be extrapolated along a line, where latency grows as 1/p. A
batch measured at fewer than three shares takes the curve that its neighbours give, scaled to its own samples. Between
batches the four coefficients are interpolated, so the curve stays two segments at any batch; `curve` hands it out.
Outside the measured range: `clip_to_measured`.

Source: Mudi, "Inference latency quantification" (L = k1 or k2 · (Δ - Δ0) + l0). Ours are filling and interpolating over
batches, where Mudi asks a small network, and k1 <= k2 <= 0: convex, as Mudi's choice of shares wants it. Wins where the
knee is sharp, and where a policy needs slopes. Limits: it falls with the share but need not rise with the batch; it
knows one clock and one quota; a curve like 1/p takes more than two lines; scattered samples rarely hold three shares of
a batch.
"""

from collections.abc import Mapping

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples
from solvers.predict.latency.conditions import (
    BATCH,
    CLOCK_MHZ,
    SM_PERCENT,
    TIME_QUOTA_PERCENT,
    MeasuredRange,
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
    varies,
)
from solvers.predict.regression.two_segments import (
    MIN_SHARES,
    TwoSegments,
    fit_two_segments,
)

_NAMES = (
    "breakpoint_percent",
    "latency_ms_at_breakpoint",
    "slope_before",
    "slope_after",
)
"""Fields of TwoSegments, and the coefficient arrays (B,) over the batches."""
_FILLED_WEIGHT = 0.5
"""Weight of a filled-in latency; a measured one weighs 1."""
_MIN_FRACTION = 0.5  # A line over noisy samples could reach 0; below half of the shortest latency it never falls.


_LatencyOverBatches = Mapping[float, tuple[Reals, Reals]]
"""Per SM share: ln of the batches measured at it, and the mean ln latency at each."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from samples of one group at one clock and one time quota.

    Raises TooFewSamples when no batch is measured at three shares, or when clock or quota vary.
    """
    ordered = sorted_samples(samples)
    clock_mhz = highest_clock_mhz(ordered.at)
    measured = measured_range(log_conditions(ordered.at, highest_clock_mhz=clock_mhz))
    _refuse_other_conditions(measured)
    min_ms = _MIN_FRACTION * float(ordered.latency_ms.min())
    return Coefficients(
        arrays={
            **_fit_batches(ordered, min_ms=min_ms),
            "measured_range": np.stack(measured),
            "highest_clock_mhz": np.array(clock_mhz),
            "least_latency_ms": np.array(min_ms),
        }
    )


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms."""
    arrays = coefficients.arrays
    logs = log_conditions(queries, highest_clock_mhz=float(arrays["highest_clock_mhz"]))
    inside, factor = clip_to_measured(logs, MeasuredRange(*arrays["measured_range"]))
    batch, share = np.exp(inside[:, [BATCH, SM_PERCENT]]).T
    breakpoint_percent, level, before, after = (
        np.interp(batch, arrays["batch"], arrays[name]) for name in _NAMES
    )
    beyond = share - breakpoint_percent
    on_lines = level + np.where(beyond <= 0.0, before, after) * beyond
    latency_ms: Reals = np.maximum(on_lines, arrays["least_latency_ms"]) * factor
    return latency_ms


def curve(coefficients: Coefficients, batch: float) -> TwoSegments:
    """The two segments at a batch within the measured ones; beyond them, the curve at the nearest."""
    return _curve_at(coefficients.arrays, batch)


def _refuse_other_conditions(measured: MeasuredRange) -> None:
    for column, name in ((CLOCK_MHZ, "clocks"), (TIME_QUOTA_PERCENT, "time quotas")):
        if varies(measured)[column]:
            raise TooFewSamples(
                f"piecewise-linear curves hold for one setting; the samples have several {name}"
            )


def _fit_batches(samples: Samples, *, min_ms: float) -> Mapping[str, Reals]:
    """A curve at every measured batch, as the coefficient arrays."""
    over_batches = _latency_over_batches(samples)
    parts = {
        batch: samples.take(np.flatnonzero(samples.at.batch == batch))
        for batch in np.unique(samples.at.batch).tolist()
    }
    full = {
        batch: _fit_batch(part, over_batches)
        for batch, part in parts.items()
        if len(np.unique(part.at.sm_percent)) >= MIN_SHARES
    }
    if not full:
        raise TooFewSamples(
            f"no batch is measured at {MIN_SHARES} distinct SM shares, which two segments need"
        )
    # Only now, since a sparse batch takes its curve from all the full ones around it.
    table = _table(full)
    return _table(
        {
            batch: full.get(batch)
            or _scale(_curve_at(table, batch), part, min_ms=min_ms)
            for batch, part in parts.items()
        }
    )


def _latency_over_batches(samples: Samples) -> _LatencyOverBatches:
    """The latencies at every share that two batches or more are measured at."""
    at = samples.at
    log_ms = np.log(samples.latency_ms)
    found: dict[float, tuple[Reals, Reals]] = {}
    for share in np.unique(at.sm_percent):
        rows = at.sm_percent == share
        batches, batch_of_row = np.unique(at.batch[rows], return_inverse=True)
        if len(batches) > 1:
            sums = np.bincount(batch_of_row, weights=log_ms[rows])
            means = sums / np.bincount(batch_of_row)
            found[float(share)] = (np.log(batches), means)
    return found


def _fit_batch(samples: Samples, over_batches: _LatencyOverBatches) -> TwoSegments:
    """The curve of one batch; `over_batches` fills in the shares that it misses."""
    log_batch = float(np.log(samples.at.batch[0]))
    missing = sorted(over_batches.keys() - set(samples.at.sm_percent.tolist()))
    filled = np.exp(
        [_along_nearest(log_batch, *over_batches[share]) for share in missing]
    )
    latency_ms = np.append(samples.latency_ms, filled)
    weight = np.repeat([1.0, _FILLED_WEIGHT], [len(samples), len(filled)])
    return fit_two_segments(
        np.append(samples.at.sm_percent, missing),
        latency_ms,
        weight=weight / latency_ms,
    )


def _along_nearest(x: float, known_x: Reals, known_y: Reals) -> float:
    """ln latency at ln batch `x`, along the line of two known points next to it; (K >= 2,) each, ascending."""
    right = int(np.clip(np.searchsorted(known_x, x), 1, len(known_x) - 1))
    base = right if x > known_x[right] else right - 1
    rise, run = (known[right] - known[right - 1] for known in (known_y, known_x))
    slope = rise / run
    # k requests take no less than one and no more than k times as long; noise may say otherwise.
    return float(known_y[base] + np.clip(slope, 0.0, 1.0) * (x - known_x[base]))


def _scale(neighbours: TwoSegments, samples: Samples, *, min_ms: float) -> TwoSegments:
    """The neighbours' curve, multiplied by the geometric mean of measured over that curve."""
    expected = np.maximum(neighbours.latency_ms(samples.at.sm_percent), min_ms)
    factor = float(np.exp(np.mean(np.log(samples.latency_ms / expected))))
    return TwoSegments(
        breakpoint_percent=neighbours.breakpoint_percent,
        latency_ms_at_breakpoint=neighbours.latency_ms_at_breakpoint * factor,
        slope_before=neighbours.slope_before * factor,
        slope_after=neighbours.slope_after * factor,
    )


def _table(curves: Mapping[float, TwoSegments]) -> Mapping[str, Reals]:
    """Curves by ascending batch as the coefficient arrays."""
    columns = {
        name: np.array([getattr(curve, name) for curve in curves.values()])
        for name in _NAMES
    }
    return {"batch": np.array(list(curves)), **columns}


def _curve_at(table: Mapping[str, Reals], batch: float) -> TwoSegments:
    batches = table["batch"]
    values = {name: float(np.interp(batch, batches, table[name])) for name in _NAMES}
    return TwoSegments(**values)
