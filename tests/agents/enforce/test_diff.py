"""Enforcement as a pure difference: its order, its limits, and that it always arrives."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agents.base.device import NodeState, ServiceRoute
from agents.base.protocol import NodeCommand
from agents.enforce.actions import (
    Action,
    Drain,
    LimitPower,
    LockClock,
    SetBatch,
    StartReplica,
    Stop,
    SwitchRoutes,
    perform,
)
from agents.enforce.diff import actions, is_settled
from tests.agents.factories import (
    a_command,
    a_gpu,
    a_replica,
    an_empty_gpu,
    an_empty_node,
    commands,
    on_gpu,
    run,
)
from tests.agents.paper_device import PaperDevice


def carry_out(device: PaperDevice, wanted: NodeCommand) -> tuple[Action, ...]:
    """One round: everything that can be done now."""

    async def one_round() -> tuple[Action, ...]:
        todo = actions(wanted, await device.state())
        for action in todo:
            await perform(device, action)
        return todo

    return run(one_round())


def settle(device: PaperDevice, wanted: NodeCommand) -> None:
    """Rounds until nothing is left to do, replicas becoming ready in between."""
    for _ in range(20):
        if not carry_out(device, wanted):
            if is_settled(wanted, run(device.state())):
                return
            device.make_ready()
    raise AssertionError("the node never settles")


def settled(
    wanted: NodeCommand, *, memory_mib: float = 4000.0, max_replicas: int = 48
) -> PaperDevice:
    gpus = [
        an_empty_gpu(index, memory_mib=memory_mib, max_replicas=max_replicas)
        for index in (0, 1)
    ]
    device = PaperDevice(an_empty_node(*gpus))
    settle(device, wanted)
    device.log.clear()
    return device


def test_a_new_replica_is_started_and_routed_only_when_ready() -> None:
    device = PaperDevice(an_empty_node())
    wanted = on_gpu(a_replica("r1", rate_rps=7.0))
    carry_out(device, wanted)
    expected = "clock 0 1500.0; power 0 300.0; route {'chat': []}; start r1"
    assert "; ".join(device.log) == expected
    assert carry_out(device, wanted) == ()
    device.make_ready()
    assert carry_out(device, wanted) == (
        SwitchRoutes(
            routes=(
                ServiceRoute(
                    service="chat",
                    slo_ms=100.0,
                    shares=(("r1", 7.0),),
                    batches=(("r1", 4),),
                ),
            )
        ),
    )


def test_a_new_sm_percent_is_a_shadow_switch_where_memory_allows() -> None:
    device = settled(on_gpu(a_replica("old", sm_percent=30.0)))
    settle(device, on_gpu(a_replica("new", sm_percent=60.0), generation=2))
    expected = "start new; route {'chat': ['new']}; drain old; stop old"
    assert "; ".join(device.log) == expected


def test_a_replica_that_runs_as_another_user_than_its_projects_is_replaced() -> None:
    device = settled(on_gpu(a_replica("r1")))
    device.put("r1", uid=7)
    shared = run(device.state())
    apart = replace(shared, uids={"": 7, "team-a": 8})
    named = on_gpu(a_replica("r1", project="team-a"), generation=2)
    others = on_gpu(a_replica("r1", project="team-b"), generation=2)
    # None is told apart, or it runs as whom all but team-a run as.
    assert (actions(named, shared), actions(others, apart)) == ((), ())
    device = PaperDevice(apart)
    settle(device, named)
    assert [each for each in device.log if "r1" in each and "route" not in each] == [
        "drain r1",
        "stop r1",
        "start r1",
    ]
    assert [each.uid for each in device.replicas()] == [8]


def test_without_memory_for_both_the_old_one_is_drained_first() -> None:
    device = settled(on_gpu(a_replica("old", memory_mib=3000.0)))
    settle(device, on_gpu(a_replica("new", memory_mib=3000.0), generation=2))
    expected = (
        "route {'chat': []}; drain old; stop old; start new; route {'chat': ['new']}"
    )
    assert "; ".join(device.log) == expected


def test_the_last_digit_of_a_sum_of_memory_keeps_no_replica_away() -> None:
    wanted = on_gpu(
        a_replica("a", memory_mib=0.1), a_replica("b", memory_mib=0.2)
    )  # 0.30000000000000004
    todo = actions(wanted, NodeState(gpus=(an_empty_gpu(memory_mib=0.3),)))
    assert [each.replica.id for each in todo if isinstance(each, StartReplica)] == [
        "a",
        "b",
    ]


def test_without_a_replica_slot_for_both_the_old_one_is_drained_first() -> None:
    device = settled(on_gpu(a_replica("old")), max_replicas=1)
    settle(device, on_gpu(a_replica("new"), generation=2))
    assert device.log.index("stop old") < device.log.index("start new")


def test_as_few_old_replicas_as_needed_are_drained_early() -> None:
    before = on_gpu(
        a_replica("a-old", service="a", memory_mib=1500.0),
        a_replica("b-old", service="b", memory_mib=1500.0),
    )
    device = settled(before)
    after = on_gpu(
        a_replica("b-new", service="b", memory_mib=2000.0),
        a_replica("a-new", service="a", memory_mib=900.0),
        generation=2,
    )
    todo = carry_out(device, after)
    # 1000 MiB are free: a-new fits, b-new is 1900 short of it; b-old (1500) alone is not enough, so a-old goes too.
    assert [each.replica.id for each in todo if isinstance(each, StartReplica)] == [
        "a-new"
    ]
    assert {each.replica_id for each in todo if isinstance(each, Drain)} == {
        "a-old",
        "b-old",
    }


def test_requests_in_flight_delay_the_stop_until_the_deadline() -> None:
    device = settled(on_gpu(a_replica("old")))
    wanted = a_command(generation=2, services=("chat",))
    carry_out(device, wanted)
    device.put("old", in_flight=3, draining_s=29.0)
    assert carry_out(device, wanted) == ()
    device.put("old", draining_s=30.0)
    assert carry_out(device, wanted) == (Stop(replica_id="old"),)


def test_an_old_replica_serves_until_every_new_one_is_ready() -> None:
    device = settled(on_gpu(a_replica("old", rate_rps=9.0)))
    wanted = a_command(
        a_gpu(a_replica("n1")), a_gpu(a_replica("n2"), index=1), generation=2
    )
    carry_out(device, wanted)
    device.put("n1", state="ready")
    carry_out(device, wanted)
    (route,) = run(device.state()).routes
    assert route.shares == (("n1", 10.0), ("old", 9.0))
    device.put("n2", state="ready")
    carry_out(device, wanted)
    (route,) = run(device.state()).routes
    assert route.shares == (("n1", 10.0), ("n2", 10.0))


def test_a_batch_changes_at_once_and_without_a_restart() -> None:
    device = settled(on_gpu(a_replica("r1", batch=4)))
    todo = carry_out(device, on_gpu(a_replica("r1", batch=8), generation=2))
    # The router is told, too: by the batch it knows who still joins the next one.
    assert todo[0] == SetBatch(replica_id="r1", batch=8)
    assert device.log == ["batch r1 8", "route {'chat': ['r1']}"]
    (route,) = run(device.state()).routes
    assert route.batches == (("r1", 8),)


def test_a_clock_rises_at_once_and_falls_only_after_the_old_replicas_are_gone() -> None:
    device = settled(on_gpu(a_replica("old"), clock_mhz=1000.0))
    assert carry_out(
        device, on_gpu(a_replica("old"), clock_mhz=1400.0, generation=2)
    ) == (LockClock(gpu_index=0, clock_mhz=1400.0),)
    device.log.clear()
    settle(device, on_gpu(a_replica("new"), clock_mhz=1200.0, generation=3))
    assert device.log.index("clock 0 1200.0") > device.log.index("drain old")


def test_knobs_that_a_gpu_does_not_have_are_not_turned_and_not_waited_for() -> None:
    node = an_empty_node(
        replace(an_empty_gpu(0), has_clock_lock=False, has_power_limit=False),
        an_empty_gpu(1),
    )
    device = PaperDevice(node)
    wanted = on_gpu(a_replica("r1"))
    settle(device, wanted)
    assert [entry for entry in device.log if entry.startswith(("clock", "power"))] == []
    assert is_settled(wanted, run(device.state()))


def test_a_power_limit_rises_before_the_clock_and_falls_after_it() -> None:
    device = settled(on_gpu(a_replica("r1"), clock_mhz=1000.0, cap_w=200.0))
    up = carry_out(
        device, on_gpu(a_replica("r1"), clock_mhz=1400.0, cap_w=250.0, generation=2)
    )
    assert up == (
        LimitPower(gpu_index=0, limit_w=250.0),
        LockClock(gpu_index=0, clock_mhz=1400.0),
    )
    down = carry_out(
        device, on_gpu(a_replica("r1"), clock_mhz=1000.0, cap_w=200.0, generation=3)
    )
    assert down == (
        LockClock(gpu_index=0, clock_mhz=1000.0),
        LimitPower(gpu_index=0, limit_w=200.0),
    )


def test_a_gpu_without_a_command_returns_to_its_defaults() -> None:
    device = settled(on_gpu(a_replica("r1")))
    settle(device, a_command(generation=2))
    state = run(device.state()).gpus[0]
    assert (state.replicas, state.clock_mhz, state.power_limit_w) == ((), None, None)


def test_a_failed_replica_is_replaced_unless_it_is_held_back() -> None:
    device = settled(on_gpu(a_replica("r1")))
    device.put("r1", state="failed")
    state = run(device.state())
    wanted = on_gpu(a_replica("r1"))
    kinds = [type(each) for each in actions(wanted, state)]
    assert kinds == [Stop, SwitchRoutes, StartReplica]
    assert [
        type(each) for each in actions(wanted, state, held={("replica", "r1")})
    ] == [SwitchRoutes]


def test_nothing_is_started_or_set_on_a_lost_gpu() -> None:
    node = an_empty_node(replace(an_empty_gpu(), healthy=False))
    wanted = on_gpu(a_replica("r1"))
    assert [type(each) for each in actions(wanted, node)] == [SwitchRoutes]
    assert not is_settled(wanted, node)


def test_a_service_without_a_replica_keeps_an_empty_route() -> None:
    device = settled(a_command(services=("idle",)))
    assert run(device.state()).routes == (ServiceRoute(service="idle", slo_ms=100.0),)


def test_in_a_handover_an_old_replica_serves_on() -> None:
    device = settled(on_gpu(a_replica("old", rate_rps=10.0)))
    moved = a_command(
        generation=2, services=("chat",)
    )  # its route says 10 rps, none of them here
    state = run(device.state())
    assert Drain(replica_id="old") not in actions(moved, state, migrating={"old"})
    assert Drain(replica_id="old") in actions(moved, state)


def test_a_handover_does_not_keep_what_is_replaced_on_the_same_node() -> None:
    device = settled(on_gpu(a_replica("old")))
    wanted = on_gpu(
        a_replica("new", rate_rps=10.0), generation=2
    )  # the whole planned rate is here
    carry_out(device, wanted)
    device.make_ready()
    assert Drain(replica_id="old") in actions(
        wanted, run(device.state()), migrating={"old"}
    )


@given(before=commands(1), after=commands(2), rounds=st.integers(0, 4))
def test_every_transition_arrives_without_ever_overcommitting_memory(
    before: NodeCommand, after: NodeCommand, rounds: int
) -> None:
    device = PaperDevice(
        an_empty_node(an_empty_gpu(0), an_empty_gpu(1))
    )  # raises where memory would not suffice
    for _ in range(
        rounds
    ):  # the second command may come in the middle of the first transition
        carry_out(device, before)
        device.make_ready()
    settle(device, after)
    assert actions(after, run(device.state())) == ()
    running = {
        (each.id, each.service, each.sm_percent, each.batch)
        for each in device.replicas()
    }
    assert running == {
        (r.id, r.service, r.sm_percent, r.batch)
        for gpu in after.gpus
        for r in gpu.replicas
    }


@given(before=commands(1), after=commands(2))
def test_routes_only_ever_name_ready_replicas(
    before: NodeCommand, after: NodeCommand
) -> None:
    device = PaperDevice(an_empty_node(an_empty_gpu(0), an_empty_gpu(1)))
    settle(device, before)
    for _ in range(8):
        carry_out(device, after)
        state = run(device.state())
        ready = {each.id for each in device.replicas() if each.state == "ready"}
        assert {
            replica_id for route in state.routes for replica_id, _ in route.shares
        } <= ready
        device.make_ready()
