"""power_latency by hand: each printed rule, the order of precedence, and how it settles."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.governors.power_latency import (
    DOUBT_PERIODS,
    FAILING_PERIODS,
    asks_for_partition,
    start,
)
from solvers.governors.registry import GOVERNORS, govern
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GovernorTuning,
    GpuPeriod,
    ReplicaLimits,
    ReplicaPeriod,
)
from tests.examples import examples
from tests.solvers.governors.plants import CLOCKS_MHZ, Plant, limits

CAP_W = 100.0
LIMIT_MS = 100.0


def worked(
    replica: str,
    latency_ms: float,
    *,
    queued: int = 0,
    execution_ms: float | None = None,
) -> ReplicaPeriod:
    return ReplicaPeriod(
        id=replica,
        batches=20,
        requests=80,
        queued=queued,
        execution_ms=latency_ms if execution_ms is None else execution_ms,
        latency_ms=latency_ms,
    )


def turned(
    power_w: float,
    *latencies_ms: float,
    batches: tuple[int, ...] = (),
    memory: dict[str, float] | None = None,
    tuning: GovernorTuning = GovernorTuning(),  # noqa: B008  it never changes
) -> tuple[float, list[int], GovernorKnobs]:
    """By how much one step turns the clock from 900 MHz, and the batches after it; every batch was 10."""
    names = [f"r{number}" for number in range(len(latencies_ms))]
    before = dict(zip(names, batches or (10,) * len(names), strict=True))
    after = govern(
        "power_latency",
        GovernorKnobs(clock_mhz=900.0, batches=before, memory=memory or {}),
        GpuPeriod(
            peak_power_w=power_w, replicas=tuple(map(worked, names, latencies_ms))
        ),
        replace(
            limits(CAP_W, latency_ms=LIMIT_MS, **dict.fromkeys(names, 64)),
            tuning=tuning,
        ),
    )
    return after.clock_mhz - 900.0, [after.batches[name] for name in names], after


@pytest.mark.parametrize(
    ("tuning", "power_w", "latency_ms", "clock_mhz", "batch"),
    [
        # α = 0.9: from 90 W on nothing moves, below it as ever.
        (GovernorTuning(steady_power_share=0.9), 91.0, 50.0, 0.0, 10),
        (GovernorTuning(steady_power_share=0.9), 89.0, 95.0, 75.0, 10),
        # β = 0.6: 65 ms of 100 are enough, and batches aim at 80 ms: 10 · 80 / 50.
        (GovernorTuning(steady_latency_share=0.6), 97.0, 65.0, 15.0, 10),
        (GovernorTuning(steady_latency_share=0.6), 97.0, 50.0, 0.0, 16),
        # A step of 4 grid points at most, up and down.
        (GovernorTuning(largest_clock_step=4), 60.0, 95.0, 60.0, 10),
        (GovernorTuning(largest_clock_step=4), 140.0, 50.0, -60.0, 10),
        (GovernorTuning(largest_clock_step=4), 97.0, 95.0, 15.0, 10),
    ],
)
def test_alpha_beta_and_the_largest_step_are_what_the_limits_say(
    tuning: GovernorTuning,
    power_w: float,
    latency_ms: float,
    clock_mhz: float,
    batch: int,
) -> None:
    assert turned(power_w, latency_ms, tuning=tuning)[:2] == (clock_mhz, [batch])


@pytest.mark.parametrize(
    ("power_w", "latency_ms", "clock_mhz", "batch"),
    [
        # P <= 98 W: 3 % below the cap is 1 grid point of 15 MHz, 8 % are 2, 15 % are 5, more are 10.
        (97.0, 95.0, 15.0, 10),
        (92.0, 90.0, 30.0, 10),
        (85.0, 100.0, 75.0, 10),
        (60.0, 95.0, 150.0, 10),
        # L < 90 ms: the batch that would take 95 ms if time were proportional: 10 · 95 / 80 = 11.9, 10 · 95 / 50 = 19.
        (97.0, 80.0, 0.0, 11),
        (60.0, 50.0, 0.0, 19),
        (97.0, 89.9, 0.0, 11),  # 10.6: at least one more
        # Far below the cap clock and batch rise together from 70 ms on.
        (79.0, 69.9, 0.0, 13),
        (79.0, 70.0, 150.0, 13),
        (80.0, 70.0, 0.0, 13),  # 20 % is not far
        (60.0, 5.0, 0.0, 40),  # 190, but at most four times as much
        # 98 < P <= 100 W: nothing moves.
        (98.1, 50.0, 0.0, 10),
        (100.0, 95.0, 0.0, 10),
        # P > 100 W: by a tenth where the latency is near its limit, else the clock.
        (103.0, 95.0, 0.0, 9),
        (103.0, 89.0, -15.0, 10),
        (118.0, 50.0, -75.0, 10),
        (140.0, 50.0, -150.0, 10),
        # L > 100 ms: the batch first, to 95 ms: 10 · 95 / 120 = 7.9; a tenth at least.
        (60.0, 120.0, 0.0, 7),
        (60.0, 101.0, 0.0, 9),
        (99.0, 120.0, 0.0, 7),
        (103.0, 120.0, 0.0, 7),
    ],
)
def test_every_rule_for_one_replica(
    power_w: float, latency_ms: float, clock_mhz: float, batch: int
) -> None:
    assert turned(power_w, latency_ms)[:2] == (clock_mhz, [batch])


def test_the_clock_changes_once_however_many_replicas_want_it() -> None:
    assert turned(92.0, 95.0, 95.0, 95.0)[:2] == (30.0, [10, 10, 10])
    assert turned(108.0, 50.0, 50.0, 50.0)[:2] == (-30.0, [10, 10, 10])


def test_over_the_cap_near_ones_give_batches_and_the_others_the_clock() -> None:
    assert turned(108.0, 95.0, 50.0)[:2] == (-30.0, [9, 10])


def test_a_latency_above_its_limit_outranks_head_room() -> None:
    # The second has head-room and the third would have the clock up; both wait for the first.
    assert turned(60.0, 120.0, 50.0, 95.0)[:2] == (0.0, [7, 10, 10])
    assert turned(60.0, 120.0, 50.0, batches=(1, 10))[:2] == (150.0, [1, 10])


def test_waiting_beyond_one_batch_counts_as_want_of_throughput_not_as_latency() -> None:
    # 400 ms of which 360 are waiting: two batches' time is 80 ms, so the batch grows to 10 · 95 / 80.
    reading = GpuPeriod(
        peak_power_w=85.0, replicas=(worked("r1", 400.0, execution_ms=40.0, queued=50),)
    )
    after = govern(
        "power_latency",
        GovernorKnobs(clock_mhz=900.0, batches={"r1": 10}),
        reading,
        limits(CAP_W, r1=64),
    )
    assert (after.clock_mhz, after.batches) == (900.0, {"r1": 11})


def test_after_a_breach_the_clock_rises_along_a_line_and_no_batch_grows() -> None:
    warned = {"breach": 30.0, "breach_w": 110.0, "base_w": 80.0}
    # 900 MHz is point 20; 10 points to the breach, 30 W; up to 98 W are 18 W: 6 points.
    assert turned(80.0, 95.0, memory=warned)[:2] == (90.0, [10])
    assert turned(80.0, 50.0, memory=warned)[:2] == (0.0, [10])
    # Up to 98 W are 0.5 of 12.5 W to the breach: no point.
    assert turned(97.5, 95.0, memory=warned)[:2] == (0.0, [10])
    # The breach was at this very clock, with larger batches.
    assert turned(80.0, 95.0, memory={**warned, "breach": 20.0})[:2] == (0.0, [10])


def test_a_breach_is_forgotten_when_power_has_fallen_for_ten_periods() -> None:
    memory = {"breach": 21.0, "breach_w": 104.0, "base_w": 97.0, "calm": 0.0}
    # The breach made 104 W of 97 W. 91 W would become 97.6 W, within 98 W; 93 W would become 99.7 W.
    for power_w, is_forgotten in ((91.0, True), (93.0, False)):
        notes: dict[str, float] = memory
        for _ in range(9):
            *_, after = turned(power_w, 50.0, memory=notes)
            assert after.memory["breach"] == 21.0
            notes = dict(after.memory)
        *_, after = turned(power_w, 50.0, memory=notes)
        assert (after.memory["breach"] == -1.0) is is_forgotten


def test_a_breach_far_above_the_power_is_doubted_once_and_believed_twice() -> None:
    # 60 W are far below the cap of 100 W; the breach would come again at 60 / 59 of its 104 W.
    notes: dict[str, float] = {"breach": 21.0, "breach_w": 104.0, "base_w": 59.0}
    for _ in range(DOUBT_PERIODS - 1):
        *_, after = turned(60.0, 50.0, memory=notes)
        notes = {**after.memory, "base_w": 59.0}
        assert notes["breach"] == 21.0
    *_, after = turned(60.0, 50.0, memory=notes)
    assert (after.memory["breach"], after.memory["doubts"]) == (-1.0, 1.0)
    *_, after = turned(104.0, 50.0, memory=dict(after.memory))
    notes = {**after.memory, "base_w": 59.0}
    for _ in range(3 * DOUBT_PERIODS):
        *_, after = turned(60.0, 50.0, memory=notes)
        notes = {**after.memory, "base_w": 59.0}
    assert (notes["breach"], notes["doubts"]) == (20.0, 2.0)


def test_three_failing_periods_ask_for_another_partition_a_good_one_does_not() -> None:
    notes: dict[str, float] = {}
    for period in range(1, FAILING_PERIODS + 1):
        *_, after = turned(99.0, 120.0, batches=(1,), memory=notes)
        notes = dict(after.memory)
        assert asks_for_partition(notes) is (period == FAILING_PERIODS)
    *_, after = turned(99.0, 95.0, batches=(1,), memory=notes)
    assert not asks_for_partition(after.memory)
    assert GOVERNORS["power_latency"].asks_for_partition is asks_for_partition
    assert not GOVERNORS["dfs"].asks_for_partition(notes)


@pytest.mark.parametrize(
    ("clocks_mhz", "expected_mhz"),
    [
        (CLOCKS_MHZ, 600.0),
        ((500.0, 650.0, 900.0), 650.0),
        ((500.0, 700.0), 500.0),
        ((1530.0,), 1530.0),
    ],
)
def test_it_starts_at_batch_1_and_the_clock_nearest_to_600(
    clocks_mhz: tuple[float, ...], expected_mhz: float
) -> None:
    bounds = GovernorLimits(
        power_cap_w=CAP_W,
        clocks_mhz=clocks_mhz,
        replicas=(ReplicaLimits(id="r1", latency_ms=50.0, largest_batch=8),),
    )
    assert start(bounds) == GovernorKnobs(clock_mhz=expected_mhz, batches={"r1": 1})


def played(
    plant: Plant, knobs: GovernorKnobs, bounds: GovernorLimits, *, periods: int
) -> list[tuple[GovernorKnobs, float, float]]:
    """Knobs, power and longest batch of every period; more always waits than a batch takes."""
    passed = []
    for _ in range(periods):
        times_ms = {each: plant.execution_ms(knobs, each) for each in knobs.batches}
        power_w = plant.power_w(knobs)
        passed.append((knobs, power_w, max(times_ms.values(), default=0.0)))
        work = tuple(
            worked(each, time_ms, queued=10_000) for each, time_ms in times_ms.items()
        )
        knobs = govern(
            "power_latency",
            knobs,
            GpuPeriod(peak_power_w=power_w, replicas=work),
            bounds,
        )
    return passed


PLANTS = st.builds(
    Plant,
    idle_w=st.floats(10.0, 80.0),
    watts_per_item=st.floats(0.2, 10.0),
    base_ms=st.floats(0.5, 20.0),
    ms_per_item=st.floats(0.2, 10.0),
)


@given(
    plant=PLANTS,
    cap_w=st.floats(90.0, 300.0),
    replicas=st.integers(1, 4),
    latency_ms=st.floats(30.0, 300.0),
)
@settings(max_examples=examples(200))
def test_random_plants_are_within_both_limits_after_at_most_20_periods_and_stay_there(
    plant: Plant, cap_w: float, replicas: int, latency_ms: float
) -> None:
    bounds = limits(
        cap_w, latency_ms=latency_ms, **{f"r{each}": 128 for each in range(replicas)}
    )
    passed = played(plant, start(bounds), bounds, periods=120)
    lowest = GovernorKnobs(
        clock_mhz=600.0, batches={f"r{each}": 1 for each in range(replicas)}
    )
    can_keep_power = plant.power_w(lowest) <= cap_w
    can_keep_latency = plant.execution_ms(lowest, "r0") <= latency_ms
    for knobs, power_w, longest_ms in passed[20:]:
        assert power_w <= cap_w or (
            not can_keep_power
            and knobs.clock_mhz == 600.0
            and max(knobs.batches.values()) == 1
        )
        assert longest_ms <= latency_ms or not can_keep_latency


@pytest.mark.parametrize(
    ("cap_after_w", "latency_after_ms"), [(200.0, 100.0), (100.0, 100.0), (150.0, 60.0)]
)
def test_other_limits_are_kept_again_within_20_periods(
    cap_after_w: float, latency_after_ms: float
) -> None:
    plant, names = Plant(watts_per_item=1.0), {"r1": 128, "r2": 128}
    first = limits(150.0, latency_ms=100.0, **names)
    before = played(plant, start(first), first, periods=40)[-1][0]
    bounds = limits(cap_after_w, latency_ms=latency_after_ms, **names)
    passed = played(
        plant,
        GovernorKnobs(clock_mhz=before.clock_mhz, batches=before.batches),
        bounds,
        periods=100,
    )
    assert all(
        power_w <= cap_after_w and longest_ms <= latency_after_ms
        for _, power_w, longest_ms in passed[20:]
    )
    assert passed[-1][1] >= 0.85 * cap_after_w


def test_a_cap_below_idle_power_ends_at_the_lowest_knobs_and_asks() -> None:
    bounds = limits(40.0, r1=32)
    passed = played(
        Plant(idle_w=50.0),
        GovernorKnobs(clock_mhz=1530.0, batches={"r1": 32}),
        bounds,
        periods=60,
    )
    assert (passed[-1][0].clock_mhz, passed[-1][0].batches) == (600.0, {"r1": 1})
    assert asks_for_partition(passed[-1][0].memory)


def test_steps_downwards_double_with_every_failing_period_before() -> None:
    for failing, points in ((0.0, 1), (1.0, 2), (2.0, 4), (3.0, 8), (9.0, 8)):
        assert turned(103.0, 50.0, memory={"failing": failing})[0] == -15.0 * points
