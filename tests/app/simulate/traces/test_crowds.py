"""Flash crowds: jumps that loads share, at the sizes and times that were asked for."""

import numpy as np
import pytest

from agents.sim.load.rates import FloatArray
from app.simulate.traces.crowds import Crowd, CrowdedLoad, FlashCrowds


def rates_rps(load: CrowdedLoad, duration_s: int, stream: int = 0) -> FloatArray:
    return load.rates(duration_s, np.random.default_rng([1, stream])).rates_rps


def test_a_crowd_jumps_at_once_and_falls_to_37_percent_in_its_time() -> None:
    crowd = Crowd(start_s=100.0, factor=5.0, decay_s=30.0)
    times_s = np.array([0.0, 99.9, 100.0, 130.0, 160.0])
    # 4 at once, then 4/e and 4/e².
    assert crowd.lift(times_s) == pytest.approx(
        [0.0, 0.0, 4.0, 1.4715, 0.5413], abs=1e-4
    )


def test_crowds_come_as_often_and_as_large_as_asked_for() -> None:
    crowds = FlashCrowds(
        seed=3, mean_gap_s=100.0, factors=(2.0, 3.0), decays_s=(10.0, 20.0)
    ).draw(100_000)
    # A Poisson stream: 1,000 are expected, with a standard deviation of 32.
    assert 900 < len(crowds) < 1100
    assert np.mean([each.factor for each in crowds]) == pytest.approx(2.5, abs=0.05)
    assert np.mean([each.decay_s for each in crowds]) == pytest.approx(15.0, abs=0.5)
    assert all(2.0 <= each.factor <= 3.0 for each in crowds)


def test_loads_of_one_run_share_one_draw() -> None:
    lengths_s: list[int] = []

    class CountedCrowds(FlashCrowds):
        def draw(self, duration_s: int) -> tuple[Crowd, ...]:
            lengths_s.append(duration_s)
            return super().draw(duration_s)

    load = CrowdedLoad(mean_rps=10.0, crowds=CountedCrowds(seed=11))
    first, second = (rates_rps(load, 700, stream) for stream in (0, 1))
    rates_rps(load, 800)
    assert lengths_s == [700, 800]
    assert (first != second).any()
