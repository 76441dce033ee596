"""Replicas whose server cannot change its batch: a successor under another name, and one reading under the known id."""

import asyncio
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.base.device import GpuPoll, Part, ReplicaPoll
from agents.base.protocol import (
    NodeCommand,
    ReplicaCommand,
    ReplicaReading,
    ReplicaState,
)
from agents.base.successors import as_commanded, base_id, with_successors
from agents.enforce.actions import perform
from agents.enforce.diff import actions
from agents.enforce.governors import Governing
from tests.agents.enforce.test_diff import carry_out as a_round
from tests.agents.enforce.test_diff import settle
from tests.agents.factories import (
    a_governor,
    a_replica,
    an_empty_gpu,
    an_empty_node,
    on_gpu,
    run,
)
from tests.agents.paper_device import PaperDevice


class FixedDevice(PaperDevice):
    """Books of a node whose servers take no other batch."""

    async def start_replica(self, gpu_index: int, replica: ReplicaCommand) -> None:
        await super().start_replica(gpu_index, replica)
        self.put(replica.id, has_live_batch=False)

    async def set_batch(self, replica_id: str, batch: int) -> None:
        raise AssertionError(
            f"{replica_id} takes no other batch than it has, and was asked for {batch}"
        )


def carry_out(device: PaperDevice, wanted: NodeCommand) -> bool:
    return bool(a_round(device, wanted))


def a_node(batch: int = 4, *, memory_mib: float = 4000.0) -> FixedDevice:
    device = FixedDevice(an_empty_node(an_empty_gpu(memory_mib=memory_mib)))
    settle(device, command(batch))
    device.log.clear()
    return device


def command(batch: int) -> NodeCommand:
    return on_gpu(a_replica("r1", batch=batch))


def test_another_batch_is_a_shadow_switch_to_a_successor() -> None:
    device = a_node()
    settle(device, command(8))
    begin, route, *end = device.log
    assert (begin, route) == ("start r1~8", "route {'chat': ['r1~8']}")
    assert end == ["drain r1", "stop r1"]
    assert [each.batch for each in device.replicas()] == [8]
    assert not carry_out(device, command(8))


def test_a_successor_that_fails_keeps_its_name_and_the_old_one_serves_on() -> None:
    device = a_node()
    carry_out(device, command(8))
    device.put("r1~8", state="failed")
    held: set[Part] = {("replica", "r1~8")}
    for _ in range(3):
        for action in actions(command(8), run(device.state()), held=held):
            run(perform(device, action))
    states = {each.id: each.state for each in device.replicas()}
    assert states == {"r1": "ready", "r1~8": "failed"}
    settle(device, command(8))
    assert [(each.id, each.state) for each in device.replicas()] == [("r1~8", "ready")]
    # After its switch it waits under its own name.
    device.put("r1~8", state="failed")
    (gpu,) = with_successors(command(8), run(device.state())).gpus
    assert [each.id for each in gpu.replicas] == ["r1~8"]


@given(seed=st.integers(0, 2**32))
def test_any_batches_arrive_and_the_service_always_has_a_ready_replica(
    seed: int,
) -> None:
    random, device = Random(seed), a_node()
    for _ in range(30):
        wanted = command(random.choice([1, 2, 4, 8]))
        for _ in range(random.randrange(4)):
            carry_out(device, wanted)
            (route,) = run(device.state()).routes
            ready = {each.id for each in device.replicas() if each.state == "ready"}
            assert route.shares and dict(route.shares).keys() <= ready
            if random.random() < 0.5:
                device.make_ready()
    settle(device, command(8))
    assert [each.batch for each in device.replicas()] == [8]


def test_a_live_batch_changes_no_name() -> None:
    device = a_node()
    wanted = command(8)
    device.put("r1", has_live_batch=True)
    assert with_successors(wanted, run(device.state())) is wanted
    device.put("r1", has_live_batch=False)
    (gpu,) = with_successors(wanted, run(device.state())).gpus
    assert gpu.replicas[0].id == "r1~8"


@pytest.mark.parametrize(
    ("replica_id", "base"),
    [("r1", "r1"), ("r1~8", "r1"), ("a~b", "a~b"), ("a~1~2", "a~1")],
)
def test_the_id_of_the_control_plane_is_found_in_a_successors(
    replica_id: str, base: str
) -> None:
    assert base_id(replica_id) == base


def a_reading(
    replica_id: str, state: ReplicaState, **changes: int | float
) -> ReplicaReading:
    reading = ReplicaReading(
        id=replica_id,
        service="chat",
        gpu_index=0,
        state=state,
        sm_percent=50.0,
        batch=4,
        memory_mib=1.0,
    )
    return msgspec.structs.replace(reading, **changes)


def test_during_the_switch_one_reading_speaks_for_both() -> None:
    old = a_reading("r1", "draining", batches=1, requests=4, execution_ms=10.0)
    new = a_reading("r1~8", "ready", batch=8, batches=3, requests=24, execution_ms=30.0)
    (told,) = as_commanded((old, new))
    assert (told.id, told.state, told.batch) == ("r1", "ready", 8)
    assert (told.batches, told.requests) == (4, 28)
    assert told.execution_ms == 25.0  # (1 · 10 + 3 · 30) / 4
    apart = as_commanded((a_reading("r2", "ready"), new))
    assert [each.id for each in apart] == ["r2", "r1"]


def test_a_governor_leaves_such_a_batch_alone() -> None:
    device = a_node()
    governor = a_governor("clipper_latency")
    wanted = on_gpu(a_replica("r1", batch=4), governor=governor)
    governing = Governing(device)
    # 400 ms per batch, where the SLO is 100 ms: the governor would make batches smaller.
    late = ReplicaPoll(
        id="r1",
        batches=20,
        requests=80,
        queued=9,
        execution_ms=400.0,
        latency_buckets=((50, 80),),
    )
    device.polls[0] = GpuPoll(peak_power_w=200.0, replicas=(late,))
    for now_s in (0.0, 1.0, 2.0, 3.0, 4.0):
        assert asyncio.run(governing.step(wanted, now_s)) == ()
    assert governing.in_force(wanted, 5.0).gpus[0].replicas[0].batch == 4
