"""AIMD by hand, and its saw-tooth."""

import pytest

from solvers.governors.aimd import next_batch
from solvers.governors.registry import govern
from solvers.governors.types import GovernorKnobs, GpuPeriod
from tests.solvers.governors.plants import Plant, a_period, course, limits


@pytest.mark.parametrize(
    ("batch", "above", "below"),
    [(1, 1, 2), (2, 1, 3), (10, 9, 11), (11, 9, 12), (20, 18, 21), (32, 28, 33)],
)
def test_a_batch_grows_by_one_and_backs_off_by_a_tenth_rounded_down(
    batch: int, above: int, below: int
) -> None:
    assert next_batch(batch, is_over=True) == above  # 0.9 · 11 = 9.9, 0.9 · 32 = 28.8
    assert next_batch(batch, is_over=False) == below


def test_clipper_latency_judges_every_replica_by_its_own_batches() -> None:
    knobs = GovernorKnobs(clock_mhz=900.0, batches={"slow": 20, "fast": 20, "idle": 20})
    reading = GpuPeriod(
        peak_power_w=1000.0,
        replicas=(
            a_period("slow", 100.1),
            a_period("fast", 100.0),
            a_period("idle", batches=0),
        ),
    )
    turned = govern(
        "clipper_latency", knobs, reading, limits(slow=32, fast=32, idle=32)
    )
    assert turned == GovernorKnobs(
        clock_mhz=900.0, batches={"slow": 18, "fast": 21, "idle": 20}
    )


def test_clipper_power_turns_all_replicas_by_the_power_of_their_gpu() -> None:
    knobs = GovernorKnobs(clock_mhz=900.0, batches={"a": 20, "b": 5})
    periods = (a_period("a", 500.0), a_period("b", batches=0))
    above = govern(
        "clipper_power",
        knobs,
        GpuPeriod(peak_power_w=150.1, replicas=periods),
        limits(a=32, b=32),
    )
    below = govern(
        "clipper_power",
        knobs,
        GpuPeriod(peak_power_w=150.0, replicas=periods),
        limits(a=32, b=32),
    )
    assert (above.batches, below.batches) == ({"a": 18, "b": 4}, {"a": 21, "b": 5})
    assert above.clock_mhz == below.clock_mhz == 900.0


def test_clipper_power_saws_between_a_batch_above_the_cap_and_a_tenth_below() -> None:
    # The grid's clock below 1000 MHz is 990: 50 + 5 b · 0.99^2.5 = 147.5 W at 20, 152.4 W at 21; and 0.9 · 21 = 18.9.
    passed = course(
        "clipper_power",
        Plant(),
        GovernorKnobs(clock_mhz=1000.0, batches={"r1": 1}),
        limits(150.0),
        steps=40,
    )
    assert [each.batches["r1"] for each in passed[:21]] == list(range(1, 22))
    assert [each.batches["r1"] for each in passed[21:29]] == [
        18,
        19,
        20,
        21,
        18,
        19,
        20,
        21,
    ]
