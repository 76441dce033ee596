"""What all governors have in common: they are pure, stay within the limits, and settle on a steady plant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.governors.registry import GOVERNORS, govern
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GpuPeriod,
    within,
)
from tests.solvers.governors.plants import CLOCKS_MHZ, Plant, a_period, course, limits

SETTLING_STEPS = 60
HIGHEST = GovernorKnobs(clock_mhz=1530.0, batches={"r1": 32})
LOWEST = GovernorKnobs(clock_mhz=600.0, batches={"r1": 1})
KEEP_THE_CAP = ("batch_dvfs", "dfs")
"""Those that stop probing once they know; the AIMD ones break their limit once per tooth."""


def test_the_registry_names_the_governors_and_who_holds_the_power_cap() -> None:
    assert {name: each.holds_power for name, each in GOVERNORS.items()} == {
        "batch_dvfs": True,
        "clipper_latency": False,
        "clipper_power": True,
        "dfs": True,
        "power_latency": True,
    }


@pytest.mark.parametrize("name", sorted(GOVERNORS))
@given(
    clock_mhz=st.floats(1.0, 5000.0),
    batch=st.integers(-3, 100),
    powers=st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=12),
    execution_ms=st.floats(0.0, 500.0),
    batches=st.integers(0, 2),
)
def test_whatever_is_measured_the_knobs_stay_within_the_limits(
    name: str,
    clock_mhz: float,
    batch: int,
    powers: list[float],
    execution_ms: float,
    batches: int,
) -> None:
    bounds = limits(r1=32, r2=7, r3=1)
    knobs = GovernorKnobs(clock_mhz=clock_mhz, batches={"r1": batch, "gone": 9})
    for power_w in powers:
        reading = GpuPeriod(
            peak_power_w=power_w,
            replicas=(
                a_period("r1", execution_ms, batches=batches),
                a_period("r2", execution_ms),
            ),
        )
        knobs = govern(name, knobs, reading, bounds)
        assert knobs.clock_mhz in CLOCKS_MHZ
        assert knobs.batches.keys() == {"r1", "r2", "r3"}
        assert all(
            1 <= knobs.batches[each.id] <= each.largest_batch
            for each in bounds.replicas
        )


@pytest.mark.parametrize("name", sorted(GOVERNORS))
def test_a_gpu_without_replicas_and_one_without_work_stay_as_they_are(
    name: str,
) -> None:
    idle = GpuPeriod(peak_power_w=50.0)
    empty = GovernorLimits(power_cap_w=150.0, clocks_mhz=CLOCKS_MHZ)
    assert (
        govern(name, GovernorKnobs(clock_mhz=900.0, batches={}), idle, empty).clock_mhz
        == 900.0
    )
    full = GovernorKnobs(clock_mhz=900.0, batches={"r1": 32})
    resting = govern(
        name,
        full,
        GpuPeriod(peak_power_w=50.0, replicas=(a_period(batches=0),)),
        limits(),
    )
    assert (resting.clock_mhz, resting.batches) == (full.clock_mhz, full.batches)


@pytest.mark.parametrize("name", KEEP_THE_CAP)
@pytest.mark.parametrize("start", [HIGHEST, LOWEST], ids=["from above", "from below"])
@pytest.mark.parametrize("cap_w", [90.0, 120.0, 150.0, 200.0, 300.0])
def test_under_a_steady_load_the_cap_is_kept_for_good_and_power_comes_near_it(
    name: str, start: GovernorKnobs, cap_w: float
) -> None:
    plant = Plant()
    passed = course(name, plant, start, limits(cap_w), steps=300)
    settled = {plant.power_w(each) for each in passed[SETTLING_STEPS:]}
    # The lowest that dfs can reach: 50 + 5 · 32 · 0.6^2.5 = 94.6 W; the highest of both: 50 + 160 · 1.53^2.5 = 513 W.
    lowest_w = plant.power_w(
        within(GovernorKnobs(clock_mhz=600.0, batches={"r1": 32}), limits())
    )
    if name == "dfs" and cap_w < lowest_w:
        assert settled == {lowest_w}
        return
    assert max(settled) <= cap_w
    assert min(settled) >= 0.95 * cap_w


@pytest.mark.parametrize("name", KEEP_THE_CAP)
def test_a_load_that_grows_is_answered_and_one_that_falls_is_used(name: str) -> None:
    bounds, light, heavy = (
        limits(150.0),
        Plant(watts_per_item=3.0),
        Plant(watts_per_item=6.0),
    )
    before = course(name, light, HIGHEST, bounds, steps=SETTLING_STEPS)
    during = course(name, heavy, before[-1], bounds, steps=SETTLING_STEPS)
    after = course(name, light, during[-1], bounds, steps=SETTLING_STEPS)
    assert heavy.power_w(during[0]) > 150.0 >= heavy.power_w(during[-1]) >= 0.95 * 150.0
    assert 150.0 >= light.power_w(after[-1]) >= 0.95 * 150.0


def test_a_replica_that_the_knobs_do_not_know_gets_its_largest_batch() -> None:
    knobs = within(GovernorKnobs(clock_mhz=899.0, batches={}), limits(new=8))
    assert knobs.batches == {"new": 8}
