"""Tasks on simulated GPUs: how far they come, what they cost, and what they and the replicas do to each other."""

import contextlib
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.clock import ManualClock
from agents.base.device import (
    SWAP_MIB_PER_S,
    DeviceError,
    DeviceReadings,
    GpuLost,
    LaunchFailed,
    OutOfRange,
    UnknownPart,
)
from agents.base.protocol import NodeCommand, TaskCommand, TaskReading
from agents.sim.device import SimulatedDevice
from agents.sim.spec import Fault
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_replica,
    a_task,
    commands_with_tasks,
    on_gpu,
    run,
)
from tests.agents.sim.test_cluster import is_balanced, reconcile, settle
from tests.agents.sim.worlds import PlainWorld, a_cluster, a_node
from tests.examples import examples

# The plain world: 50 W idle, 100 W more for what works; 10 ms a batch or iteration, 10 ms more per neighbour.


def a_device(
    task: TaskCommand | None = None,
    *,
    launch_s: float = 5.0,
    faults: tuple[Fault, ...] = (),
    rate_rps: float = 10.0,
    deviation: float = 0.0,
) -> tuple[SimulatedDevice, ManualClock]:
    """A device whose GPU 0 begins to start the task at second 0."""
    world = PlainWorld(deviation=deviation)
    cluster, clock = a_cluster(
        a_node(gpus=2, launch_s=launch_s),
        faults=faults,
        rates_rps={"chat": rate_rps},
        world=world,
    )
    device = SimulatedDevice(cluster, "n1")
    run(device.start_task(0, task or a_task(iterations=10**6)))
    return device, clock


def read_after(
    device: SimulatedDevice, clock: ManualClock, seconds: float
) -> DeviceReadings:
    clock.advance(seconds)
    return run(device.read())


def only(readings: DeviceReadings) -> TaskReading:
    (task,) = readings.tasks
    return task


def state_of(device: SimulatedDevice) -> str:
    (task,) = run(device.state()).gpus[0].tasks
    return task.state


def test_a_task_runs_after_the_launch_and_iterates_as_fast_as_the_world_says() -> None:
    device, clock = a_device(a_task(iterations=10**6, done=100.0), launch_s=5.0)
    launching = only(read_after(device, clock, 4.9))
    assert launching.state == "starting"
    assert launching.done_iterations == 100.0
    assert launching.iteration_ms == 0.0
    running = only(read_after(device, clock, 5.1))
    assert running.state == "running"
    assert running.done_iterations == pytest.approx(
        600.0
    )  # 100 before, and 5 s of 10 ms each
    assert running.iteration_ms == pytest.approx(10.0)


def test_a_gpu_gets_faster_at_the_very_moment_at_which_a_task_ends() -> None:
    task = a_task(iterations=150)
    device, clock = a_device(task, launch_s=0.0)
    run(device.start_task(0, a_task("t2", iterations=10**6)))
    # 20 ms each while both run: t1 ends after 3 s, t2 has done 150 then and 700 more in 7 s of 10 ms.
    first, second = read_after(device, clock, 10.0).tasks
    assert first.state == "finished"
    assert first.done_iterations == 150.0
    assert first.iteration_ms == pytest.approx(20.0)
    assert second.done_iterations == pytest.approx(850.0)
    again = read_after(device, clock, 10.0).tasks[0]
    assert (again.done_iterations, again.iteration_ms) == (150.0, 0.0)


def test_a_finished_task_holds_nothing() -> None:
    device, clock = a_device(a_task(iterations=100), launch_s=0.0)
    gpu, _ = read_after(device, clock, 10.0).gpus
    assert gpu.energy_j == pytest.approx(10 * 50 + 1 * 100)
    assert gpu.memory_used_mib == 0.0
    # What was done before the start may be all.
    device, clock = a_device(a_task(iterations=100, done=100.5), launch_s=1.0)
    assert only(read_after(device, clock, 2.0)).done_iterations == 100.0
    assert state_of(device) == "finished"


def test_a_swapped_task_goes_on_where_it_was() -> None:
    task = a_task(memory_mib=SWAP_MIB_PER_S / 4, iterations=10**6)  # moved in 250 ms
    device, clock = a_device(task, launch_s=0.0)
    run(device.swap_in("t1"))
    assert state_of(device) == "running"
    clock.advance(2.0)
    run(device.swap_out("t1"))
    moving = read_after(device, clock, 0.24)
    assert only(moving).state == "swapping"
    assert moving.gpus[0].memory_used_mib == task.memory_mib
    # A swap that is under way is not begun again.
    run(device.swap_out("t1"))
    run(device.swap_in("t1"))
    away = read_after(device, clock, 5.0)
    assert only(away).state == "swapped"
    assert only(away).done_iterations == pytest.approx(200.0)
    assert away.gpus[0].memory_used_mib == 0.0
    assert away.gpus[0].energy_j == pytest.approx(5.0 * 50)
    run(device.swap_in("t1"))
    back = read_after(device, clock, 1.25)
    assert only(back).state == "running"
    assert only(back).done_iterations == pytest.approx(300.0)


def test_whoever_waits_for_a_swapped_task_is_told_when_it_has_left() -> None:
    cluster, clock = a_cluster(a_node(launch_s=0.0))
    device = SimulatedDevice(cluster, "n1")
    run(device.start_task(0, a_task(memory_mib=SWAP_MIB_PER_S / 4)))
    assert cluster.next_launches_s() == {}
    run(device.swap_out("t1"))
    assert cluster.next_launches_s() == {"n1": pytest.approx(clock.now_s() + 0.25)}


