"""Spares on a node: routed as such, last to start, and in nobody's way."""

from agents.base.device import NodeState
from agents.enforce.actions import StartReplica
from agents.enforce.diff import actions, is_settled
from agents.enforce.diff_routes import routes_for_now
from agents.enforce.gpu_diff import compare_gpus
from tests.agents.enforce.test_diff import carry_out, settled
from tests.agents.factories import (
    a_replica,
    on_gpu,
    run,
)


def spares(state: NodeState) -> dict[str, tuple[str, ...]]:
    return {route.service: route.spares for route in state.routes}


def test_a_ready_spare_is_routed_and_promoted_without_a_restart() -> None:
    wanted = on_gpu(a_replica("r1"), a_replica("s", rate_rps=0.0, is_spare=True))
    device = settled(wanted)
    state = run(device.state())
    assert spares(state) == {"chat": ("s",)}
    assert [route.shares for route in state.routes] == [(("r1", 10.0),)]
    promoted = on_gpu(a_replica("r1"), a_replica("s", rate_rps=5.0), generation=2)
    carry_out(device, promoted)
    assert device.log == ["route {'chat': ['r1', 's']}"]
    assert spares(run(device.state())) == {"chat": ()}
    assert is_settled(promoted, run(device.state()))


def test_nothing_is_drained_for_a_spare_and_none_takes_the_room_of_a_replica() -> None:
    old = a_replica("old", service="photo", memory_mib=3000.0)
    device = settled(on_gpu(old))
    spare = a_replica("s", rate_rps=0.0, memory_mib=2000.0, is_spare=True)
    # 1,000 MiB are free of 4,000; the old replica makes room for the new one of 3,500 alone.
    new = a_replica("new", service="photo", memory_mib=3500.0)
    wanted = on_gpu(new, a_replica("x", memory_mib=100.0), spare, generation=2)
    gpus = compare_gpus(wanted, run(device.state()), ())
    assert gpus[0].missing[-1].id == "s"
    first = actions(wanted, run(device.state()))
    started = [each.replica.id for each in first if isinstance(each, StartReplica)]
    assert started == ["x"]


def test_a_spare_for_which_there_is_no_room_waits() -> None:
    old = a_replica("old", memory_mib=3000.0)
    device = settled(on_gpu(old))
    spare = a_replica("s", rate_rps=0.0, memory_mib=2000.0, is_spare=True)
    assert actions(on_gpu(old, spare, generation=2), run(device.state())) == ()


def test_old_replicas_do_not_wait_for_a_spare() -> None:
    device = settled(on_gpu(a_replica("old")))
    spare = a_replica("s", rate_rps=0.0, is_spare=True)
    wanted = on_gpu(spare, generation=2)
    carry_out(device, wanted)
    # The spare is still starting; the old one is no longer wanted, and drains.
    assert "drain old" in device.log
    device.make_ready()
    state = run(device.state())
    routes = routes_for_now(wanted, state, compare_gpus(wanted, state, ()), set())
    assert [(each.shares, each.spares) for each in routes] == [((), ("s",))]
