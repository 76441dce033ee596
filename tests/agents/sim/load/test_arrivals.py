"""Seeded load: the shape that was asked for, Poisson inside, and the same whatever the windows."""

from itertools import pairwise

import numpy as np
import pytest

from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Spike


def make_load(
    *, duration_s: int = 600, seed: int = 1, stream: int = 0, **shape: object
) -> ArrivalProcess:
    fields: dict[str, object] = {"mean_rps": 50.0, **shape}
    return ArrivalProcess(
        shape=LoadShape(**fields), duration_s=duration_s, seed=seed, stream=stream
    )  # type: ignore[arg-type]


def test_any_cut_into_windows_gives_the_same_ascending_arrivals() -> None:
    load = make_load(burst_weight=0.5)
    whole = load.arrivals(0, 600)
    assert (np.diff(whole) >= 0).all()
    cuts = [0, 0.25, 7, 10, 59.9, 60, 61.5, 300, 599.99, 600]
    pieces = [load.arrivals(start, end) for start, end in pairwise(cuts)]
    assert np.array_equal(np.concatenate(pieces), whole)
    # Another seed or stream gives others.
    for other in ({"seed": 2}, {"stream": 1}):
        drawn = make_load(burst_weight=0.5, **other).arrivals(0, 600)
        assert not np.array_equal(drawn, whole)
    with pytest.raises(ValueError, match="read-only"):
        load.rates.rates_rps[0] = 0.0
    with pytest.raises(ValueError, match="no Azure trace for service 'chat'"):
        make_load(burst_service="chat", burst_weight=1.0)


def test_even_arrivals_keep_their_distance_whatever_the_windows() -> None:
    rates = LoadShape(mean_rps=4.0, spikes=(Spike(start_s=30, length_s=10),))
    load = ArrivalProcess(shape=rates, duration_s=60, seed=1, stream=0, is_even=True)
    whole = load.arrivals(0, 60)
    gaps_s = np.diff(whole[whole < 5.0])
    assert gaps_s == pytest.approx(np.full(len(gaps_s), 0.25))
    # Four times as near while the spike lasts.
    inside_s = np.diff(whole[(whole > 31.0) & (whole < 39.0)])
    assert inside_s == pytest.approx(np.full(len(inside_s), 1.0 / 16.0))
    cuts = [0, 0.1, 9.9, 10, 35.5, 60]
    pieces = [load.arrivals(start, end) for start, end in pairwise(cuts)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert len(whole) == int(load.rates_rps.sum())


def test_the_day_curve_swings_by_its_amplitude() -> None:
    load = make_load(
        duration_s=1000, mean_rps=100.0, day_amplitude=0.5, day_period_s=1000
    )
    assert load.rates_rps.max() == pytest.approx(150.0, rel=1e-3)
    assert load.rates_rps.min() == pytest.approx(50.0, rel=1e-3)
    assert load.rates_rps.mean() == pytest.approx(100.0, rel=1e-6)
    assert load.arrival_rate_rps(250.2) == pytest.approx(150.0, rel=1e-3)


def test_a_spike_multiplies_the_rate_between_its_ramps() -> None:
    load = make_load(
        mean_rps=10.0, spikes=(Spike(start_s=200, length_s=100, ramp_s=20),)
    )
    assert load.arrival_rate_rps(100) == pytest.approx(10.0)
    assert load.arrival_rate_rps(250) == pytest.approx(40.0)
    # Halfway up the ramp (the second's middle is 190.5): 10 * (1 + 3 * 10.5 / 20).
    assert load.arrival_rate_rps(190) == pytest.approx(25.75)
    assert load.arrival_rate_rps(330) == pytest.approx(10.0)
