"""Traces: what can be one, and how they are changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agents.sim.load.arrivals import ArrivalProcess
from app.base.errors import InvalidRequest
from app.measurements.tables import Reals
from app.measurements.traces import MAX_STEPS
from app.simulate.traces.changes import (
    compressed,
    cut,
    factors_to,
    scaled,
    smoothed,
)
from app.simulate.traces.trace import MAX_VALUES, RateTrace, check_size

RATES = arrays(
    np.float64,
    st.tuples(st.integers(2, 40), st.integers(1, 3)),
    elements=st.just(0.0) | st.floats(1e-6, 1e6),
)


def make_trace(
    rates_rps: object, *, names: tuple[str, ...] = (), step_s: float = 1.0
) -> RateTrace:
    values = np.array(rates_rps, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    return RateTrace(
        names=names or tuple("abc"[: values.shape[1]]), rates_rps=values, step_s=step_s
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"names": ()}, "at least one series"),
        ({"names": ("a", "a")}, "two series are called a"),
        ({"names": ("a", "second")}, "holds times"),
        ({"names": ("a", "b_rps")}, "marks a column of rates"),
        ({"names": ("a", " b")}, "cannot name"),
        ({"names": ("a", "#b")}, "cannot name"),
        ({"names": ("a", "b\n")}, "cannot name"),
        ({"names": ("a",)}, "shape"),
        ({"rates_rps": np.ones((1, 2))}, "at least two steps, not 1"),
        ({"rates_rps": np.array([[1.0, 1.0], [1.0, -1.0]])}, "at least 0"),
        ({"rates_rps": np.array([[1.0, 1.0], [1.0, np.nan]])}, "at least 0"),
        ({"step_s": 0.0}, "longer than 0 s"),
        ({"notes": ("two\nlines",)}, "one printable line"),
    ],
)
def test_what_cannot_be_a_trace_is_refused(
    change: dict[str, object], problem: str
) -> None:
    fields: dict[str, object] = {
        "names": ("a", "b"),
        "rates_rps": np.ones((3, 2)),
        "step_s": 1.0,
        **change,
    }
    with pytest.raises(InvalidRequest, match=problem):
        RateTrace(**fields)  # type: ignore[arg-type]


def test_sizes_are_bounded() -> None:
    check_size(MAX_STEPS, 1)
    for steps, series in ((MAX_STEPS + 1, 1), (MAX_STEPS, MAX_VALUES // MAX_STEPS + 1)):
        with pytest.raises(InvalidRequest, match="too many"):
            check_size(steps, series)


def test_requests_means_and_duration_count_the_step() -> None:
    trace = make_trace([[1.0, 0.0], [3.0, 8.0]], step_s=60.0)
    assert (trace.duration_s, trace.means_rps.tolist()) == (120.0, [2.0, 4.0])
    assert trace.requests.tolist() == [240.0, 480.0]


def test_a_series_plays_as_a_load() -> None:
    shape = make_trace([[1.0, 500.0], [3.0, 0.0]], step_s=10.0).shape("b")
    load = ArrivalProcess(shape=shape, duration_s=30, seed=1, stream=0)
    assert load.rates_rps.tolist() == [500.0] * 10 + [0.0] * 20


@given(rates_rps=RATES, factor=st.floats(1e-3, 1e3))
def test_scaled_and_scaled_back_is_the_same(rates_rps: Reals, factor: float) -> None:
    trace = make_trace(rates_rps)
    there = scaled(trace, dict.fromkeys(trace.names, factor))
    np.testing.assert_allclose(there.requests, factor * trace.requests, rtol=1e-9)
    back = scaled(there, dict.fromkeys(trace.names, 1.0 / factor))
    np.testing.assert_allclose(back.rates_rps, trace.rates_rps, rtol=1e-12)


def test_only_the_named_series_is_scaled_and_a_note_says_so() -> None:
    trace = scaled(make_trace([[1.0, 2.0], [3.0, 4.0]]), {"b": 0.5})
    assert trace.rates_rps.tolist() == [[1.0, 1.0], [3.0, 2.0]]
    assert trace.notes == ("change: scaled b × 0.5",)


def test_factors_bring_series_to_a_mean() -> None:
    trace = make_trace([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0]])
    assert factors_to(trace, {"a": 10.0, "b": 1.0, "c": 0.0}) == {
        "a": 5.0,
        "b": 0.5,
        "c": 1.0,
    }
    with pytest.raises(InvalidRequest, match="c has no requests"):
        factors_to(trace, {"c": 1.0})


def test_an_unknown_series_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(InvalidRequest, match=r"no series is called 'x'.*a, b"):
        scaled(make_trace([[1.0, 2.0], [3.0, 4.0]]), {"x": 2.0})


@given(rates_rps=RATES, width_s=st.floats(3.0, 50.0))
def test_smoothing_keeps_requests_and_stays_within_the_rates(
    rates_rps: Reals, width_s: float
) -> None:
    trace = make_trace(rates_rps)
    smooth = smoothed(trace, width_s)
    np.testing.assert_allclose(smooth.requests, trace.requests)
    flat = smoothed(make_trace(np.full_like(rates_rps, 7.0)), width_s)
    np.testing.assert_allclose(flat.rates_rps, 7.0)


def test_smoothing_takes_the_mean_around_each_step() -> None:
    # Means of two or three: 6, 4, 5, 4, 6, which add up to 25, for 24 requests.
    smooth = smoothed(make_trace([9.0, 3.0, 0.0, 12.0, 0.0]), 3.0)
    means = np.array([6.0, 4.0, 5.0, 4.0, 6.0])
    np.testing.assert_allclose(smooth.rates_rps[:, 0], means * 24.0 / means.sum())


@pytest.mark.parametrize("width_s", [0.0, 1.0, 1.9])
def test_a_mean_of_one_step_is_refused(width_s: float) -> None:
    with pytest.raises(InvalidRequest, match="at least three steps"):
        smoothed(make_trace([1.0, 2.0]), width_s)


@given(rates_rps=RATES, factor=st.floats(1.0, 12.0))
def test_faster_time_keeps_rates_and_divides_requests(
    rates_rps: Reals, factor: float
) -> None:
    trace = make_trace(np.repeat(rates_rps, 30, axis=0))
    faster = compressed(trace, factor)
    assert faster.step_s == pytest.approx(1.0)
    assert (
        trace.duration_s / factor - 1.0
        < faster.duration_s
        <= trace.duration_s / factor * (1.0 + 1e-9)
    )
    # What is dropped at the end is less than a second.
    dropped = trace.requests / factor - faster.requests
    tolerance = 1e-9 * trace.requests + 1e-9
    assert (dropped >= -tolerance).all()
    assert (dropped <= trace.rates_rps.max(axis=0) + tolerance).all()


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_time_does_not_stand_still_or_go_back(factor: float) -> None:
    with pytest.raises(InvalidRequest, match="must be above 0"):
        compressed(make_trace([1.0, 2.0]), factor)


@given(rates_rps=RATES, data=st.data())
def test_two_slices_joined_are_the_whole(rates_rps: Reals, data: st.DataObject) -> None:
    trace = make_trace(np.vstack([rates_rps, rates_rps]), step_s=0.1)
    at = data.draw(st.integers(2, len(trace.rates_rps) - 2))
    parts = [cut(trace, 0.0, at * 0.1), cut(trace, at * 0.1, trace.duration_s)]
    assert np.array_equal(
        np.vstack([part.rates_rps for part in parts]), trace.rates_rps
    )


def test_a_slice_takes_the_steps_that_begin_in_it() -> None:
    trace = make_trace(np.arange(10.0), step_s=60.0)
    part = cut(trace, 61.0, 300.0)
    assert part.rates_rps[:, 0].tolist() == [2.0, 3.0, 4.0]
    assert part.notes == ("change: seconds 120 to 300",)


@pytest.mark.parametrize(
    ("start_s", "end_s", "problem"),
    [(0.0, 11.0, "ends after 10 s"), (5.0, 5.0, "two steps"), (9.0, 10.0, "two steps")],
)
def test_a_slice_that_is_not_there_is_refused(
    start_s: float, end_s: float, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        cut(make_trace(np.arange(10.0)), start_s, end_s)


def test_compressed_time_averages_steps_of_a_second() -> None:
    # Six seconds at three times the speed: two seconds, each the mean of three.
    assert compressed(make_trace([1.0, 2.0, 6.0, 0.0, 0.0, 3.0]), 3.0).rates_rps[
        :, 0
    ].tolist() == [3.0, 1.0]
    # At 1.5: second 0 holds old 0 to 1.5, that is (1 + 2/2) / 1.5, second 1 (2/2 + 6) / 1.5, and so on.
    faster = compressed(make_trace([1.0, 2.0, 6.0, 0.0, 0.0, 3.0]), 1.5)
    np.testing.assert_allclose(
        faster.rates_rps[:, 0], np.array([2.0, 7.0, 0.0, 3.0]) / 1.5
    )


def test_no_step_is_lost_while_steps_stay_above_a_second() -> None:
    for step_s, factor, new_step_s in ((60.0, 24.0, 2.5), (1.0, 0.5, 2.0)):
        trace = compressed(make_trace([1.0, 2.0, 6.0], step_s=step_s), factor)
        assert trace.step_s == new_step_s
        assert trace.rates_rps[:, 0].tolist() == [1.0, 2.0, 6.0]
