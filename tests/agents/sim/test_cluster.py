"""The simulated cluster: its devices, its load balancer, its faults, and that nothing is ever lost from the books."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.clock import ManualClock
from agents.base.device import (
    DeviceReadings,
    GpuLost,
    LaunchFailed,
    OutOfRange,
    UnknownPart,
)
from agents.base.protocol import NodeCommand
from agents.enforce.actions import perform
from agents.enforce.diff import actions, is_settled
from agents.sim.cluster import SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.load.clients import ClientLoad
from agents.sim.load.load_balancer import HOLD_CAPACITY
from agents.sim.spec import Fault, FaultKind
from tests.agents.factories import a_command, a_gpu, a_replica, on_gpu, run
from tests.agents.sim.worlds import PlainWorld, a_cluster, a_node
from tests.examples import examples


async def reconcile(device: SimulatedDevice, wanted: NodeCommand) -> None:
    for action in actions(wanted, await device.state()):
        await perform(device, action)


def settle(device: SimulatedDevice, wanted: NodeCommand, clock: ManualClock) -> None:
    for _ in range(60):
        run(reconcile(device, wanted))
        if is_settled(wanted, run(device.state())):
            return
        clock.advance(1.0)
    raise AssertionError("the node never settles")


def is_balanced(cluster: SimulatedCluster) -> bool:
    """Whether every request is somewhere, and Little's law holds."""
    return all(
        each.arrivals == each.served + each.rejected + each.queued
        and each.present_s == pytest.approx(each.sojourn_s, rel=1e-9, abs=1e-6)
        for each in cluster.totals()
    )


def wanted(
    replica_id: str = "r1",
    *,
    clock_mhz: float = 1500.0,
    generation: int = 1,
    batch: int = 8,
    sm_percent: float = 50.0,
) -> NodeCommand:
    replica = a_replica(replica_id, batch=batch, sm_percent=sm_percent)
    return on_gpu(replica, clock_mhz=clock_mhz, generation=generation)


def serving(
    rate_rps: float, *faults: Fault, gpus: int = 1, clock_mhz: float = 1500.0
) -> tuple[SimulatedCluster, SimulatedDevice, ManualClock]:
    """Node n1, whose replica of chat is ready and gets a number of requests."""
    cluster, clock = a_cluster(
        a_node(gpus=gpus), rates_rps={"chat": rate_rps}, faults=faults
    )
    device = SimulatedDevice(cluster, "n1")
    settle(device, wanted(clock_mhz=clock_mhz), clock)
    return cluster, device, clock


def read_after(
    device: SimulatedDevice, clock: ManualClock, seconds: float
) -> DeviceReadings:
    """What the device did in that number of seconds."""
    run(device.read())
    clock.advance(seconds)
    return run(device.read())


def test_a_replica_serves_what_waited_for_its_launch() -> None:
    cluster, clock = a_cluster(a_node(launch_s=5.0), rates_rps={"chat": 10.0})
    device = SimulatedDevice(cluster, "n1")
    run(reconcile(device, wanted()))
    clock.advance(4.9)
    assert run(device.state()).gpus[0].replicas[0].state == "starting"
    clock.advance(0.1)
    run(reconcile(device, wanted()))
    clock.advance(5.0)
    (chat,) = run(device.read()).services
    # 100 requests in 10 s with an SLO of 100 ms; the 50 of the first 5 s are too late when the replica becomes ready.
    assert chat.arrivals == 100
    assert chat.rejected == 50
    assert chat.served == 50
    assert chat.in_slo == 50
    assert chat.queued == 0


def test_power_follows_the_load() -> None:
    _, device, clock = serving(50.0)
    (gpu,) = read_after(device, clock, 10.0).gpus
    # 50 batches of 10 ms a second: half busy, 50 W idle and half of 100 W.
    assert gpu.power_w == pytest.approx(100.0, rel=0.01)
    assert gpu.energy_j == pytest.approx(1000.0, rel=0.01)
    assert gpu.busy_percent == pytest.approx(50.0, rel=0.02)
    assert gpu.memory_used_mib == 1000.0


