"""Whose the processes on a GPU are, with real processes, and what goes over the wire about them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agents.base.device import NotSupported
from agents.base.protocol import GpuReading, UseReading
from agents.gpu.node.attribution import OTHERS, WINDOWS, Key
from agents.gpu.node.owners import SharedGpu, owner_of
from agents.gpu.node.use import GpuUse
from agents.gpu.nvml.types import (
    Capability,
    GpuCapabilities,
    GpuIdentity,
    GpuProcess,
    ProcessUse,
)
from agents.replicas.replica import ReplicaView
from tests.agents.factories import a_view

GPU = GpuIdentity(index=0, uuid="GPU-0", name="a", memory_mib=16384.0, sm_count=100)
CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], {how}stdin=0)
print(child.pid, flush=True)
child.wait()
"""


@dataclass
class Clock:
    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


@dataclass
class Driver:
    """What NVML would say; counts how often it is asked."""

    listed: tuple[GpuProcess, ...] = ()
    used: tuple[ProcessUse, ...] = ()
    is_blind: bool = False
    asked: int = 0

    def processes(self, gpu: GpuIdentity) -> tuple[GpuProcess, ...]:
        self.asked += 1
        if self.is_blind:
            raise NotSupported("another layout")
        return self.listed

    def process_use(
        self, gpu: GpuIdentity, since_us: int = 0
    ) -> tuple[ProcessUse, ...]:
        self.asked += 1
        return tuple(
            each for each in self.used if each.at_us == 0 or each.at_us > since_us
        )


@dataclass
class Node:
    """One GPU that draws 100 W, and a clock that moves one second per reading."""

    is_limited: bool = False
    why_not: tuple[tuple[Capability, str], ...] = ()
    driver: Driver = field(default_factory=Driver)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        shared = SharedGpu(
            gpu=GPU,
            capabilities=GpuCapabilities(why_not=self.why_not),
            is_limited=self.is_limited,
        )
        self.use = GpuUse(self.driver, [shared], self.clock)

    def read(
        self,
        *views: ReplicaView,
        power_w: float | None = 100.0,
        healthy: bool = True,
        tasks: Sequence["ATask"] = (),
    ) -> dict[str, UseReading]:
        self.clock.at_s += 1.0
        reading = GpuReading(
            index=0,
            gpu_type="a",
            memory_mib=16384.0,
            memory_used_mib=0.0,
            power_w=power_w,
            energy_j=power_w or 0.0,
            clock_mhz=1000.0,
            busy_percent=0.0,
            healthy=healthy,
        )
        return {each.name: each for each in self.use.read([reading], views, tasks)}


def a_process(
    pid: int, memory_mib: float = 500.0, *, is_mps: bool = False
) -> GpuProcess:
    return GpuProcess(pid=pid, memory_mib=memory_mib, is_mps=is_mps)


