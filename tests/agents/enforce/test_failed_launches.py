"""Failed launches: counted once each, with the device's words, and not where a replica had served."""

from dataclasses import replace

import msgspec

from agents.base.device import Part
from agents.base.protocol import (
    MAX_LAUNCHES,
    LaunchFailure,
    ReplicaReading,
    ReplicaState,
    TaskState,
)
from agents.enforce.failed_launches import HEALTHY_S, FailedLaunches
from tests.agents.enforce.test_launch_timer import a_node_with
from tests.agents.factories import a_task, an_empty_node
from tests.agents.paper_device import a_running_task

WANTED: set[Part] = {("replica", "r1"), ("task", "nightly")}


def a_tracker(replica: str = "r1") -> FailedLaunches:
    """Of an agent that found its node empty and started a replica."""
    launches = FailedLaunches()
    launches.look(an_empty_node(), WANTED, 0.0)
    launches.start(("replica", replica))
    return launches


def see(
    launches: FailedLaunches,
    state: ReplicaState,
    at_s: float,
    *,
    healthy: bool = True,
    replica: str = "r1",
) -> None:
    """The agent looks at a node with one replica."""
    node = a_node_with((replica, state))
    gpu = replace(node.gpus[0], healthy=healthy)
    launches.look(replace(node, gpus=(gpu,)), WANTED, at_s)


def failure(detail: str) -> LaunchFailure:
    return LaunchFailure(replica="r1", service="chat", gpu_index=0, detail=detail)


def test_a_replica_that_stays_failed_counts_once_for_each_launch() -> None:
    launches = a_tracker()
    for at_s in (0.0, 1.0, 2.0):
        see(launches, "failed", at_s)
    assert launches.take(()) == (failure("it ended by itself"),)
    launches.start(("replica", "r1"))
    see(launches, "starting", 5.0)
    see(launches, "failed", 6.0)
    said = "replica r1: exit code 1: no such file"
    assert launches.take(["GPU 1 is hot", said]) == (failure(said),)
    assert launches.take(()) == ()


def test_a_failure_does_not_take_the_words_on_a_replica_whose_id_begins_alike() -> None:
    launches = a_tracker()
    for said, is_own in (("replica r10: no", False), ("replica r1~8: no", True)):
        launches.note("r1", "chat", 0, "it ended by itself")
        (taken,) = launches.take([said])
        assert (taken.detail == said) is is_own


def test_a_replica_that_served_did_not_fail_to_start_and_a_crash_loop_did() -> None:
    for ready_s, count in ((HEALTHY_S - 1.0, 1), (HEALTHY_S, 0)):
        launches = a_tracker()
        see(launches, "ready", 100.0)
        see(launches, "failed", 100.0 + ready_s)
        assert len(launches.take(())) == count


def test_what_an_earlier_agent_had_up_or_failed_says_nothing_of_its_gpu() -> None:
    # It is unknown how long it had been up when this agent came, as after a restart of the machine.
    for found in ("failed", "ready"):
        launches = FailedLaunches()
        see(launches, found, 0.0)
        see(launches, "failed", 1.0)
        assert launches.take(()) == ()
    launches.start(("replica", "r1"))
    see(launches, "failed", 2.0)
    assert launches.take(()) == (failure("it ended by itself"),)


def test_what_is_not_wanted_and_what_a_lost_gpu_takes_with_it_says_nothing() -> None:
    launches = a_tracker("other")
    see(launches, "failed", 0.0, replica="other")
    assert launches.take(()) == ()
    launches = a_tracker()
    see(launches, "failed", 0.0, healthy=False)
    assert launches.take(()) == ()


def test_a_successor_that_fails_is_reported_as_the_replica_that_was_commanded() -> None:
    launches = a_tracker("r1~8")
    see(launches, "failed", 0.0, replica="r1~8")
    assert [each.replica for each in launches.take(())] == ["r1"]


def test_more_failures_than_an_observation_holds_are_forgotten_oldest_first() -> None:
    launches = a_tracker()
    for number in range(MAX_LAUNCHES + 3):
        launches.note("r1", "chat", 0, str(number))
    taken = launches.take(())
    assert (len(taken), taken[0].detail) == (MAX_LAUNCHES, "3")


def test_a_replica_says_how_often_it_was_started_again_while_it_is_commanded() -> None:
    def restarts(launches: FailedLaunches) -> list[int]:
        readings = [
            ReplicaReading(
                id=name,
                service="chat",
                gpu_index=0,
                state="starting",
                sm_percent=10.0,
                batch=4,
                memory_mib=1000.0,
            )
            for name in ("r1", "r2")
        ]
        return [each.restarts for each in launches.counted(readings)]

    launches = a_tracker()
    assert restarts(launches) == [0, 0]
    # Whatever became of it: one that had served for long is not asked for again by its own end.
    for count, (start, end) in enumerate(
        (("r1", "failed"), ("r1", "ready"), ("r1~8", "ready"), ("r1", "failed"))
    ):
        see(launches, end, 100.0 * count)  # type: ignore[arg-type]
        launches.start(("replica", start))
        assert restarts(launches) == [count + 1, 0]
    # It rests, and is started for another request later.
    launches.look(an_empty_node(), set(), 900.0)
    launches.start(("replica", "r1"))
    assert restarts(launches) == [0, 0]


def test_no_failure_says_more_than_the_wire_takes() -> None:
    launches = a_tracker()
    launches.note("r1", "chat", 0, "x" * 3000)
    launches.note("r2", "chat", 0, "it ended by itself")
    taken = launches.take(["replica r2: " + "x" * 3000])
    encoded = msgspec.json.encode(taken)
    assert msgspec.json.decode(encoded, type=tuple[LaunchFailure, ...]) == taken
    assert len(taken) == 2


def see_task(launches: FailedLaunches, state: TaskState, at_s: float) -> None:
    """The agent looks at a node with one task."""
    node = an_empty_node()
    running = a_running_task(a_task("nightly"), state)
    gpu = replace(node.gpus[0], tasks=(running,))
    launches.look(replace(node, gpus=(gpu,)), WANTED, at_s)


def test_a_task_that_ends_soon_after_it_ran_has_failed_to_start() -> None:
    for ran_s, count in ((HEALTHY_S - 1.0, 1), (HEALTHY_S, 0)):
        launches = a_tracker()
        launches.start(("task", "nightly"))
        see_task(launches, "running", 100.0)
        see_task(launches, "failed", 100.0 + ran_s)
        see_task(launches, "failed", 101.0 + ran_s)
        said = "task nightly: exit code 1: no data"
        found = LaunchFailure(replica="nightly", gpu_index=0, detail=said)
        assert launches.take([said]) == (found,) * count
    launches = a_tracker()
    see_task(launches, "running", 100.0)
    see_task(launches, "finished", 101.0)
    assert launches.take(()) == ()
