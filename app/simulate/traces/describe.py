"""What a trace is like: how much, how bursty, how long bursts last, and whether days are alike.

The index of dispersion of counts is the variance of the requests in windows over their mean: 1 for a Poisson stream at
any length, more for bursts; that it grows from 1 s to 60 s says that bursts last. Source: V. Paxson and S. Floyd,
"Wide-area traffic: the failure of Poisson modeling", IEEE/ACM Transactions on Networking 3 (1995); R. Gusella,
"Characterizing the variability of arrival processes with indexes of dispersion", IEEE JSAC 9 (1991). It mixes bursts
with slow change: cut a piece without trend to see the bursts alone. A trace of expected rates lacks the Poisson part.
"""

from dataclasses import dataclass

import numpy as np

from app.measurements.tables import Reals
from app.simulate.traces.jobs import JobList
from app.simulate.traces.trace import RateTrace

WINDOWS_S = (1.0, 10.0, 60.0)
LAG_S = 60.0
HOUR_S, DAY_HOURS = 3600.0, 24
OUTLINE = 16
"""Points of a series' outline."""
MIN_WINDOWS = 10
"""A variance of fewer says nothing."""
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily:
    """How the rate goes over the hours of a day; hour 0 is the trace's first."""

    busiest_hour: int
    busiest_factor: float
    """The busiest hour has this multiple of the mean rate."""
    quietest_hour: int
    quietest_factor: float
    repeats: float | None
    """Correlation of each hour with the same one a day later; None below two days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSummary:
    """One series in figures. None stands for what the trace is too short or its steps too long to say."""

    name: str
    requests: float
    mean_rps: float
    p99_rps: float
    """99 % of the steps are at or below it."""
    peak_rps: float
    dispersion: tuple[float | None, ...]
    """Index of dispersion of counts in windows of WINDOWS_S."""
    autocorrelation: float | None
    """The rates of steps are compared with those LAG_S later."""
    daily: Daily | None
    outline: tuple[float, ...]
    """OUTLINE mean rates from the beginning to the end, as shares of the highest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job list in figures."""

    jobs: int
    duration_s: float
    """From second 0 to the last submission."""
    per_hour: float
    dispersion_per_hour: float | None
    """Index of dispersion of submissions in windows of an hour."""
    duration_s_p50: float
    duration_s_p95: float
    gpus_mean: float
    gpus_most: float
    gpu_hours: float
    outline: tuple[float, ...]


def describe_trace(trace: RateTrace) -> tuple[SeriesSummary, ...]:
    """Every series in figures."""
    return tuple(_summary(trace, place, name) for place, name in enumerate(trace.names))


def describe_jobs(jobs: JobList) -> JobSummary:
    """A job list in figures."""
    duration_s = float(jobs.submit_s[-1])
    per_hour = np.bincount((jobs.submit_s // HOUR_S).astype(int)).astype(float)
    p50, p95 = np.quantile(jobs.duration_s, [0.5, 0.95])
    return JobSummary(
        jobs=len(jobs),
        duration_s=duration_s,
        # A list shorter than an hour is not scaled up: a few jobs at once are no rate.
        per_hour=len(jobs) / max(1.0, duration_s / HOUR_S),
        # The last hour is not over.
        dispersion_per_hour=_dispersion(per_hour[:-1]),
        duration_s_p50=float(p50),
        duration_s_p95=float(p95),
        gpus_mean=float(jobs.gpus.mean()),
        gpus_most=float(jobs.gpus.max()),
        gpu_hours=float(jobs.gpus @ jobs.duration_s) / HOUR_S,
        outline=_outline(np.histogram(jobs.submit_s, bins=OUTLINE)[0].astype(float)),
    )


def _summary(trace: RateTrace, place: int, name: str) -> SeriesSummary:
    rates_rps = trace.rates_rps[:, place]
    return SeriesSummary(
        name=name,
        requests=float(trace.requests[place]),
        mean_rps=float(rates_rps.mean()),
        p99_rps=float(np.quantile(rates_rps, 0.99)),
        peak_rps=float(rates_rps.max()),
        dispersion=tuple(
            _dispersion(_counts(rates_rps, trace.step_s, window_s))
            for window_s in WINDOWS_S
        ),
        autocorrelation=_autocorrelation(rates_rps, trace.step_s, LAG_S),
        daily=_daily(rates_rps, trace.step_s),
        outline=_outline(rates_rps),
    )


def _counts(rates_rps: Reals, step_s: float, window_s: float) -> Reals:
    """(N,) requests in whole windows; none where steps do not fill them evenly."""
    steps = _steps(step_s, window_s)
    if not steps:
        return np.empty(0)
    windows = len(rates_rps) // steps
    return np.asarray(
        rates_rps[: windows * steps].reshape(windows, steps).sum(axis=1) * step_s
    )


def _steps(step_s: float, time_s: float) -> int:
    """Steps in a time; 0 where they do not fill it evenly."""
    steps = round(time_s / step_s)
    return steps if steps and abs(steps * step_s - time_s) <= _TOLERANCE * time_s else 0


def _dispersion(counts: Reals) -> float | None:
    if len(counts) < MIN_WINDOWS or not counts.any():
        return None
    # The unbiased variance: with ten windows the other one is a tenth too small.
    return float(counts.var(ddof=1) / counts.mean())


def _autocorrelation(rates_rps: Reals, step_s: float, lag_s: float) -> float | None:
    lag = _steps(step_s, lag_s)
    # At least as many pairs as the lag has steps: fewer would compare one end of the trace with the other alone.
    if not lag or len(rates_rps) - lag < max(MIN_WINDOWS, lag):
        return None
    return _correlation(rates_rps[:-lag], rates_rps[lag:])


def _correlation(first: Reals, second: Reals) -> float | None:
    # A constant has no correlation: its variance, by which is divided, is 0.
    if np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _daily(rates_rps: Reals, step_s: float) -> Daily | None:
    hourly = _counts(rates_rps, step_s, HOUR_S)
    days = len(hourly) // DAY_HOURS
    if not days or not hourly.any():
        return None
    # Entire days only, so that every hour of the day is the mean of as many.
    by_hour = hourly[: days * DAY_HOURS].reshape(days, DAY_HOURS).mean(axis=0)
    factors = by_hour / by_hour.mean()
    busiest = int(np.argmax(factors))
    quietest = int(np.argmin(factors))
    return Daily(
        busiest_hour=busiest,
        busiest_factor=float(factors[busiest]),
        quietest_hour=quietest,
        quietest_factor=float(factors[quietest]),
        repeats=_correlation(hourly[:-DAY_HOURS], hourly[DAY_HOURS:])
        if days > 1
        else None,
    )


def _outline(rates: Reals) -> tuple[float, ...]:
    """At most OUTLINE means as shares of the highest."""
    means = np.array(
        [part.mean() for part in np.array_split(rates, min(OUTLINE, len(rates)))]
    )
    # The smallest float instead of 0, by which a trace without requests would be divided.
    return tuple((means / max(means.max(), np.finfo(float).tiny)).tolist())
