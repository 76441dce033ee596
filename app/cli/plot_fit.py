"""The plot of `plimsoll fit --plot`: per network and GPU type, latency over SM percent, a curve per batch."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, log, nan

from app.cli.svg import COLOURS, Panel, Point, Series, sheet
from solvers.predict.fits import Fits
from solvers.predict.predicting import predict_latency
from solvers.predict.samples import Group, Samples, make_queries

MOST_CURVES = len(COLOURS)
"""Of one panel; further batches are drawn as dots alone."""

CURVE_POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What stays the same along the curves of a panel."""

    clock_mhz: float
    time_quota_percent: float
    power_limit_w: float


def plot_text(samples: Samples, fits: Fits) -> str:
    """An SVG document with every sample: dots where a curve applies, rings with neighbours or other settings."""
    return sheet([_panel(group, samples.take(rows), fits) for group, rows in samples.at.groups().items()])


def _panel(group: Group, samples: Samples, fits: Fits) -> Panel:
    """The chart of one group's samples."""
    setting = _setting(samples)
    batches = sorted(set(samples.at.batch.tolist()))
    with_curve = _spread(batches, MOST_CURVES)
    fit = fits.find("latency_ms", group)
    curves = {} if fit is None else _curves(group, with_curve, samples, setting, fits)
    dots, rings = _split(samples, setting)
    return Panel(
        title=f"{group.network} on {group.gpu_type}",
        note="no fit" if fit is None else fit.technique.replace("_", " "),
        legend="batch",
        x_label="SM percent",
        y_label="latency, ms",
        series=[
            Series(
                label=f"{batch:.3g}" if batch in with_curve else "",
                colour=COLOURS[bisect_right(with_curve, batch) - 1],
                curve=curves.get(batch, ()),
                dots=dots.get(batch, ()),
                rings=rings.get(batch, ()),
            )
            for batch in batches
        ],
    )


def _setting(samples: Samples) -> _Setting:
    """The highest of each knob that was measured: the GPU at its best."""
    at = samples.at
    clock_mhz, power_limit_w = (
        max((value for value in values.tolist() if not isnan(value)), default=nan)
        for values in (at.clock_mhz, at.power_limit_w)
    )
    return _Setting(
        clock_mhz=clock_mhz, time_quota_percent=max(at.time_quota_percent.tolist()), power_limit_w=power_limit_w
    )


def _spread(values: Sequence[float], number: int) -> list[float]:
    """At most so many of the ascending values, both ends among them, spaced as evenly as they allow in logarithm."""
    if len(values) <= number:
        return list(values)
    low, high = values[0], values[-1]
    targets = [low * (high / low) ** (index / (number - 1)) for index in range(number)]
    return sorted({_nearest(values, target) for target in targets})


def _nearest(values: Sequence[float], target: float) -> float:
    return min(values, key=lambda value: abs(log(value / target)))


def _curves(
    group: Group, batches: Sequence[float], samples: Samples, setting: _Setting, fits: Fits
) -> Mapping[float, Sequence[Point]]:
    """What the fit says of each batch, from the least to the largest share that was measured."""
    least, most = min(samples.at.sm_percent.tolist()), max(samples.at.sm_percent.tolist())
    # Rounding must not lift the last point above the largest share, which may be 100.
    shares = [min(least * (most / least) ** (step / (CURVE_POINTS - 1)), most) for step in range(CURVE_POINTS)]
    size = len(batches) * CURVE_POINTS
    queries = make_queries(
        [group.network] * size,
        [group.gpu_type] * size,
        batch=[batch for batch in batches for _ in shares],
        sm_percent=shares * len(batches),
        clock_mhz=[setting.clock_mhz] * size,
        time_quota_percent=[setting.time_quota_percent] * size,
        power_limit_w=[setting.power_limit_w] * size,
    )
    latency_ms = predict_latency(fits, queries).latency_ms.tolist()
    return {
        batch: list(zip(shares, latency_ms[index * CURVE_POINTS : (index + 1) * CURVE_POINTS], strict=True))
        for index, batch in enumerate(batches)
    }


def _split(samples: Samples, setting: _Setting) -> tuple[dict[float, list[Point]], dict[float, list[Point]]]:
    """Points by batch: those at the curves' setting, and the others."""
    at = samples.at
    dots: dict[float, list[Point]] = {}
    rings: dict[float, list[Point]] = {}
    rows = zip(
        at.batch.tolist(),
        at.sm_percent.tolist(),
        samples.latency_ms.tolist(),
        at.neighbours,
        zip(at.clock_mhz.tolist(), at.time_quota_percent.tolist(), at.power_limit_w.tolist(), strict=True),
        strict=True,
    )
    wanted = (setting.clock_mhz, setting.time_quota_percent, setting.power_limit_w)
    for batch, share, latency_ms, company, knobs in rows:
        is_same = all(isnan(knob) or knob == value for knob, value in zip(knobs, wanted, strict=True))
        kind = dots if is_same and not company else rings
        kind.setdefault(batch, []).append((share, latency_ms))
    return dots, rings
