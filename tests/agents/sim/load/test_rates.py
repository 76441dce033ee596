"""Rates in pieces, loads from traces and Markov chains, and what is drawn from them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Modulation
from agents.sim.load.rates import ArrivalRates, Shape, TraceShape

PIECES = ArrivalRates(
    edges_s=np.array([0.0, 0.5, 2.0, 2.25, 5.0]),
    rates_rps=np.array([4.0, 8.0, 0.0, 2.0]),
)
TWO_LEVELS = Modulation(levels_rps=(20.0, 180.0), mean_stays_s=(3.0, 1.0))
SHAPES: dict[str, Shape] = {
    "curve": LoadShape(mean_rps=40.0, day_amplitude=0.5, day_period_s=100.0),
    "trace": TraceShape(rates_rps=np.arange(90.0)),
    "coarse trace": TraceShape(rates_rps=np.array([30.0, 0.0, 70.0]), step_s=60.0),
    "fine trace": TraceShape(rates_rps=np.tile([10.0, 90.0], 600), step_s=0.1),
    "modulation": TWO_LEVELS,
}


def make_load(
    shape: Shape, *, duration_s: int = 120, seed: int = 1, stream: int = 0
) -> ArrivalProcess:
    return ArrivalProcess(shape=shape, duration_s=duration_s, seed=seed, stream=stream)


def test_a_rate_holds_from_its_edge_to_the_next() -> None:
    moments_s = (-0.1, 0.0, 0.49, 0.5, 2.0, 2.25, 4.99, 5.0)
    assert [PIECES.at(t_s) for t_s in moments_s] == [0, 4, 4, 8, 0, 2, 2, 0]


@pytest.mark.parametrize(
    ("start_s", "end_s", "edges_s", "rates_rps"),
    [
        (1.0, 3.0, [1.0, 2.0, 2.25, 3.0], [8.0, 0.0, 2.0]),
        (2.25, 9.0, [2.25, 5.0], [2.0]),
        (5.0, 9.0, None, []),
    ],
)
def test_pieces_are_cut_at_the_window(
    start_s: float, end_s: float, edges_s: list[float] | None, rates_rps: list[float]
) -> None:
    found_s, found_rps = PIECES.pieces(start_s, end_s)
    assert found_rps.tolist() == rates_rps
    assert edges_s is None or found_s.tolist() == edges_s
    assert PIECES.until(0.75).edges_s.tolist() == [0.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("edges_s", "rates_rps", "problem"),
    [
        ([0.0, 1.0], [1.0, 2.0], "K rates need K"),
        ([1.0, 2.0], [1.0], "begin at 0"),
        ([0.0, 2.0, 2.0], [1.0, 1.0], "rise"),
        ([0.0, np.inf], [1.0], "rise"),
        ([0.0, 1.0], [-1.0], "at least 0"),
        ([0.0, 1.0], [np.nan], "finite"),
    ],
)
def test_what_cannot_be_rates_is_refused(
    edges_s: list[float], rates_rps: list[float], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ArrivalRates(edges_s=np.array(edges_s), rates_rps=np.array(rates_rps))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@given(cuts=st.lists(st.floats(0.0, 120.0), max_size=6))
def test_any_cut_of_time_gives_the_same_arrivals(
    shape: Shape, cuts: list[float]
) -> None:
    load = make_load(shape)
    pieces = [
        load.arrivals(start, end)
        for start, end in pairwise([0.0, *sorted(cuts), 120.0])
    ]
    assert np.array_equal(np.concatenate(pieces), load.arrivals(0.0, 120.0))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_as_many_arrive_as_the_rates_say_also_in_a_longer_run(shape: Shape) -> None:
    load, long = make_load(shape), make_load(shape, duration_s=5000)
    arrived, expected = load.arrivals(0.0, 120.0), load.rates_rps.sum()
    assert abs(len(arrived) - expected) < 5 * np.sqrt(expected)
    assert np.array_equal(arrived, long.arrivals(0.0, 120.0))


def test_a_trace_and_its_run_end_on_time() -> None:
    load = make_load(TraceShape(rates_rps=np.full(15, 100.0)), duration_s=60)
    assert load.arrivals(0.0, 60.0)[-1] < 15.0
    assert load.rates_rps[15:].tolist() == [0.0] * 45
    assert load.arrival_rate_rps(15.0) == 0.0
    assert len(load.arrivals(20.0, 60.0)) == 0
    load = make_load(TraceShape(rates_rps=np.full(100, 50.0)), duration_s=7)
    assert load.arrivals(0.0, 100.0)[-1] < 7.0
    assert len(load.rates_rps) == 7


def test_a_markov_chain_keeps_its_mean_its_shares_and_its_stays() -> None:
    rates = make_load(TWO_LEVELS, duration_s=40_000).rates
    stays_s = np.diff(rates.edges_s)
    assert set(rates.rates_rps) == {20.0, 180.0}
    assert (np.diff(rates.rates_rps) != 0.0).all()
    # Some 10 000 stays in each state: a mean of exponentials is known to 1 %.
    assert stays_s[rates.rates_rps == 20.0].mean() == pytest.approx(3.0, rel=0.05)
    assert stays_s[rates.rates_rps == 180.0].mean() == pytest.approx(1.0, rel=0.05)
    # π = (3/4, 1/4).
    assert TWO_LEVELS.mean_rps == 60.0
    assert rates.means_rps(40_000).mean() == pytest.approx(60.0, rel=0.05)


@pytest.mark.parametrize(
    ("levels_rps", "mean_stays_s", "problem"),
    [
        ((1.0,), (1.0,), "at least two"),
        ((1.0, 2.0), (1.0,), "as many"),
        ((1.0, -2.0), (1.0, 1.0), "levels"),
        ((1.0, np.inf), (1.0, 1.0), "levels"),
        ((1.0, 2.0), (1.0, 0.0), "stays"),
        ((1.0, 2.0), (1.0, np.nan), "stays"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(
    levels_rps: tuple[float, ...], mean_stays_s: tuple[float, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Modulation(levels_rps=levels_rps, mean_stays_s=mean_stays_s)
