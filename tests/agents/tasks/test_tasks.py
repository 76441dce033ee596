"""Tasks as real processes: started, followed to their end, failed, swapped, and found again by a later agent."""

from pathlib import Path

import pytest

from agents.base.device import DeviceError, LaunchFailed, UnknownPart
from agents.tasks.tasks import Tasks
from tests.agents.factories import a_task
from tests.agents.fakes.replicas import in_loop, is_running, until
from tests.agents.kubernetes.cluster import Cluster
from tests.agents.task_nodes import TaskNode, come, kept, launch, pid, reading, state

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path, cluster: Cluster | None) -> TaskNode:
    return TaskNode(directory=tmp_path, cluster=cluster)


@pytest.fixture
def plain(tmp_path: Path) -> TaskNode:
    return TaskNode(directory=tmp_path, has_hook=False)


@in_loop
async def test_memory_goes_and_comes_back_by_the_hook(node: TaskNode) -> None:
    async with node.tasks() as tasks:
        seen: list[list[str]] = []
        tasks.on_change = lambda: seen.append([each.state for each in tasks.running(0)])
        await tasks.start(launch())
        with pytest.raises(DeviceError, match="t1 is starting; only one that runs"):
            await tasks.swap_out("t1")
        await kept(tasks, 1.0)
        await tasks.swap_in("t1")  # It is there: nothing to do.
        assert state(tasks) == "running"
        await tasks.swap_out("t1")
        assert state(tasks) == "swapping", "it is done in the background"
        await come(tasks, "swapped")
        assert tasks.holders()[0].memory_mib == 0.0
        away = pid(tasks)
        # The step that ended has been read.
        await until(lambda: reading(tasks).iteration_ms == 0.0)
        done = reading(tasks).done_iterations
        assert reading(tasks).done_iterations == done
        await tasks.swap_in("t1")
        await come(tasks, "running")
        await kept(tasks, done + 2.0)
        assert pid(tasks) == away, "the same process goes on"
        await tasks.swap_out("t1")
        await come(tasks, "swapped")
        await tasks.stop("t1")
        await until(lambda: tasks.running(0) == ())
        told = ["running", "swapped", "running", "swapped"]
        assert seen == [*([each] for each in told), []]
        assert not is_running(away or 0)
        # A swapped task is ended with what it has done.
        await tasks.start(launch())
        assert reading(tasks).done_iterations >= done + 2.0


@in_loop
async def test_a_task_is_started_followed_and_finishes(node: TaskNode) -> None:
    node.hold.touch()
    async with node.tasks() as tasks:
        for name in ("stop", "swap_out", "swap_in"):
            with pytest.raises(UnknownPart, match="no task t9"):
                await getattr(tasks, name)("t9")
        await tasks.start(launch(a_task(iterations=60)))
        assert state(tasks) == "starting"
        await come(tasks, "running")
        (running,) = tasks.running(0)
        assert (running.sm_percent, running.memory_mib) == (30.0, 1000.0)
        assert running.holds_memory and tasks.running(1) == ()
        ms: list[float] = []

        def has_finished() -> bool:
            ms.extend(each.iteration_ms for each in tasks.read() if each.iteration_ms)
            # An end that comes before anything was read would show no iteration.
            if ms:
                node.hold.unlink(missing_ok=True)
            return state(tasks) == "finished"

        await until(has_finished)
        # A fake's iteration sleeps for 10 ms, and a busy machine adds to that.
        assert min(ms) >= 10.0
        last = reading(tasks)
        assert (last.state, last.done_iterations) == ("finished", 60.0)
        assert tasks.problems == ()
        assert tasks.holders() == (), "its process id may be another's by now"
        with pytest.raises(LaunchFailed, match="t1 is there already"):
            await tasks.start(launch())
        await tasks.stop("t1")
        assert tasks.read() == ()
    # One that is done needs its checkpoint no more.
    assert not any((node.directory / "tasks" / "work").iterdir())


@in_loop
async def test_progress_is_what_a_restart_goes_on_from(node: TaskNode) -> None:
    async with node.tasks() as tasks:
        await tasks.start(launch())
        await kept(tasks, 5.0)
        await tasks.stop("t1")
        await until(lambda: state(tasks) == "absent")
        await tasks.start(launch())
        before = reading(tasks).done_iterations
        assert before >= 5.0, "its checkpoint is read at its start"
        await kept(tasks, before + 1.0)


@pytest.mark.thorough
@in_loop
async def test_work_begins_where_it_is_told(node: TaskNode) -> None:
    node.words = ("--done-iterations", "{done_iterations}")
    async with node.tasks() as tasks:
        await tasks.start(launch(a_task(iterations=1_000_000, done=500.7)))
        await kept(tasks, 501.0)
        assert reading(tasks).done_iterations < 100_000.0


