"""Whole profiles of a fake GPU: real processes, the fake MPS, known times."""

from pathlib import Path

import pytest

from agents.base.device import LaunchFailed, NotSupported
from agents.processes.process import Spawn
from agents.profiling import bench_processes
from agents.profiling.bench_processes import BenchProcess, bench_command
from agents.profiling.cells import BenchSettings, Member, grid, make_cell, pairs
from tests.agents.profiling.nodes import GPU, FakeGpu, Heard, Node, play

pytestmark = pytest.mark.integration


def known_ms(member: Member, others: int = 0) -> float:
    """See fake_bench: (2 + batch) · 100 / share, and half as much more for each other."""
    return (2 + member.batch) * 100.0 / member.sm_percent * (1.0 + 0.5 * others)


def test_a_grid_has_the_known_times_and_what_does_not_fit_is_told(
    tmp_path: Path,
) -> None:
    node, heard = Node(directory=tmp_path), Heard()
    cells = (*grid(["r"], [25.0, 50.0], [1]), *grid(["r"], [100.0], [1, 65, 64]))
    report = play(lambda: node.profile(cells, heard))
    assert (report.measured, report.left) == (4, 0)
    ((cell, why),) = heard.failures
    assert cell.members[0].batch == 65
    assert "EngineFailed: 65 rows do not fit into memory" in why
    for timing in (each.timings[0] for each in heard.measurements):
        member = timing.member
        assert timing.latency_ms == pytest.approx(known_ms(member), rel=0.01), member
        # Steps of two SMs: 33 of 132 SMs are 32.
        assert timing.sm_count == {25.0: 32, 50.0: 66, 100.0: 132}[member.sm_percent]


TOGETHER = (
    *grid(["a", "b"], [50.0], [4]),
    make_cell([Member(network=name, batch=4, sm_percent=50.0) for name in "ab"]),
)
"""Two processes, each alone and both at the same time."""


