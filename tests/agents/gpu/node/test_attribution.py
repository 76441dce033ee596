"""Who used what of a GPU: hand arithmetic, laws, and when an overuse begins and ends."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agents.gpu.node.attribution import (
    IDLE,
    OTHERS,
    WINDOWS,
    GpuWindow,
    GrantedPart,
    Judge,
    OwnedProcess,
    PartUse,
    attribute,
)


def a_part(
    name: str = "r1",
    *,
    sm_percent: float = 40.0,
    memory_mib: float = 1000.0,
    **more: object,
) -> GrantedPart:
    return replace(
        GrantedPart(
            kind="replica",
            name=name,
            owner="chat",
            sm_percent=sm_percent,
            memory_mib=memory_mib,
        ),
        **more,  # type: ignore[arg-type]
    )


def a_process(
    name: str = "r1",
    *,
    memory_mib: float | None = 500.0,
    is_mps: bool = False,
    time_percent: float | None = None,
) -> OwnedProcess:
    return OwnedProcess(
        owner=("replica", name),
        memory_mib=memory_mib,
        is_mps=is_mps,
        time_percent=time_percent,
    )


def a_window(
    *processes: OwnedProcess,
    energy_j: float = 100.0,
    idle_w: float = 40.0,
    **more: object,
) -> GpuWindow:
    return replace(
        GpuWindow(
            gpu_index=0,
            seconds=1.0,
            energy_j=energy_j,
            idle_w=idle_w,
            processes=processes,
        ),
        **more,  # type: ignore[arg-type]
    )


def by_name(uses: Sequence[PartUse]) -> dict[str, PartUse]:
    return {use.name: use for use in uses}


def test_idle_watts_go_by_what_was_granted_and_the_rest_by_what_was_used() -> None:
    parts = [a_part("r1", sm_percent=50.0), a_part("r2", sm_percent=30.0)]
    window = a_window(
        a_process("r1", time_percent=20.0), a_process("r2", time_percent=60.0)
    )
    found = by_name(attribute(window, parts))
    # 100 J, of which 40 W · 1 s idle: 20, 12 and 8 J by 50, 30 and the 20 % that are free; 60 J by 20 to 60: 15, 45.
    assert {name: use.energy_mj for name, use in found.items()} == {
        "r1": 35_000,
        "r2": 57_000,
        "(idle)": 8_000,
    }
    assert not found["r1"].is_estimated


def test_of_a_part_all_its_processes_count() -> None:
    window = a_window(
        a_process(memory_mib=500.0, time_percent=20.0),
        a_process(memory_mib=250.0, time_percent=30.0),
        a_process(memory_mib=None),
    )
    use = by_name(attribute(window, [a_part()]))["r1"]
    assert (use.memory_used_mib, use.sm_percent) == (750.0, 50.0)
    # Where the driver tells of none it is not known, rather than 0.
    use = by_name(attribute(a_window(a_process(memory_mib=None)), [a_part()]))["r1"]
    assert use.memory_used_mib is None and not use.excesses


def test_a_client_of_mps_has_its_time_times_its_part_of_the_sms() -> None:
    part = a_part(sm_percent=40.0, is_limited=True)
    measured = by_name(
        attribute(a_window(a_process(is_mps=True, time_percent=100.0)), [part])
    )["r1"]
    # 100 % of the time on 40 % of the SMs: no overuse, although the driver says 100.
    assert (measured.sm_percent, measured.is_estimated, measured.excesses) == (
        40.0,
        True,
        (),
    )
    proven = replace(part, proven_sm_percent=25.0)
    assert (
        by_name(
            attribute(a_window(a_process(is_mps=True, time_percent=50.0)), [proven])
        )["r1"].sm_percent
        == 12.5
    )


def test_where_the_driver_tells_nothing_of_a_client_its_server_does() -> None:
    part = a_part(sm_percent=40.0, is_limited=True, busy_share=0.25)
    use = by_name(attribute(a_window(a_process(is_mps=True)), [part]))["r1"]
    assert (use.sm_percent, use.is_estimated) == (10.0, True)
    unknown = by_name(
        attribute(a_window(a_process(is_mps=True)), [replace(part, busy_share=None)])
    )["r1"]
    assert (unknown.sm_percent, unknown.is_estimated) == (None, True)
    # What nothing is known of is taken to have used its grant: all 60 J above idle are its, and 40 % of idle's 40.
    assert unknown.energy_mj == 76_000


def test_a_driver_that_does_not_say_who_is_a_client_makes_no_false_overuse() -> None:
    part = a_part(sm_percent=40.0, is_limited=True)
    window = a_window(a_process(time_percent=100.0), knows_clients=False)
    assert by_name(attribute(window, [part]))["r1"].excesses == ()
    # One that is known to run outside MPS uses more than it was granted.
    window = a_window(a_process(time_percent=90.0))
    (over,) = by_name(attribute(window, [part]))["r1"].excesses
    assert (over.quantity, over.granted, over.used) == ("sm_use", 40.0, 90.0)


def test_a_driver_that_measures_no_process_leaves_what_the_server_says() -> None:
    window = a_window(a_process(), knows_use=False)
    use = by_name(attribute(window, [a_part(sm_percent=100.0, busy_share=0.5)]))["r1"]
    assert (use.sm_percent, use.is_estimated) == (50.0, True)


def test_processes_of_nobody_are_counted_apart_and_pay_what_they_use() -> None:
    stranger = OwnedProcess(
        owner=OTHERS, memory_mib=900.0, is_mps=False, time_percent=75.0
    )
    found = by_name(
        attribute(
            a_window(a_process(time_percent=25.0), stranger), [a_part(sm_percent=100.0)]
        )
    )
    # 60 J above idle by 25 to 75; all of the 40 J idle are r1's.
    assert (
        found["(others)"].energy_mj,
        found["r1"].energy_mj,
        found["(idle)"].energy_mj,
    ) == (45_000, 55_000, 0)
    assert found["(others)"].memory_used_mib == 900.0


percents = st.floats(0.0, 100.0)
grants = st.floats(1.0, 100.0)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[GpuWindow, tuple[GrantedPart, ...]]:
    names = draw(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6))
    parts, processes = [], []
    for name in names:
        parts.append(
            a_part(
                name,
                sm_percent=draw(grants),
                is_limited=draw(st.booleans()),
                busy_share=draw(st.none() | st.floats(0.0, 1.0)),
            )
        )
        for _ in range(draw(st.integers(0, 2))):
            measured = draw(st.none() | percents)
            processes.append(
                a_process(name, is_mps=draw(st.booleans()), time_percent=measured)
            )
    if draw(st.booleans()):
        processes.append(
            OwnedProcess(
                owner=OTHERS, memory_mib=1.0, is_mps=False, time_percent=draw(percents)
            )
        )
    window = a_window(
        *processes,
        energy_j=draw(st.floats(0.0, 1e6)),
        idle_w=draw(st.floats(0.0, 1e3)),
        knows_use=draw(st.booleans()),
        knows_clients=draw(st.booleans()),
    )
    return window, tuple(parts)


@given(scenes())
def test_energies_add_up_to_the_gpu_s_and_nothing_is_negative(
    scene: tuple[GpuWindow, tuple[GrantedPart, ...]],
) -> None:
    window, parts = scene
    uses = attribute(window, parts)
    assert sum(use.energy_mj for use in uses) == round(1000.0 * window.energy_j)
    assert all(use.energy_mj >= 0 for use in uses)
    assert all(
        0.0 <= use.sm_percent <= 100.0 for use in uses if use.sm_percent is not None
    )
    assert {(use.kind, use.name) for use in uses} >= {part.key for part in parts} | {
        IDLE
    }


def over(judge: Judge, memory_mib: float, windows: int = 1) -> list[float]:
    """What the last of these windows says of memory beyond 1000 MiB."""
    uses: tuple[PartUse, ...] = ()
    for _ in range(windows):
        uses = judge.judge(
            attribute(
                a_window(a_process(memory_mib=memory_mib)), [a_part(memory_mib=1000.0)]
            )
        )
    return [each.used for use in uses for each in use.over]


def test_an_overuse_begins_after_some_windows_and_ends_after_as_many() -> None:
    judge = Judge()
    assert over(judge, 1200.0, WINDOWS - 1) == []
    assert over(judge, 1200.0) == [1200.0]
    assert over(judge, 1300.0) == [1300.0]
    assert over(judge, 900.0, WINDOWS - 1) == [1300.0]
    assert over(judge, 900.0) == []


def test_a_peak_now_and_then_is_no_overuse() -> None:
    judge = Judge()
    for _ in range(5):
        assert over(judge, 1200.0, WINDOWS - 1) == []
        assert over(judge, 900.0) == []
    over(judge, 1200.0, WINDOWS)
    judge.judge(attribute(a_window(), ()))
    assert over(judge, 1200.0) == [], "of a part that is gone nothing is remembered"


def test_between_the_levels_what_holds_goes_on() -> None:
    # The slack of 1000 MiB is 64: begins above 1064, ends at 1032 or below.
    judge = Judge()
    assert over(judge, 1064.0, 3 * WINDOWS) == []
    assert over(judge, 1065.0, WINDOWS) == [1065.0]
    assert over(judge, 1033.0, 3 * WINDOWS) == [1065.0]
    assert over(judge, 1032.0, WINDOWS) == []