@in_loop
async def test_a_failing_task_waits_in_a_crash_loop(plain: TaskNode) -> None:
    plain.words = ("fail",)
    async with plain.tasks() as tasks:
        for _ in range(3):
            await tasks.start(launch())
            await until(lambda: state(tasks) == "failed")
            (problem,) = tasks.problems
            assert "it ended with exit code 3; its log ends: no more wool" in problem
            await tasks.stop("t1")
        assert problem.startswith("task t1: crash loop: 3 failures in 10 minutes")
        with pytest.raises(LaunchFailed, match="t1 is in a crash loop and waits"):
            await tasks.start(launch())
        assert tasks.read() == ()


@in_loop
async def test_a_program_that_ends_too_early_has_failed(plain: TaskNode) -> None:
    # Of its arguments the last one given counts.
    node = TaskNode(directory=plain.directory, words=("--iterations", "10"))
    async with node.tasks() as tasks:
        await tasks.start(launch(a_task(iterations=30)))
        await until(lambda: state(tasks) == "failed")
        assert "it ended after 10 of 30 iterations" in tasks.problems[0]


@in_loop
async def test_a_task_whose_share_is_not_proven_does_not_run_on(node: TaskNode) -> None:
    node.objections, node.words = ["it sees all 132 SMs"], ("--fake-sms", "132")
    async with node.tasks() as tasks:
        await tasks.start(launch())
        await until(lambda: state(tasks) == "failed")
        assert "it sees all 132 SMs; its log ends" in tasks.problems[0]
        (proof,) = node.proofs
        assert (proof.id, proof.gpu_index) == ("t1", 0)
        assert (proof.sm_percent, proof.sm_count) == (30.0, 132)
        assert not any(map(is_running, proof.pids))


@in_loop
async def test_without_hook_a_task_is_stopped_instead(plain: TaskNode) -> None:
    plain.why_no_checkpoint = "GPU 0 is shared by MPS"
    async with plain.tasks() as tasks:
        await tasks.start(launch())
        await kept(tasks, 3.0)
        await tasks.swap_out("t1")
        # It holds its memory until its processes are gone.
        assert state(tasks) == "swapping"
        await until(lambda: state(tasks) == "absent")
        (problem,) = tasks.problems
        assert "they have no swap hook, and GPU 0 is shared by MPS" in problem
        await tasks.start(launch())
        assert reading(tasks).done_iterations >= 3.0
        await come(tasks, "running")
        await tasks.swap_out("t1")
        await until(lambda: state(tasks) == "absent")
        assert tasks.problems == (problem,), "it is said once"


def uses_cuda(node: TaskNode, tasks: Tasks) -> Path:
    file = node.cuda / str(pid(tasks))
    file.write_text("running")
    return file


@in_loop
async def test_without_a_hook_cuda_checkpoint_moves_the_memory(plain: TaskNode) -> None:
    async with plain.tasks(keep=True) as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        file = uses_cuda(plain, tasks)
        await tasks.swap_out("t1")
        await come(tasks, "swapped")
        assert file.read_text() == "checkpointed"
    async with plain.tasks() as tasks:
        await come(tasks, "swapped")  # A later agent finds it so.
        await tasks.swap_in("t1")
        await come(tasks, "running")
        assert file.read_text() == "running"
        calls = (plain.cuda / "calls").read_text().split()
        assert calls == ["lock", "checkpoint", "restore", "unlock"]
        assert tasks.problems == ()


@pytest.mark.parametrize("action", ["lock", "checkpoint", "nothing"])
@in_loop
async def test_where_cuda_checkpoint_does_not_work_the_room_is_made_all_the_same(
    plain: TaskNode, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.tasks.tasks.LAST_OUTPUT_S", 0.1)
    async with plain.tasks() as tasks:
        await tasks.start(launch())
        await come(tasks, "running")
        if action != "nothing":
            uses_cuda(plain, tasks)
            (plain.cuda / "refuse").write_text(action)
        await tasks.swap_out("t1")
        # What was locked runs on and is stopped; a failed checkpoint may have left a broken process, which is ended.
        await until(lambda: state(tasks) in ("absent", "failed"))
        assert state(tasks) == ("failed" if action == "checkpoint" else "absent")
        reason = {
            "lock": "--timeout 10000 failed with 1: Could not lock: operation not supported",
            "checkpoint": "its memory could not be moved out: cuda-checkpoint --action checkpoint",
            "nothing": "cuda-checkpoint finds CUDA running in none of the processes",
        }[action]
        assert reason in tasks.problems[0]
