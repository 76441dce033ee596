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
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.spec import Fault, make_node
from agents.sim.truth.truth import load_truth
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

# The plain world: 50 W idle, 100 W more for whoever works; 10 ms a batch or iteration, 10 ms more per neighbour.


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


def test_energy_and_busy_time_of_a_gpu_include_its_tasks() -> None:
    device, clock = a_device()
    busy, idle = read_after(device, clock, 20.0).gpus
    # 20 s of 50 W and, after the launch, 15 s of 100 W.
    assert busy.energy_j == pytest.approx(20 * 50 + 15 * 100)
    assert busy.busy_percent == pytest.approx(75.0)
    assert busy.memory_used_mib == 1000.0
    assert (idle.energy_j, idle.busy_percent) == (pytest.approx(1000.0), 0.0)


def test_energy_of_a_stopped_task_is_not_lost() -> None:
    device, clock = a_device(launch_s=0.0)
    clock.advance(3.0)
    run(device.stop_task("t1"))
    readings = read_after(device, clock, 7.0)
    assert readings.gpus[0].energy_j == pytest.approx(10 * 50 + 3 * 100)
    assert readings.tasks == ()


def test_a_task_and_a_replica_slow_each_other_while_both_run() -> None:
    device, clock = a_device(launch_s=0.0)
    command = on_gpu(
        a_replica("r1", batch=8), tasks=(a_task(iterations=10**6),), cap_w=1000.0
    )
    settle(device, command, clock)
    run(device.read())
    beside = read_after(device, clock, 10.0)
    assert beside.replicas[0].execution_ms == pytest.approx(20.0)
    assert only(beside).iteration_ms == pytest.approx(20.0)
    run(device.stop_task("t1"))
    run(device.read())
    assert read_after(device, clock, 10.0).replicas[0].execution_ms == pytest.approx(
        10.0
    )


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


def test_a_start_after_all_was_done_does_not_turn_the_time_back() -> None:
    cluster, clock = a_cluster(a_node(launch_s=0.0), rates_rps={"chat": 1000.0})
    device = SimulatedDevice(cluster, "n1")
    clock.advance(5.0)
    run(device.start_task(0, a_task(iterations=100, done=200.0)))
    clock.advance(5.0)
    (chat,) = cluster.totals()
    assert chat.arrivals == 10_000


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


def test_a_failing_launch_ends_in_a_failed_task() -> None:
    device, clock = a_device(
        faults=(Fault(kind="launch_failure", node="n1", start_s=0.0),)
    )
    assert only(read_after(device, clock, 6.0)).state == "failed"


def test_a_straggler_and_a_lower_clock_slow_a_task() -> None:
    fault = Fault(kind="straggler", node="n1", start_s=10.0, factor=3.0)
    device, clock = a_device(launch_s=0.0, faults=(fault,))
    assert only(read_after(device, clock, 20.0)).done_iterations == pytest.approx(
        1000 + 1000 / 3
    )
    run(device.lock_clock_mhz(0, 750.0))
    assert only(read_after(device, clock, 6.0)).iteration_ms == pytest.approx(60.0)


def test_a_power_limit_throttles_for_tasks_too() -> None:
    device, clock = a_device(launch_s=0.0)
    run(device.limit_power_w(0, 130.0))
    readings = read_after(device, clock, 1.0)
    assert readings.gpus[0].clock_mhz == 1200.0  # 50 W + 100 W * 1200 / 1500 = 130 W
    assert only(readings).iteration_ms == pytest.approx(12.5)


def test_peak_power_of_a_poll_includes_tasks() -> None:
    device, clock = a_device(launch_s=0.0)
    run(device.poll(0))
    clock.advance(1.0)
    run(device.read())
    clock.advance(1.0)
    seen = run(device.poll(0))
    assert (seen.peak_power_w, seen.replicas) == (pytest.approx(150.0), ())


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


