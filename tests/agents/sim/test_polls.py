"""PollWindows at simulated GPUs: what was measured since the last one, whatever readings lie between."""

import pytest

from agents.base.clock import ManualClock
from agents.base.device import GpuLost, GpuPoll, ReplicaPoll
from agents.base.latency_buckets import bucket_of
from agents.sim.device import SimulatedDevice
from agents.sim.spec import Fault
from tests.agents.factories import a_command, a_gpu, a_replica, run
from tests.agents.sim.test_cluster import settle
from tests.agents.sim.worlds import a_cluster, a_node

# The plain world: 50 W idle, 100 W more while a replica works; 10 ms a batch, 20 ms with a neighbour. A request comes
# every 10 ms, so that a lone replica is always busy with batches of one.


def a_device(
    *, faults: tuple[Fault, ...] = (), replicas: int = 1
) -> tuple[SimulatedDevice, ManualClock]:
    cluster, clock = a_cluster(a_node(gpus=2), faults=faults)
    device = SimulatedDevice(cluster, "n1")
    gpu = a_gpu(
        *(
            a_replica(f"r{number}", sm_percent=50.0)
            for number in range(1, replicas + 1)
        ),
        cap_w=1000.0,
    )
    settle(device, a_command(gpu), clock)
    clock.advance(10.0)  # what waited for the launch has been served
    return device, clock


def poll_after(device: SimulatedDevice, clock: ManualClock, seconds: float) -> GpuPoll:
    clock.advance(seconds)
    return run(device.poll(0))


def only(poll: GpuPoll) -> ReplicaPoll:
    (replica,) = poll.replicas
    return replica


def test_a_poll_says_what_happened_since_the_one_before() -> None:
    device, clock = a_device()
    run(device.poll(0))
    seen = poll_after(device, clock, 2.0)
    assert seen.peak_power_w == pytest.approx(150.0)
    assert only(seen).execution_ms == pytest.approx(10.0)
    assert (
        only(seen).batches
        == only(seen).requests
        == sum(count for _, count in only(seen).latency_buckets)
    )
    assert only(seen).requests == pytest.approx(200, abs=1)
    # A request waits for the batch that runs, which ends when the next request comes.
    assert {bucket for bucket, _ in only(seen).latency_buckets} <= {
        bucket_of(10.0),
        bucket_of(20.0),
    }


def test_readings_and_polls_take_nothing_from_each_other() -> None:
    device, clock = a_device()
    twin, twin_clock = a_device()
    for each in (device, twin):
        run(each.read())
        run(each.poll(0))
    clock.advance(0.7)
    twin_clock.advance(0.7)
    run(device.read())
    assert poll_after(device, clock, 1.3) == poll_after(twin, twin_clock, 1.3)
    clock.advance(1.0)
    twin_clock.advance(1.0)
    run(device.poll(0))
    run(twin.read())
    run(device.read())
    clock.advance(1.0)
    twin_clock.advance(1.0)
    run(device.poll(0))
    assert run(device.read()) == run(twin.read())


def test_peak_power_counts_every_replica_that_worked_however_shortly() -> None:
    device, clock = a_device(replicas=2)
    run(device.poll(0))
    assert poll_after(device, clock, 1.0).peak_power_w == pytest.approx(250.0)
    assert poll_after(device, clock, 0.0).peak_power_w == 50.0
    assert run(device.poll(1)) == GpuPoll(peak_power_w=50.0)


def test_a_lost_gpu_cannot_be_polled() -> None:
    device, clock = a_device(
        faults=(Fault(kind="gpu_lost", node="n1", gpu_index=0, start_s=30.0),)
    )
    clock.advance(30.0)
    with pytest.raises(GpuLost):
        run(device.poll(0))