def test_a_lower_clock_and_a_straggler_make_every_batch_longer() -> None:
    fault = Fault(kind="straggler", node="n1", start_s=100.0, factor=3.0)
    _, device, clock = serving(10.0, fault, clock_mhz=750.0)
    (slow,) = read_after(device, clock, 10.0).replicas
    assert slow.execution_ms == pytest.approx(20.0)
    clock.advance(200.0)
    (slower,) = read_after(device, clock, 10.0).replicas
    assert slower.execution_ms == pytest.approx(60.0)


def test_a_power_limit_throttles_the_clock_until_full_load_fits() -> None:
    _, device, clock = serving(100.0)
    settle(device, on_gpu(a_replica("r1", batch=8), cap_w=130.0, generation=2), clock)
    (gpu,) = run(device.read()).gpus
    assert gpu.clock_mhz == 1200.0  # 50 W + 100 W · 1200 / 1500 = 130 W


def test_requests_without_a_replica_wait_bounded_at_the_first_node() -> None:
    cluster, clock = a_cluster(a_node("n2"), a_node("n1"), rates_rps={"chat": 100.0})
    first, second = SimulatedDevice(cluster, "n1"), SimulatedDevice(cluster, "n2")
    clock.advance(8.0)
    (chat,) = run(first.read()).services
    assert chat.arrivals == 800
    assert chat.queued == HOLD_CAPACITY
    assert chat.rejected == 800 - HOLD_CAPACITY
    assert run(second.read()).services == ()
    assert is_balanced(cluster)


def test_requests_are_shared_by_weight_over_nodes() -> None:
    cluster, clock = a_cluster(a_node("n1"), a_node("n2"), rates_rps={"chat": 400.0})
    one, two = SimulatedDevice(cluster, "n1"), SimulatedDevice(cluster, "n2")
    settle(one, on_gpu(a_replica("a", batch=8, rate_rps=300.0)), clock)
    settle(
        two, a_command(a_gpu(a_replica("b", batch=8, rate_rps=100.0)), node="n2"), clock
    )
    run(one.read()), run(two.read())
    clock.advance(25.0)
    mine, yours = run(one.read()).services[0], run(two.read()).services[0]
    assert mine.arrivals + yours.arrivals == 10_000
    assert mine.arrivals == pytest.approx(
        7500, abs=200
    )  # 4.6 standard deviations of a binomial


def test_a_lost_gpu_fails_its_replicas_and_takes_no_new_ones() -> None:
    lost = Fault(kind="gpu_lost", node="n1", start_s=30.0)
    cluster, device, clock = serving(1000.0, lost)
    clock.advance(40.0)
    (gpu,) = run(device.state()).gpus
    assert (gpu.healthy, [each.state for each in gpu.replicas]) == (False, ["failed"])
    run(reconcile(device, wanted()))
    assert run(device.state()).gpus[0].replicas == ()
    with pytest.raises(GpuLost, match="GPU 0"):
        run(device.start_replica(0, a_replica("r2")))
    assert run(device.read()).services[0].rejected > 0
    assert is_balanced(cluster)


@pytest.mark.parametrize("kind", ["silent", "node_lost"])
def test_a_silent_node_is_silent_only_while_the_fault_lasts(kind: FaultKind) -> None:
    cluster, clock = a_cluster(
        faults=(Fault(kind=kind, node="n1", start_s=10.0, end_s=20.0),)
    )
    seen = []
    for _ in range(3):
        clock.advance(9.0)
        cluster.advance()
        seen.append(cluster.is_lost("n1", clock.now_s()))
    assert seen == [False, True, False]


