"""Auto-tune: one job per batch is raised, throughput-oriented ones first, within what is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.oltunes.schedule import FreeRoom, auto_tune
from solvers.types.jobs import PlacedJob
from tests.solvers.jobs import a_job, a_setting

NOW = a_setting(sm_percent=25.0, batch=4, memory_mib=1000.0, latency_s=2.0)
LARGER = a_setting(sm_percent=25.0, batch=8, memory_mib=1500.0, latency_s=1.5)
WIDER = a_setting(sm_percent=50.0, batch=4, memory_mib=1000.0, latency_s=1.2)
BOTH = a_setting(sm_percent=50.0, batch=8, memory_mib=1500.0, latency_s=1.0)


def placed(name: str, *, weight: float = 0.75) -> PlacedJob:
    return PlacedJob(a_job(name, NOW, LARGER, WIDER, BOTH, weight=weight), NOW)


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (FreeRoom(0.0, 0.0), NOW),
        (FreeRoom(0.0, 499.0), NOW),
        (FreeRoom(0.0, 500.0), LARGER),
        (FreeRoom(25.0, 0.0), WIDER),
        (FreeRoom(25.0, 500.0), BOTH),
        (FreeRoom(24.0, 500.0), LARGER),
    ],
)
def test_the_fastest_setting_that_the_room_allows(
    room: FreeRoom, expected: object
) -> None:
    members, tuned = auto_tune([placed("a")], room)
    assert members[0].setting == expected
    assert tuned == (None if expected == NOW else "a")


def test_throughput_oriented_jobs_are_raised_first_and_only_one_is() -> None:
    members, tuned = auto_tune(
        [placed("critical"), placed("first", weight=0.2), placed("second", weight=0.1)],
        FreeRoom(75.0, 9e3),
    )
    assert tuned == "first"
    assert [member.setting for member in members] == [NOW, BOTH, NOW]


def test_another_variant_another_type_and_smaller_batches_are_no_tuning() -> None:
    others = (
        a_setting("lighter", latency_s=0.1),
        a_setting(gpu_type="slow", latency_s=0.1),
        a_setting(batch=2, latency_s=0.1),
        a_setting(batch=8, latency_s=2.0),
    )
    member = PlacedJob(a_job("a", NOW, *others), NOW)
    assert auto_tune([member], FreeRoom(100.0, 9e3)) == ((member,), None)


@given(
    st.floats(0.0, 100.0),
    st.floats(0.0, 2000.0),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
)
def test_the_room_is_never_exceeded_and_nobody_gets_slower(
    percent: float, mib: float, weights: list[float]
) -> None:
    before = [
        placed(f"j{number}", weight=weight) for number, weight in enumerate(weights)
    ]
    after, _ = auto_tune(before, FreeRoom(percent, mib))
    changed = [
        (old.setting, new.setting)
        for old, new in zip(before, after, strict=True)
        if old != new
    ]
    assert len(changed) <= 1
    for old, new in changed:
        assert new.sm_percent - old.sm_percent <= percent
        assert new.memory_mib - old.memory_mib <= mib
        assert new.latency_s < old.latency_s