def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every process that is started for cells from now on."""
    found: list[str] = []
    spawned = bench_processes._spawn

    async def spawn(settings: BenchSettings, spawn: Spawn) -> BenchProcess:
        found.append(f"{settings.network} {settings.sm_percent:g}")
        return await spawned(settings, spawn)

    monkeypatch.setattr(bench_processes, "_spawn", spawn)
    return found


def test_a_process_is_started_once_and_disturbs_nobody_while_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_processes, "host_memory_used", lambda: 0.0)
    node, heard = Node(directory=tmp_path), Heard()
    started = starts(monkeypatch)
    report = play(lambda: node.profile(TOGETHER, heard))
    assert (report.measured, report.failed) == (3, ())
    # The first tells how many SMs there are, before any cell.
    assert sorted(started[1:]) == ["a 50", "b 50"]
    for measurement in heard.measurements:
        others = len(measurement.timings) - 1
        for timing in measurement.timings:
            known = known_ms(timing.member, others)
            assert timing.latency_ms == pytest.approx(known, rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("full", ["GPU", "machine"])
def test_where_memory_is_full_nobody_waits_for_later_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    gpu = FakeGpu(memory_used_mib=(0.6 if full == "GPU" else 0.0) * GPU.memory_mib)
    host_used = 0.6 if full == "machine" else 0.0
    monkeypatch.setattr(bench_processes, "host_memory_used", lambda: host_used)
    node, heard = Node(directory=tmp_path, gpu=gpu), Heard()
    started = starts(monkeypatch)
    report = play(lambda: node.profile(TOGETHER, heard))
    assert (report.measured, report.failed) == (3, ())
    # One of them twice: it has ended while the other was measured.
    assert sorted(started[1:]) in (["a 50", "a 50", "b 50"], ["a 50", "b 50", "b 50"])


@pytest.mark.thorough
def test_a_batch_that_lacks_memory_is_tried_again_without_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_processes, "host_memory_used", lambda: 0.0)
    node, heard = Node(directory=tmp_path), Heard()
    node.sign("crowded")
    report = play(lambda: node.profile(TOGETHER, heard))
    assert report.measured == 2
    ((cell, why),) = report.failed
    assert len(cell.members) == 2 and "do not fit into memory" in why


def test_a_process_that_dies_costs_its_cell_which_is_measured_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    node, heard = Node(directory=tmp_path), Heard()
    node.sign("lost")
    cells = grid(["r"], [50.0], [1, 7, 8])
    report = play(lambda: node.profile(cells, heard))
    assert report.measured == 2
    ((cell, why),) = report.failed
    assert cell.members[0].batch == 7
    assert "the process of r is lost: it ended with exit code 3" in why
    again = Heard()
    report = play(lambda: node.profile(cells, again, resumes=True))
    assert (report.measured, report.failed) == (1, ())
    assert (again.cells, again.done) == (3, 2)
    assert [each.cell.members[0].batch for each in again.measurements] == [7]


def test_a_share_that_is_not_in_force_is_never_measured(tmp_path: Path) -> None:
    node, heard = Node(directory=tmp_path), Heard()
    node.sign("outside")
    report = play(lambda: node.profile(grid(["r"], [50.0, 100.0], [1]), heard))
    assert report.measured == 1, "the whole GPU, which promises no limit"
    ((cell, why),) = report.failed
    assert cell.members[0].sm_percent == 50.0
    assert (
        "is not in force, so nothing was measured: it sees all 132 SMs at 50 %" in why
    )


def test_a_network_that_does_not_come_up_is_said_at_once(tmp_path: Path) -> None:
    node = Node(directory=tmp_path)
    node.sign("broken")
    with pytest.raises(
        LaunchFailed,
        match=r"bench of r does not come up: r: EngineFailed: the network is broken",
    ):
        play(lambda: node.profile(grid(["r"], [50.0], [1]), Heard()))


def test_when_the_budget_is_over_no_cell_begins(tmp_path: Path) -> None:
    node = Node(directory=tmp_path, budget_s=0.0, has_mps=False)
    heard = Heard()
    report = play(lambda: node.profile(grid(["r"], [100.0], [1, 2]), heard))
    assert (report.measured, report.left) == (0, 2)
    assert heard.measurements == []


def test_without_mps_only_the_whole_gpu_can_be_measured(tmp_path: Path) -> None:
    node = Node(directory=tmp_path, has_mps=False)
    with pytest.raises(
        NotSupported,
        match=r"need MPS, which cannot be used here: nvidia-cuda-mps-control is not in",
    ):
        play(lambda: node.profile(grid(["r"], [50.0], [1]), Heard()))
    with pytest.raises(NotSupported, match="--shares 100 without --pairs needs none"):
        play(lambda: node.profile(pairs(["r"], [(50.0, 50.0)], [1]), Heard()))
    assert play(lambda: node.profile(grid(["r"], [100.0], [1]), Heard())).measured == 1


def test_a_clock_is_never_locked_unless_the_profile_may(tmp_path: Path) -> None:
    node = Node(directory=tmp_path)
    with pytest.raises(LaunchFailed, match="may not lock any"):
        play(lambda: node.profile(grid(["r"], [100.0], [1], [900.0]), Heard()))
    assert node.gpu.locked == []


def test_a_clock_is_locked_for_its_cells_and_unlocked_at_the_end(
    tmp_path: Path,
) -> None:
    knobs_dir = tmp_path / "knobs"
    node, heard = Node(directory=tmp_path, knobs_dir=knobs_dir, has_mps=False), Heard()
    report = play(
        lambda: node.profile(grid(["r"], [100.0], [1], [900.0, 1200.0]), heard)
    )
    assert report.measured == 2
    assert {each.cell.clock_mhz for each in heard.measurements} == {900.0, 1200.0}
    assert all(each.clock_mhz == each.cell.clock_mhz for each in heard.measurements)
    assert node.gpu.locked[-1] is None
    assert None not in node.gpu.locked[:-1]


def test_only_our_own_worker_becomes_a_bench_whatever_stands_before_it() -> None:
    with pytest.raises(LaunchFailed, match="is not our worker"):
        bench_command(("tritonserver", "--http-port", "8000"))
    assert bench_command(
        ("taskset", "-c", "3", "/v/bin/plimsoll", "worker", "--port", "1")
    ) == (
        *(
            "taskset",
            "-c",
            "3",
            "/v/bin/python",
            "-m",
            "agents.profiling",
            "--port",
            "1",
        ),
    )
