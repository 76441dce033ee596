"""Times of launches: told once each, from the start until the replica was seen ready."""

from agents.base.device import NodeState
from agents.base.protocol import MAX_LAUNCHES, LaunchTime, ReplicaState
from agents.enforce.launch_timer import LaunchTimer
from tests.agents.factories import a_replica, an_empty_node
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice


def a_node_with(*replicas: tuple[str, ReplicaState]) -> NodeState:
    device = PaperDevice(an_empty_node())
    for name, state in replicas:
        finish(device.start_replica(0, a_replica(name, sm_percent=10.0)))
        device.put(name, state=state)
    return finish(device.state())


def test_a_launch_is_told_once_when_the_replica_is_ready() -> None:
    launches = LaunchTimer()
    launches.start("r1", 100.0)
    launches.look(a_node_with(("r1", "starting")), 101.0)
    assert launches.take() == ()
    launches.look(a_node_with(("r1", "ready")), 112.5)
    launches.look(a_node_with(("r1", "ready")), 113.0)
    told = LaunchTime(replica="r1", service="chat", gpu_index=0, seconds=12.5)
    assert launches.take() == (told,)
    assert launches.take() == ()


def test_what_failed_or_was_there_before_tells_nothing() -> None:
    launches = LaunchTimer()
    launches.start("r1", 0.0)
    launches.look(a_node_with(("r1", "failed"), ("r2", "ready")), 5.0)
    launches.look(a_node_with(("r1", "ready"), ("r2", "ready")), 6.0)
    assert launches.take() == ()


def test_a_launch_that_begins_again_counts_from_then_on() -> None:
    launches = LaunchTimer()
    launches.start("r1", 0.0)
    launches.start("r1", 30.0)
    launches.look(a_node_with(("r1", "ready")), 34.0)
    assert [each.seconds for each in launches.take()] == [4.0]


def test_a_successor_tells_of_the_replica_that_the_control_plane_knows() -> None:
    launches = LaunchTimer()
    launches.start("r1~8", 0.0)
    launches.look(a_node_with(("r1", "ready"), ("r1~8", "ready")), 2.0)
    assert [each.replica for each in launches.take()] == ["r1"]


def test_of_too_many_the_oldest_are_forgotten() -> None:
    launches = LaunchTimer()
    for number in range(MAX_LAUNCHES + 3):
        launches.start(f"r{number}", 0.0)
        launches.look(a_node_with((f"r{number}", "ready")), 1.0)
    told = launches.take()
    assert (len(told), told[0].replica) == (MAX_LAUNCHES, "r3")
