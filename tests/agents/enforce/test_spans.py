"""Replicas that span GPUs: started once and only where all have room, drained as long as their streams take."""

from dataclasses import replace

import msgspec

from agents.base.protocol import NodeCommand, ReplicaCommand
from agents.enforce.actions import StartReplica, Stop
from agents.enforce.admission import objections
from agents.enforce.diff import actions, is_settled
from tests.agents.enforce.test_diff import carry_out, settle, settled
from tests.agents.factories import a_command, a_gpu, a_replica, an_engine, on_gpu, run


def a_model(*gpus: int, name: str = "m1", drain_s: float = 600.0) -> ReplicaCommand:
    """A language model's replica on these GPUs, which takes most of their memory."""
    replica = a_replica(name, sm_percent=100.0, memory_mib=3500.0)
    return msgspec.structs.replace(replica, engine=an_engine(*gpus, drain_s=drain_s))


def on_two(*replicas: ReplicaCommand, generation: int = 1) -> NodeCommand:
    """A command for GPUs 0 and 1, where these stand on the first of theirs."""
    gpus = []
    for index in (0, 1):
        own = [
            each
            for each in replicas
            if (each.engine.gpus[0] if each.engine else 0) == index
        ]
        gpus.append(a_gpu(*own, index=index))
    return a_command(*gpus, generation=generation, services=("chat",))


def test_it_is_started_once_and_stands_on_all_of_its_gpus() -> None:
    device = settled(on_two())
    wanted = on_two(a_model(0, 1))
    starts = [
        each for each in carry_out(device, wanted) if isinstance(each, StartReplica)
    ]
    assert [(each.gpu_index, each.replica.id) for each in starts] == [(0, "m1")]
    device.make_ready()
    settle(device, wanted)
    state = run(device.state())
    assert [[each.id for each in gpu.replicas] for gpu in state.gpus[:2]] == [
        ["m1"],
        ["m1"],
    ]
    assert is_settled(wanted, state)


def test_it_waits_until_every_one_of_its_gpus_has_room() -> None:
    before = a_command(a_gpu(index=0), a_gpu(a_replica("r1", service="other"), index=1))
    device = settled(before)
    wanted = on_two(a_model(0, 1))
    first = carry_out(device, wanted)
    # The other service's replica is on its way out, and nothing is started next to it.
    assert not any(isinstance(each, StartReplica) for each in first)
    settle(device, wanted)


def test_it_is_stopped_once_and_its_gpus_are_another_ones() -> None:
    device = settled(on_two(a_model(0, 1)))
    wanted = on_two(a_model(0, name="m2"), a_model(1, name="m3"), generation=2)
    stops: list[str] = []
    for _ in range(20):
        done = carry_out(device, wanted)
        stops += [each.replica_id for each in done if isinstance(each, Stop)]
        device.make_ready()
    assert stops == ["m1"]
    assert is_settled(wanted, run(device.state()))


def test_streams_have_as_long_as_their_own_limit() -> None:
    device = settled(on_two(a_model(0, 1)))
    state = run(device.state())
    wanted = on_two(generation=2)

    def drained_for(seconds: float) -> bool:
        gpus = tuple(
            replace(
                gpu,
                replicas=tuple(
                    replace(
                        each,
                        state="draining",
                        in_flight=3,
                        draining_s=seconds,
                        drain_s=600.0,
                    )
                    for each in gpu.replicas
                ),
            )
            for gpu in state.gpus
        )
        todo = actions(wanted, replace(state, gpus=gpus, routes=()))
        return any(isinstance(each, Stop) for each in todo)

    assert not drained_for(599.0)
    assert drained_for(601.0)


def test_a_command_must_give_a_replica_the_gpus_that_it_spans() -> None:
    state = run(settled(on_two()).state())
    fine = on_two(a_model(0, 1))
    assert objections(fine, "n1", state.gpus) == ()
    without = on_gpu(a_model(0, 1))
    elsewhere = a_command(a_gpu(index=0), a_gpu(a_model(0, 1), index=1))
    for command in (without, elsewhere):
        (said,) = objections(command, "n1", state.gpus)
        assert "spans GPUs that the command does not give it" in said
    crowded = a_command(a_gpu(a_model(0, 1)), a_gpu(a_replica("r9"), index=1))
    assert any("GPU 1 has" in each for each in objections(crowded, "n1", state.gpus))
