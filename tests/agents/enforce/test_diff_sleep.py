"""Language models' replicas that are wanted again: taken back while they drain, woken while they sleep."""

import msgspec
import pytest

from agents.base.device import ASLEEP_SHARE
from agents.base.protocol import NodeCommand, ReplicaCommand
from agents.enforce.diff import actions, is_settled
from tests.agents.enforce.test_diff import carry_out, settle, settled
from tests.agents.enforce.test_spans import a_model, on_two
from tests.agents.factories import a_command, a_gpu, a_replica, a_task, run
from tests.agents.paper_device import PaperDevice

NOTHING = on_two(generation=2)


def with_model(*, memory_mib: float = 4000.0) -> PaperDevice:
    """A node whose model on both GPUs is ready, and can sleep."""
    device = settled(on_two(), memory_mib=memory_mib)
    device.can_sleep = True
    settle(device, on_two(a_model(0, 1)))
    device.log.clear()
    return device


def asleep(*, memory_mib: float = 4000.0) -> PaperDevice:
    """The same when it sleeps and nothing is wanted."""
    device = with_model(memory_mib=memory_mib)
    settle(device, NOTHING)
    assert [each.state for each in device.replicas()] == ["asleep", "asleep"]
    device.log.clear()
    return device


def test_one_that_drains_and_is_wanted_again_is_taken_back_and_routed() -> None:
    device = with_model()
    device.put("m1", in_flight=3)
    carry_out(device, NOTHING)
    assert device.log[-1] == "drain m1"
    device.log.clear()
    settle(device, on_two(a_model(0, 1), generation=3))
    assert [each for each in device.log if "m1" in each] == [
        "wake m1",
        "route {'chat': ['m1']}",
    ]


@pytest.mark.parametrize("can_sleep", [True, False])
def test_one_that_has_drained_sleeps_or_is_stopped(can_sleep: bool) -> None:
    device = with_model()
    device.put("m1", can_sleep=can_sleep)
    settle(device, NOTHING)
    assert ("sleep m1" in device.log) is can_sleep
    assert ("stop m1" in device.log) is not can_sleep
    assert bool(device.replicas()) is can_sleep
    assert is_settled(NOTHING, run(device.state()))


def test_one_that_sleeps_and_is_wanted_again_is_woken_and_not_started() -> None:
    device = asleep()
    held = {round(each.memory_mib) for each in device.replicas()}
    assert held == {round(3500.0 * ASLEEP_SHARE)}
    settle(device, on_two(a_model(0, 1), generation=3))
    of_model = [each for each in device.log if "m1" in each]
    assert of_model == ["wake m1", "route {'chat': ['m1']}"]


def test_it_is_not_woken_before_what_is_stopped_for_it_is_gone() -> None:
    device = asleep()
    settle(device, on_two(a_model(0, name="m2"), generation=3))
    device.put("m2", state="draining", can_return=True, can_sleep=False)
    back = on_two(a_model(0, 1), generation=4)
    actions_now = [type(each).__name__ for each in todo(device, back)]
    assert actions_now == ["Stop", "SwitchRoutes"]


def test_old_replicas_serve_until_their_successors_are_ready_beside_a_sleeper() -> None:
    device = asleep()
    first = a_command(
        a_gpu(a_replica("r1", memory_mib=1900.0), index=0), a_gpu(index=1), generation=3
    )
    settle(device, first)
    assert "m1" in {each.id for each in device.replicas()}
    device.log.clear()
    second = a_command(
        a_gpu(a_replica("r2", memory_mib=1900.0), index=0), a_gpu(index=1), generation=4
    )
    settle(device, second)
    # With the sleeper there is room for one of them alone.
    assert device.log.index("stop m1") < device.log.index("start r2")
    assert device.log.index("start r2") < device.log.index("drain r1")


def test_it_is_woken_only_when_another_has_made_room() -> None:
    device = asleep()
    other = a_model(0, name="m2")
    settle(device, on_two(other, generation=3))
    assert "start m2" in device.log, "a model has room next to one that sleeps"
    device.log.clear()
    back = on_two(a_model(0, 1), generation=4)
    device.put("m2", in_flight=1)
    carry_out(device, back)
    assert "wake m1" not in device.log, "the other still has the memory"
    device.put("m2", in_flight=0)
    settle(device, back)
    assert "wake m1" in device.log
    assert device.log.index("sleep m2") < device.log.index("wake m1")


@pytest.mark.parametrize(
    ("memory_mib", "stays"),
    [
        # Next to what sleeps, whose ninth is 389 MiB, there are 3611.
        (3610.0, True),
        (3620.0, False),
    ],
)
def test_it_ends_where_what_is_wanted_has_no_room_beside_it(
    memory_mib: float, stays: bool
) -> None:
    device = asleep()
    wanted = a_command(
        a_gpu(a_replica("r1", memory_mib=memory_mib), index=0),
        a_gpu(index=1),
        generation=3,
    )
    settle(device, wanted)
    assert ("m1" in {each.id for each in device.replicas()}) == stays
    assert ("stop m1" in device.log) != stays
    assert "start r1" in device.log


def test_it_ends_for_a_task_as_well() -> None:
    device = asleep()
    gpu = msgspec.structs.replace(a_gpu(index=0), tasks=(a_task(memory_mib=3700.0),))
    settle(device, a_command(gpu, a_gpu(index=1), generation=3))
    assert device.replicas() == ()
    assert [each.name for each in device.tasks()] == ["t1"]


def test_of_several_who_was_awake_last_sleeps_on() -> None:
    device = asleep()
    settle(device, on_two(a_model(0, 1, name="m2"), generation=3))
    # Two sleepers hold two ninths, next to which none of these models has room.
    settle(device, on_two(generation=4))
    device.put("m1", draining_s=900.0)
    settle(device, on_two(a_model(0, 1, name="m3"), generation=5))
    assert {each.id for each in device.replicas()} == {"m2", "m3"}


def changed(**fields: object) -> ReplicaCommand:
    return msgspec.structs.replace(a_model(0, 1), **fields)


@pytest.mark.parametrize("other", [{"network": "another"}, {"service": "search"}])
def test_one_that_would_serve_something_else_ends(other: dict[str, object]) -> None:
    device = asleep()
    wanted = a_command(
        a_gpu(changed(**other), index=0),
        a_gpu(index=1),
        generation=3,
        services=("chat", "search"),
    )
    settle(device, wanted)
    assert "wake m1" not in device.log
    assert device.log.index("stop m1") < device.log.index("start m1")


def test_streams_that_outlast_the_drain_end_with_it() -> None:
    device = with_model()
    carry_out(device, NOTHING)
    device.put("m1", in_flight=1, draining_s=601.0)
    assert [type(each).__name__ for each in todo(device, NOTHING)] == ["Stop"]


def todo(device: PaperDevice, wanted: NodeCommand) -> tuple[object, ...]:
    return actions(wanted, run(device.state()))
