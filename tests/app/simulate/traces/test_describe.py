"""Descriptions of traces by hand-computed cases, and made traces that are what was asked for."""

import numpy as np
import pytest

from agents.sim.load.arrivals import LoadShape, Spike
from agents.sim.load.rates import Shape
from app.simulate.traces.describe import (
    OUTLINE,
    SeriesSummary,
    describe_jobs,
    describe_trace,
)
from app.simulate.traces.generate import generate
from app.simulate.traces.jobs import JobList
from app.simulate.traces.trace import RateTrace


def summary(rates_rps: object, step_s: float = 1.0) -> SeriesSummary:
    values = np.array(rates_rps, dtype=float)[:, None]
    (found,) = describe_trace(RateTrace(names=("a",), rates_rps=values, step_s=step_s))
    return found


def made(
    shape: Shape,
    *,
    duration_s: int = 3600,
    seed: int = 1,
    draws: bool = False,
    series: int = 1,
) -> RateTrace:
    names = [f"s{number}" for number in range(series)]
    return generate(
        [shape] * series,
        names=names,
        duration_s=duration_s,
        seed=seed,
        draws=draws,
        note="mine",
    )


def test_the_figures_of_a_square_wave() -> None:
    # 30 s at 2, 30 s at 6, again and again for an hour.
    found = summary(np.tile(np.repeat([2.0, 6.0], 30), 60))
    assert (found.requests, found.mean_rps, found.p99_rps, found.peak_rps) == (
        14400.0,
        4.0,
        6.0,
        6.0,
    )
    # Windows of 1 s: variance 4 over mean 4. Of 10 s: counts 20 and 60, variance 400 over mean 40. Of 60 s: all 240.
    assert found.dispersion == pytest.approx((1.0, 10.0, 0.0), rel=0.01)
    assert found.autocorrelation == pytest.approx(1.0)
    assert found.daily is None
    assert found.outline == pytest.approx([1.0] * OUTLINE, abs=0.1)


def test_what_a_trace_cannot_say_is_none() -> None:
    short, quiet = summary([1.0, 2.0]), summary(np.zeros(3600))
    assert (short.dispersion, short.autocorrelation) == ((None,) * 3, None)
    # Steps of a minute have no windows of 10 s; steps of 7 s fill neither 10 s nor 60 s.
    assert summary(np.arange(20.0), 60.0).dispersion[:2] == (None, None)
    assert summary(np.arange(200.0), 7.0).dispersion == (None, None, None)
    assert (quiet.dispersion, quiet.autocorrelation) == ((None,) * 3, None)
    assert quiet.outline == (0.0,) * OUTLINE


def test_days_have_a_busiest_and_a_quietest_hour() -> None:
    hours = np.ones(24)
    hours[[3, 14]] = 0.5, 3.0  # mean (22 + 3.5) / 24 = 1.0625
    daily = summary(np.repeat(np.tile(hours, 2), 60), 60.0).daily
    assert daily is not None
    assert (daily.busiest_hour, daily.quietest_hour) == (14, 3)
    assert (daily.busiest_factor, daily.quietest_factor) == pytest.approx(
        (3.0 / 1.0625, 0.5 / 1.0625)
    )
    assert daily.repeats == pytest.approx(1.0)
    one_day = summary(np.repeat(hours, 60), 60.0).daily
    assert one_day is not None
    assert one_day.repeats is None
    assert summary(np.repeat(hours[:-1], 60), 60.0).daily is None


def test_the_figures_of_a_job_list() -> None:
    jobs = JobList(
        submit_s=np.array([0.0, 10.0, 7200.0]),
        duration_s=np.array([3600.0, 1800.0, 3600.0]),
        gpus=np.array([2.0, 1.0, 0.5]),
        names=("a", "b", "c"),
    )
    found = describe_jobs(jobs)
    assert (
        found.jobs,
        found.duration_s,
        found.per_hour,
        found.dispersion_per_hour,
    ) == (3, 7200.0, 1.5, None)
    assert (found.gpu_hours, found.gpus_most, found.duration_s_p50) == (
        3.0,
        2.0,
        3600.0,
    )
    assert found.outline == (1.0, *(0.0,) * (OUTLINE - 2), 0.5)


def test_a_day_and_a_spike_have_the_rates_that_were_asked_for() -> None:
    day = made(LoadShape(mean_rps=10.0, day_amplitude=0.5), duration_s=86_400)
    (found,) = describe_trace(day)
    assert (found.mean_rps, found.peak_rps) == pytest.approx((10.0, 15.0), rel=1e-6)
    assert found.daily is not None
    assert found.daily.busiest_hour in (5, 6)
    spike = made(
        LoadShape(
            mean_rps=10.0, spikes=(Spike(start_s=600.0, length_s=300.0, factor=4.0),)
        )
    )
    assert spike.rates_rps[700, 0] == 40.0
    assert spike.rates_rps[[100, 1000], 0].tolist() == [10.0, 10.0]
