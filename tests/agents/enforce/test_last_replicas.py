"""The last replicas of a service that leaves a node: balancers are told first, and the replicas end afterwards."""

from dataclasses import replace

from agents.enforce.actions import Drain, SwitchRoutes
from agents.enforce.diff import actions
from tests.agents.enforce.test_diff import settled
from tests.agents.factories import a_command, a_gpu, a_replica, on_gpu, run

CHAT = {"chat"}


def test_the_last_replica_serves_on_while_the_service_leaves() -> None:
    device = settled(on_gpu(a_replica("old")))
    gone = a_command(generation=2, services=("chat",))
    state = run(device.state())

    todo = actions(gone, state, leaving=CHAT)

    (switch,) = (each for each in todo if isinstance(each, SwitchRoutes))
    (route,) = switch.routes
    assert (route.is_leaving, [name for name, _ in route.shares]) == (True, ["old"])
    assert Drain(replica_id="old") not in todo
    assert Drain(replica_id="old") in actions(gone, state)


def test_a_replica_whose_room_is_needed_serves_on_as_long() -> None:
    device = settled(on_gpu(a_replica("old", memory_mib=3000.0)))
    wanted = a_command(
        a_gpu(a_replica("new", service="other", memory_mib=3000.0)),
        generation=2,
        services=("chat", "other"),
    )
    state = run(device.state())
    assert Drain(replica_id="old") not in actions(wanted, state, leaving=CHAT)
    assert Drain(replica_id="old") in actions(wanted, state)


def test_one_of_two_replicas_leaves_at_once_and_the_node_stays_ready() -> None:
    device = settled(on_gpu(a_replica("old"), a_replica("stays")))
    fewer = on_gpu(a_replica("stays"), generation=2)
    todo = actions(fewer, run(device.state()), leaving=CHAT)
    (switch,) = (each for each in todo if isinstance(each, SwitchRoutes))
    assert not switch.routes[0].is_leaving
    assert Drain(replica_id="old") in todo


def test_a_service_not_named_any_more_is_served_until_ready_elsewhere() -> None:
    device = settled(on_gpu(a_replica("old")))
    moved = a_command(generation=2)
    state = run(device.state())
    (before,) = state.routes

    todo = actions(moved, state, migrating={"old"}, leaving=CHAT)

    assert not any(isinstance(each, SwitchRoutes | Drain) for each in todo)
    (switch,) = (
        each
        for each in actions(moved, state, leaving=CHAT)
        if isinstance(each, SwitchRoutes)
    )
    assert switch.routes == (replace(before, is_leaving=True),)
    todo = actions(moved, state)
    assert SwitchRoutes(routes=()) in todo and Drain(replica_id="old") in todo


def test_after_a_restart_a_service_that_has_moved_is_served_on() -> None:
    device = settled(on_gpu(a_replica("old")))
    state = replace(run(device.state()), routes=())
    (switch,) = (
        each
        for each in actions(a_command(generation=2), state, migrating={"old"})
        if isinstance(each, SwitchRoutes)
    )
    (route,) = switch.routes
    assert (route.service, route.shares) == ("chat", (("old", 0.0),))
    assert route.slo_ms >= 3_600_000.0
