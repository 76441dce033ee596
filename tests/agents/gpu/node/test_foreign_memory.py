"""Memory that strangers hold: measured, told, and in the way of starts but never of what runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.device import DeviceError, GpuLost, LaunchFailed, NodeState
from agents.base.protocol import NodeCommand, TaskState
from agents.enforce.actions import Drain, StartReplica
from agents.enforce.diff import actions
from agents.gpu.node.foreign_memory import ForeignMemory
from agents.gpu.nvml.types import GpuIdentity, GpuProcess, GpuSample
from agents.processes.procfs import MARK
from agents.replicas.replica import ReplicaView
from agents.tasks.task import TaskHolder
from tests.agents.enforce.test_diff import settle, settled
from tests.agents.factories import (
    a_command,
    a_gpu,
    a_replica,
    a_view,
    run,
)
from tests.agents.gpu_nodes import (
    GPUS,
    Commands,
    FakeMemory,
    Wanted,
    a_node_command,
    commanded,
    gpu_device,
    is_ready,
    states,
    until,
)
from tests.agents.paper_device import PaperDevice
from tests.waiting import in_loop
from tests.waiting import until as until_now

GPU = GPUS[0]
"""16384 MiB."""


@contextmanager
def a_process(**variables: str) -> Iterator[int]:
    """One with a session of its own."""
    command = (sys.executable, "-c", "import sys; sys.stdin.read()")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **variables},
    ) as process:
        # `Popen` returns while exec is still under way, when the new program has no environment yet.
        until_now(Path(f"/proc/{process.pid}/environ").read_bytes)
        yield process.pid


def foreign_mib(memory: FakeMemory, *views: ReplicaView) -> float:
    return ForeignMemory(memory).mib(GPU, views)


def test_what_is_used_beyond_all_promises_is_strangers() -> None:
    # 9000 used, 4000 promised here: 5000. What another GPU's replica or a failed one was promised does not count.
    views = (
        a_view(memory_mib=4000.0),
        a_view(memory_mib=3000.0, gpu_index=1),
        a_view(memory_mib=2000.0, state="failed"),
    )
    assert foreign_mib(FakeMemory(used_mib=9000.0), *views) == 5000.0
    assert foreign_mib(FakeMemory(used_mib=3000.0), *views) == 0.0
    # The driver's own is none of theirs.
    assert foreign_mib(FakeMemory(used_mib=512.0)) == 0.0
    assert foreign_mib(FakeMemory(used_mib=513.0)) == 513.0


def test_what_swapped_out_tasks_left_behind_is_not_said_to_be_of_strangers() -> None:
    # 700 used, nothing promised: 700 beyond the 512 of the driver's own.
    memory = ForeignMemory(FakeMemory(used_mib=700.0))
    states: tuple[TaskState, ...] = ("swapping", "swapped", "running")
    tasks = [
        TaskHolder(
            gpu_index=0,
            memory_mib=0.0,
            state=state,
            pid=pid,
            name=f"t{pid}",
            sm_percent=30.0,
        )
        for pid, state in enumerate(states, start=4711)
    ]
    assert memory.mib(GPU, tasks) == 700.0
    words = "(tasks that were swapped out may have left it: process 4711, 4712)"
    assert words in memory.problem(GPU)


def test_a_stranger_counts_although_promises_would_cover_what_is_used() -> None:
    # 6000 used of 8000 promised, of which a stranger has 5000: our replica may still grow to its 8000.
    with (
        a_process() as stranger,
        a_process() as ours,
        a_process(**{MARK: "m.1"}) as child,
    ):
        held = tuple(
            GpuProcess(pid=pid, memory_mib=mib, is_mps=False)
            for pid, mib in ((stranger, 5000.0), (ours, 600.0), (child, 400.0))
        )
        memory = ForeignMemory(FakeMemory(used_mib=6000.0, strangers=held))
        assert memory.mib(GPU, (a_view(memory_mib=8000.0, pid=ours),)) == 5000.0
        told = memory.problem(GPU)
        assert (
            f"GPU 0: 5000 MiB are held beyond what this node's replicas and tasks were granted (process {stranger} "
            in told
        )


class Broken(FakeMemory):
    """A driver that does not answer after its first answer."""

    error: DeviceError | None = None

    def sample(self, gpu: GpuIdentity) -> GpuSample:
        if self.error is not None:
            raise self.error
        return super().sample(gpu)


def test_while_the_gpu_does_not_answer_what_was_seen_last_holds_and_looks_are_seldom() -> (
    None
):
    driver, now_s = Broken(used_mib=5000.0), [0.0]
    memory = ForeignMemory(driver, look_s=5.0, now_s=lambda: now_s[0])
    assert memory.mib(GPU, ()) == 5000.0
    driver.used_mib = 0.0
    assert memory.mib(GPU, ()) == 5000.0
    driver.error, now_s[0] = GpuLost("it fell off the bus"), 5.0
    assert memory.mib(GPU, ()) == 5000.0
    driver.error, now_s[0] = None, 10.0
    assert memory.mib(GPU, ()) == 0.0


def crowd(device: PaperDevice, foreign_mib: float) -> NodeState:
    gpu = run(device.state()).gpus[0]
    device._put_gpu(replace(gpu, foreign_mib=foreign_mib))
    return run(device.state())


def test_a_switch_without_measured_memory_for_both_drains_first() -> None:
    # 4000 MiB, 1000 each: promises allow both; with 2500 of a stranger's there is room for one.
    device = settled(a_command(a_gpu(a_replica("old"))))
    crowd(device, 2500.0)
    settle(device, a_command(a_gpu(a_replica("new")), generation=2))
    assert device.log == [
        "route {'chat': []}",
        "drain old",
        "stop old",
        "start new",
        "route {'chat': ['new']}",
    ]


def starts(wanted: NodeCommand, state: NodeState) -> list[str]:
    found = actions(wanted, state)
    return [each.replica.id for each in found if isinstance(each, StartReplica)]


def test_where_strangers_leave_no_room_even_without_the_old_one_it_serves_on() -> None:
    device = settled(a_command(a_gpu(a_replica("old"))))
    state = crowd(device, 3500.0)
    wanted = a_command(a_gpu(a_replica("new")), generation=2)
    assert starts(wanted, state) == []
    assert not any(isinstance(each, Drain) for each in actions(wanted, state))
    state = crowd(device, 1000.0)  # the stranger has left something
    assert starts(wanted, state) == ["new"]


@pytest.mark.integration
@in_loop
async def test_a_node_measures_before_it_starts_and_says_why_it_waits(
    tmp_path: Path,
) -> None:
    memory, control = FakeMemory(used_mib=16000.0), Commands()
    async with gpu_device(Wanted(directory=tmp_path, memory=memory)) as device:
        with pytest.raises(
            LaunchFailed,
            match="needs 1000 MiB; of the 16384 of GPU 0 0 are promised to others",
        ):
            await device.start_replica(0, a_replica())
        assert (await device.state()).gpus[0].foreign_mib == 16000.0
        problems = " ".join((await device.read()).problems)
        assert "16000 MiB are held beyond what" in problems
        control.command = a_node_command(1, a_replica())
        async with commanded(device, control) as agent:
            await until(lambda: agent.command is not None)
            assert await states(device) == {}
            memory.used_mib = 300.0
            await until(lambda: is_ready(device, "r1"))
