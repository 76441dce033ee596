"""Curves: what fits say of one network on one GPU type over SM percent, a line per batch, next to what was measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan, log, nan

from solvers.predict.data.fit import Fits
from solvers.predict.data.samples import Group, Queries, Samples, make_queries
from solvers.predict.estimate.predict import predict_latency, predict_quantity

CURVE_POINTS = 40

Point = tuple[float, float]
"""SM percent and latency_ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSetting:
    """What stays the same along the curves; NaN where no sample says it."""

    clock_mhz: float
    time_quota_percent: float
    power_limit_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCurve:
    """What the fit says of one batch, from the least to the largest share that was measured."""

    batch: float
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One sample next to the curves."""

    batch: float
    sm_percent: float
    latency_ms: float
    fitted_ms: float | None
    """What the fit says of these very conditions; None without a fit, and next to neighbours."""
    is_on_curve: bool
    """Alone and at the curves' setting, so that the curve of its batch is about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurves:
    """All there is to draw of one network on one GPU type."""

    setting: CurveSetting
    drawn: tuple[float, ...]
    """Batches that have a curve of their own, where there is a fit; ascending."""
    curves: tuple[LatencyCurve, ...]
    measured: tuple[Measured, ...]
    """In the samples' order."""


def curves_of(
    group: Group, samples: Samples, fits: Fits, *, max_curves: int
) -> GroupCurves:
    """The curves of a group through its samples, at least one; without a fit of its latency there are no curves."""
    # One setting for all curves: lines of different clocks in one chart could not be compared.
    setting = _setting(samples)
    drawn = _spread(sorted(set(samples.at.batch.tolist())), max_curves)
    is_fitted = fits.find("latency_ms", group) is not None
    return GroupCurves(
        setting=setting,
        drawn=tuple(drawn),
        curves=tuple(_curves(group, drawn, samples, setting, fits))
        if is_fitted
        else (),
        measured=tuple(_measured(samples, setting, fits)),
    )


def _setting(samples: Samples) -> CurveSetting:
    """The highest of each knob that was measured: the GPU at its best."""
    at = samples.at
    clock_mhz, power_limit_w = (
        max((value for value in values.tolist() if not isnan(value)), default=nan)
        for values in (at.clock_mhz, at.power_limit_w)
    )
    return CurveSetting(
        clock_mhz=clock_mhz,
        time_quota_percent=max(at.time_quota_percent.tolist()),
        power_limit_w=power_limit_w,
    )


def _spread(values: Sequence[float], number: int) -> list[float]:
    """At most `number` of the ascending values, both ends among them, spaced as evenly as they allow in logarithm."""
    if len(values) <= number:
        return list(values)
    low, high = values[0], values[-1]
    # Batches are powers of two as a rule, which are even in logarithm.
    targets = [low * (high / low) ** (index / (number - 1)) for index in range(number)]
    return sorted({_nearest(values, target) for target in targets})


def _nearest(values: Sequence[float], target: float) -> float:
    return min(values, key=lambda value: abs(log(value / target)))


def _curves(
    group: Group,
    batches: Sequence[float],
    samples: Samples,
    setting: CurveSetting,
    fits: Fits,
) -> Iterator[LatencyCurve]:
    shares = _shares(samples.at.sm_percent.tolist())
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
    # All curves in one prediction, which works on arrays.
    latency_ms = predict_latency(fits, queries).latency_ms.tolist()
    for index, batch in enumerate(batches):
        own = latency_ms[index * CURVE_POINTS : (index + 1) * CURVE_POINTS]
        yield LatencyCurve(batch=batch, points=tuple(zip(shares, own, strict=True)))


def _shares(measured: Sequence[float]) -> list[float]:
    """SM percents from the smallest to the largest one that was measured, even in logarithm."""
    low = min(measured)
    high = max(measured)
    return [
        # Rounding must not lift the last point above the largest share, which may be 100.
        min(low * (high / low) ** (step / (CURVE_POINTS - 1)), high)
        for step in range(CURVE_POINTS)
    ]


def _measured(
    samples: Samples, setting: CurveSetting, fits: Fits
) -> Iterator[Measured]:
    at = samples.at
    rows = zip(
        at.batch.tolist(),
        at.sm_percent.tolist(),
        samples.latency_ms.tolist(),
        predict_quantity(fits, "latency_ms", at.alone()).tolist(),
        _is_on_curve(at, setting),
        at.neighbours,
        strict=True,
    )
    for batch, sm_percent, latency_ms, fitted_ms, is_on_curve, neighbours in rows:
        # Next to neighbours the fit of times alone says nothing of the conditions that were measured.
        is_fitted = not neighbours and not isnan(fitted_ms)
        yield Measured(
            batch=batch,
            sm_percent=sm_percent,
            latency_ms=latency_ms,
            fitted_ms=fitted_ms if is_fitted else None,
            is_on_curve=is_on_curve,
        )


def _is_on_curve(at: Queries, setting: CurveSetting) -> Iterator[bool]:
    """Whether each sample is alone and at the setting, as far as it says."""
    wanted = (setting.clock_mhz, setting.time_quota_percent, setting.power_limit_w)
    measured = zip(
        at.clock_mhz.tolist(),
        at.time_quota_percent.tolist(),
        at.power_limit_w.tolist(),
        strict=True,
    )
    for knobs, neighbours in zip(measured, at.neighbours, strict=True):
        yield not neighbours and all(
            # A knob of which the sample says nothing is taken to have stood at its highest.
            isnan(knob) or knob == value
            for knob, value in zip(knobs, wanted, strict=True)
        )