def test_stale_telemetry_arrives_late_and_only_that_of_the_node() -> None:
    fault = Fault(kind="stale", node="n1", start_s=0.0, end_s=50.0, delay_s=20.0)
    cluster, clock = a_cluster(a_node("n1"), a_node("n2"), faults=(fault,))
    reported_at_s = clock.now_s()
    lost = []
    for _ in range(4):
        lost += [cluster.is_lost(name, reported_at_s) for name in ("n1", "n2")]
        clock.advance(10.0)
        cluster.advance()
    assert lost == [True, False, True, False, False, False, False, False]
    clock.advance(20.0)
    cluster.advance()
    assert not cluster.is_lost("n1", clock.now_s())


def test_a_lost_node_loses_all_its_gpus_and_comes_back_empty() -> None:
    fault = Fault(kind="node_lost", node="n1", start_s=30.0, end_s=60.0)
    cluster, device, clock = serving(100.0, fault, gpus=2)
    for passed_s, is_healthy in ((35.0, False), (30.0, True)):
        clock.advance(passed_s)
        gpus = run(device.state()).gpus
        assert [gpu.healthy for gpu in gpus] == [is_healthy, is_healthy]
    assert [each.state for each in gpus[0].replicas] == ["failed"]
    settle(device, wanted(), clock)
    assert is_balanced(cluster)


def test_clients_who_wait_for_answers_are_served_by_the_replicas_of_all_nodes() -> None:
    cluster, clock = a_cluster(
        a_node("n1"),
        a_node("n2"),
        clients={"chat": ClientLoad(clients=np.full(200, 4.0))},
    )
    devices = [SimulatedDevice(cluster, name) for name in ("n1", "n2")]
    for device, replica_id in zip(devices, ("r1", "r2"), strict=True):
        settle(device, wanted(replica_id), clock)
    clock.advance(100.0)
    assert is_balanced(cluster)
    (chat,) = cluster.totals()
    readings = [run(device.read()).services[0] for device in devices]
    assert sum(each.served for each in readings) == chat.served
    assert all(each.served > 0.4 * chat.served for each in readings)


def test_what_no_device_takes_is_refused_in_words() -> None:
    cluster, _ = a_cluster()
    device = SimulatedDevice(cluster, "n1")
    run(device.start_replica(0, a_replica("r1", memory_mib=3000.0)))
    with pytest.raises(LaunchFailed, match="needs 2000 MiB, GPU 0 has 1000"):
        run(device.start_replica(0, a_replica("r2", memory_mib=2000.0)))
    with pytest.raises(LaunchFailed, match="runs already"):
        run(device.start_replica(0, a_replica("r1")))
    with pytest.raises(OutOfRange, match="1 to 8, not 9"):
        run(device.set_batch("r1", 9))
    with pytest.raises(OutOfRange, match="not at 2000"):
        run(device.lock_clock_mhz(0, 2000.0))
    with pytest.raises(OutOfRange, match="50 W when idle"):
        run(device.limit_power_w(0, 40.0))
    with pytest.raises(UnknownPart, match="no GPU 1"):
        run(device.lock_clock_mhz(1, 1000.0))
    with pytest.raises(UnknownPart, match="no replica r9"):
        run(device.drain("r9"))


def test_closing_a_device_ends_everything_and_restores_its_defaults() -> None:
    cluster, device, _ = serving(100.0)
    run(device.close())
    state = run(device.state())
    assert (state.routes, state.gpus[0].replicas) == ((), ())
    assert state.gpus[0].clock_mhz is None
    assert is_balanced(cluster)


@settings(max_examples=examples(25))
@given(
    looks=st.lists(st.floats(0.01, 8.0), min_size=1, max_size=12),
    batch=st.integers(1, 8),
)
def test_looking_more_often_changes_nothing(looks: list[float], batch: int) -> None:
    def totals(steps: list[float]) -> object:
        cluster, clock = a_cluster(
            rates_rps={"chat": 700.0}, world=PlainWorld(deviation=0.1)
        )
        device = SimulatedDevice(cluster, "n1")
        settle(device, wanted(batch=batch), clock)
        for step in steps:
            clock.advance(step)
            run(device.read())
            assert is_balanced(cluster)
        clock.advance(1020.0 + 100.0 - clock.now_s())
        return cluster.totals()

    assert totals(looks) == totals([])