def test_a_task_and_a_replica_of_one_name_run_side_by_side() -> None:
    device, clock = a_device(a_task("x", iterations=10**6), launch_s=0.0, rate_rps=0.0)
    run(device.start_replica(0, a_replica("x")))
    done = only(read_after(device, clock, 1.0)).done_iterations
    assert done == pytest.approx(50.0)  # 20 ms each, with a neighbour of their own name
    run(device.stop_replica("x"))
    assert only(read_after(device, clock, 1.0)).done_iterations - done == pytest.approx(
        100.0
    )


def test_closing_a_device_ends_its_tasks() -> None:
    device, _ = a_device()
    run(device.close())
    assert all(gpu.tasks == () for gpu in run(device.state()).gpus)


def test_replicas_draw_the_same_noise_with_a_task_elsewhere_as_without() -> None:
    def totals(*, with_task: bool) -> object:
        cluster, clock = a_cluster(
            a_node(gpus=2), rates_rps={"chat": 700.0}, world=PlainWorld(deviation=0.2)
        )
        device = SimulatedDevice(cluster, "n1")
        if with_task:
            run(device.start_task(1, a_task()))
        run(device.start_replica(0, a_replica("r1", batch=8)))
        clock.advance(5.0)
        run(reconcile(device, on_gpu(a_replica("r1", batch=8))))
        clock.advance(60.0)
        return cluster.totals()

    assert totals(with_task=True) == totals(with_task=False)


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
@given(looks=st.lists(st.floats(0.01, 12.0), max_size=12))
def test_energy_and_progress_of_windows_add_up(looks: list[float]) -> None:
    device, clock = a_device(a_task(iterations=2500), launch_s=1.3, deviation=0.3)
    readings = [read_after(device, clock, step) for step in looks]
    readings.append(read_after(device, clock, 1150.0 - clock.now_s()))
    iterations = [0.0, *(only(each).done_iterations for each in readings)]
    windows = zip(
        iterations,
        iterations[1:],
        (only(each).iteration_ms for each in readings),
        strict=False,
    )
    ran_s = sum(
        (end - begin) * iteration_ms / 1000.0 for begin, end, iteration_ms in windows
    )
    assert iterations[-1] == 2500.0
    assert sum(each.gpus[0].energy_j for each in readings) == pytest.approx(
        150 * 50 + ran_s * 100
    )


def test_noise_stays_within_a_stretch_from_the_first_second_on() -> None:
    device, clock = a_device(launch_s=15.0, deviation=0.3)
    run(device.read())
    clock.advance(15.0)
    times_ms = [only(read_after(device, clock, 2.0)).iteration_ms for _ in range(2)]
    assert times_ms[0] == pytest.approx(times_ms[1])
    assert times_ms[0] != pytest.approx(10.0, rel=1e-3)


def test_noise_changes_from_stretch_to_stretch_and_keeps_the_mean() -> None:
    device, clock = a_device(launch_s=0.0, deviation=0.2)
    times_ms = [only(read_after(device, clock, 10.0)).iteration_ms for _ in range(400)]
    assert len(set(times_ms)) == 400
    # Log-normal factors of mean 1 and deviation 0.2: their mean over 400 stretches deviates by 0.01.
    assert sum(times_ms) / 400 == pytest.approx(10.0, abs=0.4)


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


def test_the_measured_world_runs_a_job_beside_a_service() -> None:
    clock, world = ManualClock(), load_truth()
    node = make_node("n1", "V100-32GB", gpus=1, memory_mib=32768.0)
    cluster = SimulatedCluster(
        (node,), ClusterScript(loads={}, seed=7), world=world, clock=clock
    )
    device = SimulatedDevice(cluster, "n1")
    task = a_task(batch=8, sm_percent=40.0, memory_mib=3000.0, iterations=10**6)
    command = on_gpu(a_replica("r1", batch=8), tasks=(task,), clock_mhz=1380.0)
    settle(device, command, clock)
    run(device.read())
    beside = only(read_after(device, clock, 60.0)).iteration_ms
    run(device.stop_replica("r1"))
    run(device.read())
    alone = only(read_after(device, clock, 60.0)).iteration_ms
    assert 1.0 < alone < beside < 3.0 * alone
