"""Tasks on a fake device: they pass time, take memory, and change their states as `agents.base.device` says."""

import msgspec
import pytest

from agents.base.clock import ManualClock
from agents.base.device import (
    SWAP_MIB_PER_S,
    GpuState,
    LaunchFailed,
    RunningTask,
    UnknownPart,
)
from agents.base.protocol import TaskCommand, TaskReading
from agents.daemon.build import make_device
from agents.fake.device import FakeDevice
from agents.main import make_parser
from tests.agents.factories import GPU_TYPE, a_replica, a_task, run

MEMORY_MIB = 4000.0
SWAP_S = 1000.0 / SWAP_MIB_PER_S


def a_device(clock: ManualClock) -> FakeDevice:
    """Two GPUs on which an iteration takes 0.1 s at 1500 MHz, or unlocked, and 0.2 s at 750 MHz; 2 s to start."""

    def iteration_s(task: TaskCommand, gpu: GpuState) -> float:
        if task.network == "unknown":
            raise LaunchFailed("unknown was not measured")
        return 0.1 * 1500.0 / (gpu.clock_mhz or 1500.0)

    gpus = tuple(
        GpuState(index=index, gpu_type=GPU_TYPE, memory_mib=MEMORY_MIB)
        for index in (0, 1)
    )
    return FakeDevice(
        gpus,
        execution_s=lambda *_: 0.001,
        iteration_s=iteration_s,
        clock=clock,
        launch_s=2.0,
    )


def the_task(device: FakeDevice, gpu: int = 0) -> RunningTask:
    (found,) = run(device.state()).gpus[gpu].tasks
    return found


def the_reading(device: FakeDevice) -> TaskReading:
    (found,) = run(device.read()).tasks
    return found


def test_a_task_starts_runs_and_finishes() -> None:
    clock = ManualClock()
    device = a_device(clock)
    run(device.start_task(1, a_task(iterations=100, done=40.0)))
    assert the_task(device, 1).state == "starting"
    clock.advance(3.0)
    seen = the_reading(device)
    # Ready after 2 s, it ran for one: 10 iterations of 100 ms.
    assert (seen.state, seen.gpu_index, seen.done_iterations) == (
        "running",
        1,
        pytest.approx(50.0),
    )
    assert seen.iteration_ms == pytest.approx(100.0)
    clock.advance(100.0)
    seen = the_reading(device)
    assert (seen.state, seen.done_iterations, seen.iteration_ms) == (
        "finished",
        100.0,
        pytest.approx(100.0),
    )
    assert not the_task(device, 1).holds_memory
    run(device.stop_task("t1"))
    assert run(device.state()).gpus[1].tasks == ()


def test_a_swapped_task_stands_still_without_memory_and_goes_on_where_it_was() -> None:
    clock = ManualClock()
    device = a_device(clock)
    run(device.start_task(0, a_task(memory_mib=1000.0)))
    clock.advance(3.0)
    run(device.swap_out("t1"))
    assert (the_task(device).state, the_task(device).holds_memory) == ("swapping", True)
    clock.advance(SWAP_S)
    assert (the_task(device).state, the_task(device).holds_memory) == ("swapped", False)
    clock.advance(50.0)
    assert the_reading(device).done_iterations == pytest.approx(10.0)
    run(device.swap_in("t1"))
    clock.advance(SWAP_S + 1.0)
    seen = the_reading(device)
    assert (seen.state, seen.done_iterations) == ("running", pytest.approx(20.0))


def test_memory_is_shared_with_replicas_and_never_given_twice() -> None:
    clock = ManualClock()
    device = a_device(clock)
    run(device.start_task(0, a_task(memory_mib=3000.0)))
    with pytest.raises(LaunchFailed, match="r1 needs 2000 MiB, GPU 0 has 1000"):
        run(device.start_replica(0, a_replica(memory_mib=2000.0)))
    with pytest.raises(LaunchFailed, match="t2 needs 1500 MiB, GPU 0 has 1000"):
        run(device.start_task(0, a_task("t2", memory_mib=1500.0)))
    assert run(device.read()).gpus[0].memory_used_mib == 3000.0
    clock.advance(2.0)
    run(device.swap_out("t1"))
    clock.advance(1.0)
    run(device.state())
    run(device.start_task(0, a_task("t2", memory_mib=1500.0)))
    with pytest.raises(LaunchFailed, match="t1 needs 3000 MiB, GPU 0 has 2500"):
        run(device.swap_in("t1"))


def test_what_cannot_be_is_refused() -> None:
    device = a_device(ManualClock())
    with pytest.raises(LaunchFailed, match="unknown was not measured"):
        run(device.start_task(0, a_task(network="unknown")))
    run(device.start_task(0, a_task()))
    with pytest.raises(LaunchFailed, match="t1 is there already"):
        run(device.start_task(1, a_task()))
    for act in (device.stop_task, device.swap_out, device.swap_in):
        with pytest.raises(UnknownPart, match="no task t9"):
            run(act("t9"))
    with pytest.raises(UnknownPart, match="no GPU 5"):
        run(device.start_task(5, a_task("t2")))
    assert [each.name for each in run(device.state()).gpus[0].tasks] == ["t1"]


def test_the_agent_s_fake_knows_how_long_training_takes() -> None:
    clock = ManualClock()
    arguments = [
        "--url",
        "http://localhost",
        "--device",
        "fake",
        "--gpu-type",
        GPU_TYPE,
        "--launch-s",
        "0.001",
    ]
    device = make_device(make_parser().parse_args(arguments), clock)
    training = msgspec.structs.replace(
        a_task(network="resnet18-training", batch=64, sm_percent=100.0), kind="training"
    )
    run(device.start_task(0, training))
    clock.advance(10.0)
    (whole,) = run(device.read()).tasks
    run(device.stop_task("t1"))
    run(device.start_task(0, msgspec.structs.replace(training, sm_percent=20.0)))
    clock.advance(10.0)
    (fifth,) = run(device.read()).tasks
    assert 0.0 < fifth.done_iterations < whole.done_iterations
    with pytest.raises(LaunchFailed, match="batches 1 to"):
        run(
            device.start_task(
                0, a_task("t2", network="resnet18-training", batch=60_000)
            )
        )
