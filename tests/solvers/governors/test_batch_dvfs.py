"""batch_dvfs by hand: clock down first, then batches by bisection, and the same way back."""

from solvers.governors.registry import govern
from solvers.governors.types import GovernorKnobs, GpuPeriod
from tests.solvers.governors.plants import Plant, a_period, course, limits


def path(power_at: dict[int, float], start: int, *, steps: int) -> list[int]:
    """Batches that are tried at the lowest clock under a cap of 100 W, with the watts of each batch given."""
    knobs, tried = GovernorKnobs(clock_mhz=600.0, batches={"r1": start}), [start]
    for _ in range(steps):
        power_w = next(
            watts
            for most, watts in sorted(power_at.items())
            if knobs.batches["r1"] <= most
        )
        reading = GpuPeriod(peak_power_w=power_w, replicas=(a_period(),))
        knobs = govern("batch_dvfs", knobs, reading, limits(100.0))
        tried.append(knobs.batches["r1"])
    return tried


def test_batches_are_bisected_from_above() -> None:
    # Up to 11 requests keep the cap. Levels are batch - 1: 31 → 15 → 7 (keeps) → 11 (breaks) → 9 → 10 → stays.
    assert path({11: 90.0, 32: 120.0}, 32, steps=8) == [
        32,
        16,
        8,
        12,
        10,
        11,
        11,
        11,
        11,
    ]


def test_batches_are_bisected_from_below() -> None:
    # Levels: 0 → (0 + 31 + 1) / 2 = 16 (breaks) → 8 → 12 (breaks) → 10 → 11 (breaks) → 10.
    assert path({11: 90.0, 32: 120.0}, 1, steps=8) == [1, 17, 9, 13, 11, 12, 11, 11, 11]


def test_the_clock_rises_only_when_every_batch_is_the_largest() -> None:
    small = govern(
        "batch_dvfs",
        GovernorKnobs(clock_mhz=600.0, batches={"a": 16, "b": 4}),
        GpuPeriod(peak_power_w=60.0, replicas=(a_period("a"), a_period("b"))),
        limits(100.0, a=32, b=8),
    )
    # Levels of a: 15 → (15 + 31 + 1) / 2 = 23 of 31; b: 1 + 7 · 23 / 31 = 6.2.
    assert (small.clock_mhz, small.batches) == (600.0, {"a": 24, "b": 6})
    full = govern(
        "batch_dvfs",
        GovernorKnobs(clock_mhz=600.0, batches={"a": 32, "b": 8}),
        GpuPeriod(peak_power_w=60.0, replicas=(a_period("a"), a_period("b"))),
        limits(100.0, a=32, b=8),
    )
    assert (full.clock_mhz, full.batches) == (750.0, {"a": 32, "b": 8})


def test_above_the_cap_the_clock_falls_before_any_batch() -> None:
    passed = course(
        "batch_dvfs",
        Plant(),
        GovernorKnobs(clock_mhz=1530.0, batches={"r1": 32}),
        limits(90.0),
        steps=40,
    )
    lowest = [each.clock_mhz for each in passed].index(600.0)
    assert all(each.batches["r1"] == 32 for each in passed[:lowest])
    # At 600 MHz: 50 + 5 b · 0.6^2.5 = 50 + 1.394 b W, so 28 requests draw 89.04 W.
    assert (passed[-1].clock_mhz, passed[-1].batches["r1"]) == (600.0, 28)


def test_batches_of_one_leave_the_clock_alone_to_be_turned() -> None:
    knobs = GovernorKnobs(clock_mhz=900.0, batches={"r1": 1})
    over = govern(
        "batch_dvfs",
        knobs,
        GpuPeriod(peak_power_w=103.0, replicas=(a_period(),)),
        limits(100.0, r1=1),
    )
    assert (over.clock_mhz, over.batches) == (885.0, {"r1": 1})