def test_a_lost_gpu_fails_its_tasks_but_not_what_has_finished() -> None:
    fault = Fault(kind="gpu_lost", node="n1", gpu_index=0, start_s=4.0, end_s=6.0)
    device, clock = a_device(
        a_task("done", iterations=100), launch_s=0.0, faults=(fault,)
    )
    run(device.start_task(0, a_task("t2", iterations=10**6)))
    run(device.start_task(1, a_task("t3", iterations=10**6)))
    done, lost, other = read_after(device, clock, 5.0).tasks
    assert (done.state, lost.state, other.state) == ("finished", "failed", "running")
    # Both run for 2 s of 20 ms, then t2 alone for 2 s of 10 ms.
    assert lost.done_iterations == pytest.approx(300.0)
    with pytest.raises(GpuLost):
        run(device.start_task(0, a_task("t4")))
    run(device.stop_task("t2"))
    clock.advance(2.0)
    run(device.start_task(0, a_task("t2", done=250.0, iterations=10**6)))
    assert read_after(device, clock, 1.0).tasks[1].done_iterations == pytest.approx(
        350.0
    )


def test_what_no_device_takes_of_tasks_is_refused_in_words() -> None:
    device, clock = a_device(a_task(memory_mib=3000.0), launch_s=0.0)
    with pytest.raises(LaunchFailed, match="task t2 needs 2000 MiB, GPU 0 has 1000"):
        run(device.start_task(0, a_task("t2", memory_mib=2000.0)))
    with pytest.raises(LaunchFailed, match="replica r1 needs 2000 MiB, GPU 0 has 1000"):
        run(device.start_replica(0, a_replica("r1", memory_mib=2000.0)))
    with pytest.raises(LaunchFailed, match="task t1 runs already"):
        run(device.start_task(1, a_task()))
    with pytest.raises(OutOfRange, match="1 to 8, not 9"):
        run(device.start_task(0, a_task("t2", batch=9)))
    with pytest.raises(LaunchFailed, match="no network unknown"):
        run(device.start_task(0, a_task("t2", network="unknown")))
    with pytest.raises(UnknownPart, match="no task t9"):
        run(device.stop_task("t9"))
    run(device.swap_out("t1"))
    clock.advance(1.0)
    run(device.start_task(0, a_task("t2", memory_mib=2000.0)))
    with pytest.raises(LaunchFailed, match="task t1 needs 3000 MiB, GPU 0 has 2000"):
        run(device.swap_in("t1"))


@settings(max_examples=examples(40))
@given(looks=st.lists(st.floats(0.01, 12.0), max_size=12))
def test_looking_more_often_changes_no_task(looks: list[float]) -> None:
    def finished(steps: list[float]) -> tuple[float, ...]:
        device, clock = a_device(
            a_task("t1", iterations=2500), launch_s=1.3, deviation=0.3
        )
        run(device.start_task(0, a_task("t2", iterations=10**6)))
        for step in steps:
            clock.advance(step)
            run(device.read())
        clock.advance(1000.0 + 150.0 - clock.now_s())
        return tuple(task.done_iterations for task in run(device.read()).tasks)

    assert finished(looks) == finished([])


@settings(max_examples=examples(40))
@given(
    first=commands_with_tasks(1),
    second=commands_with_tasks(2),
    pause_s=st.floats(0.0, 12.0),
    lost_s=st.floats(1.0, 20.0),
)
def test_any_two_commands_with_tasks_and_a_lost_gpu_end_as_wanted(
    first: NodeCommand, second: NodeCommand, pause_s: float, lost_s: float
) -> None:
    fault = Fault(
        kind="gpu_lost", node="n1", gpu_index=1, start_s=lost_s, end_s=lost_s + 10.0
    )
    cluster, clock = a_cluster(
        a_node(gpus=2), rates_rps={"a": 300.0, "b": 40.0}, faults=(fault,)
    )
    device = SimulatedDevice(cluster, "n1")
    for command, looks in ((first, 2), (second, 30)):
        for _ in range(looks):
            with contextlib.suppress(
                DeviceError
            ):  # the GPU may be lost between looking and acting
                run(reconcile(device, command))
            clock.advance(pause_s / 2 if command is first else 1.0)
            assert is_balanced(cluster)
    settle(device, second, clock)


def test_a_shadow_switch_borrows_a_tasks_memory_and_loses_no_request() -> None:
    cluster, clock = a_cluster(a_node(launch_s=5.0), rates_rps={"chat": 10.0})
    plane, device = PaperControlPlane(clock), SimulatedDevice(cluster, "n1")
    agent = an_agent(device, plane, clock)
    task = a_task(memory_mib=1500.0, iterations=10**6)

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1.0)
            run(agent.step())

    def want(replica_id: str, generation: int) -> None:
        replica = a_replica(replica_id, batch=8, memory_mib=2000.0)
        plane.command = on_gpu(
            replica, tasks=(task,), cap_w=1000.0, generation=generation
        )

    want("old", 1)
    pass_time(20)
    before, (total,) = plane.received[-1].tasks[0], cluster.totals()
    want("new", 2)
    pass_time(20)
    seen = [
        observation.tasks[0] for observation in plane.received[20:] if observation.tasks
    ]
    assert [state for state, _ in groupby(each.state for each in seen)] == [
        "running",
        "swapped",
        "swapping",
        "running",
    ]
    assert seen[-1].done_iterations > before.done_iterations
    (after,) = cluster.totals()
    assert after.rejected == total.rejected
    assert plane.received[-1].acks[-1].status == "applied"