class _Started:
    """A process in a new session that starts another one; both end with their standard input."""

    def __init__(self, how: str) -> None:
        self._how = how

    def __enter__(self) -> tuple[int, int]:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(how=self._how)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        return self._process.pid, int(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def test_a_process_belongs_to_who_leads_its_session() -> None:
    with _Started("") as (leader, child), _Started("") as (other, _):
        leaders: dict[int, Key] = {leader: ("replica", "r1")}
        assert (
            owner_of(leader, leaders) == owner_of(child, leaders) == ("replica", "r1")
        )
        assert owner_of(other, leaders) == OTHERS


def test_a_process_in_a_session_of_its_own_belongs_to_its_ancestor() -> None:
    with _Started("start_new_session=True, ") as (leader, child):
        assert owner_of(child, {leader: ("replica", "r1")}) == ("replica", "r1")
        assert owner_of(child, {}) == OTHERS


def test_a_process_that_is_not_to_be_seen_is_nobody_s() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert owner_of(ended.pid, {}) is None


def test_a_server_of_mps_is_nobody_s(tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    server.symlink_to(sys.executable)
    with subprocess.Popen(
        [str(server), "-c", "print(1, flush=True); input()"],
        stdin=-1,
        stdout=-1,
        # Else other tests would find it on their GPUs.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-of-nobody"},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert owner_of(process.pid, {}) is None
        process.communicate()


def test_memory_and_use_of_a_replica_are_those_of_all_its_processes() -> None:
    node = Node()
    with _Started("") as (leader, child), _Started("") as (stranger, _):
        node.driver.listed = (
            a_process(leader),
            a_process(child, 250.0),
            a_process(stranger, 900.0),
        )
        node.driver.used = (
            ProcessUse(pid=child, sm_percent=30.0),
            ProcessUse(pid=stranger, sm_percent=10.0),
        )
        node.read(a_view(pid=leader), power_w=60.0)
        found = node.read(a_view(pid=leader))
    assert (
        found["r1"].memory_used_mib,
        found["r1"].sm_percent,
        found["r1"].service,
    ) == (750.0, 30.0, "chat")
    assert (found["(others)"].memory_used_mib, found["(others)"].sm_percent) == (
        900.0,
        10.0,
    )
    # 60 W were the least that was seen: 40 % of 60 J idle and 30/40 of the other 40 J; the others have 10/40 of these.
    assert found["r1"].energy_j == 24.0 + 30.0
    assert found["(others)"].energy_j == 10.0
    assert found["(idle)"].energy_j == 36.0
    assert not found["r1"].is_estimated


def test_a_window_without_a_power_reading_is_not_taken_for_idle_power() -> None:
    node = Node()
    with _Started("") as (stranger, _):
        node.driver.listed = (a_process(stranger),)
        node.driver.used = (ProcessUse(pid=stranger, sm_percent=10.0),)
        for power_w in (None, 60.0, None, 100.0):
            found = node.read(power_w=power_w)
    assert found["(idle)"].energy_j == 60.0


def test_under_mps_the_share_of_time_that_a_server_tells_is_kept_between_its_counts() -> (
    None
):
    node = Node(is_limited=True)
    with _Started("") as (leader, _):
        node.driver.listed = (a_process(leader, is_mps=True),)
        view = a_view(pid=leader, sm_percent=40.0, sm_count=40)
        node.use.note_busy("r1", 10.0)
        assert node.read(view)["r1"].sm_percent is None
        node.clock.at_s = 5.0
        node.use.note_busy("r1", 12.5)  # 2.5 s of 5, on 40 of 100 SMs
        for _ in range(3):
            found = node.read(view)["r1"]
            assert (found.sm_percent, found.is_estimated) == (20.0, True)
        node.use.forget("r1")
        assert node.read(view)["r1"].sm_percent is None


def test_a_replica_and_its_successor_are_one_under_the_commanded_id() -> None:
    node = Node()
    with _Started("") as (one, _), _Started("") as (other, _):
        node.driver.listed = (a_process(one, 1200.0), a_process(other, 700.0))
        found = node.read(a_view("r1", pid=one), a_view("r1~8", pid=other))
    assert set(found) == {"r1", "(idle)"}
    assert (
        found["r1"].memory_used_mib == 1900.0
    )  # of the 2000 MiB that both together were granted
    # Nothing ran: all 100 J are idle's, of which 40 + 40 % are theirs.
    assert found["r1"].energy_j == 80.0


@dataclass(frozen=True, kw_only=True)
class ATask:
    name: str = "t1"
    gpu_index: int = 0
    sm_percent: float = 30.0
    memory_mib: float
    pid: int


def test_a_task_is_a_part_beside_the_replicas_also_while_it_is_swapped_out() -> None:
    node = Node()
    with _Started("") as (one, _), _Started("") as (other, child):
        node.driver.listed = (a_process(one), a_process(child, 200.0))
        node.driver.used = (ProcessUse(pid=child, sm_percent=80.0),)
        found = node.read(a_view(pid=one), tasks=[ATask(pid=other, memory_mib=300.0)])
        assert (
            found["t1"].kind,
            found["t1"].memory_used_mib,
            found["t1"].sm_percent,
        ) == ("task", 200.0, 80.0)
        for _ in range(2 * WINDOWS):
            swapped = node.read(
                a_view(pid=one), tasks=[ATask(pid=other, memory_mib=0.0)]
            )
        # It is still known as the node's, is granted nothing, and what it left there is no overuse.
        assert set(swapped) == {"r1", "t1", "(idle)"}
        assert (swapped["t1"].memory_used_mib, swapped["t1"].over) == (200.0, ())


def test_what_ran_in_a_window_before_does_not_count_again() -> None:
    node = Node()
    with _Started("") as (one, _), _Started("") as (other, _):
        node.driver.listed = (a_process(one), a_process(other))
        # The driver keeps what it saw: the first ran at 1 s, the second at 2 s.
        first = ProcessUse(pid=one, sm_percent=80.0, at_us=1_000_000)
        node.driver.used = (first,)
        views = a_view("r1", pid=one), a_view("r2", pid=other)
        found = node.read(*views)
        assert (found["r1"].sm_percent, found["r2"].sm_percent) == (80.0, 0.0)
        node.driver.used = (
            first,
            ProcessUse(pid=other, sm_percent=30.0, at_us=2_000_000),
        )
        found = node.read(*views)
        assert (found["r1"].sm_percent, found["r2"].sm_percent) == (0.0, 30.0)
        found = node.read(*views)
        assert (found["r1"].sm_percent, found["r2"].sm_percent) == (0.0, 0.0)


def test_of_a_gpu_that_does_not_answer_or_lists_nobody_nothing_is_told() -> None:
    node = Node()
    assert node.read(healthy=False) == {}
    node.driver.is_blind = True
    assert node.read() == {}
