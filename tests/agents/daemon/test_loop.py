"""The agent's steps: what it sends, what it accepts, and what it does when nothing answers."""

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from agents.base.backoff import Restarts, delay_s, jittered
from agents.base.clock import ManualClock, ScaledClock
from agents.base.device import DeviceError, NoDriver
from agents.base.protocol import (
    EngineCommand,
    NodeCommand,
    Observation,
    ReplicaState,
)
from agents.sync.ledger import Ledger
from agents.sync.outbox import Outbox
from agents.sync.transport import ControlPlaneSilent, NotAuthorised, Unacceptable
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_command,
    a_replica,
    a_task,
    an_empty_node,
    an_observation,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice
from tests.waiting import eventually, in_loop


class Bench:
    """An agent, its device, its control plane and their clock."""

    def __init__(
        self,
        *,
        directory: Path | None = None,
        boot: str = "boot-1",
    ) -> None:
        self.clock = ManualClock(1000.0)
        self.plane = PaperControlPlane(self.clock)
        self.device = PaperDevice(an_empty_node())
        self.agent = an_agent(
            self.device, self.plane, self.clock, ledger=Ledger(directory), boot=boot
        )

    def step(self, seconds: float = 2.0) -> None:
        self.clock.advance(seconds)
        finish(self.agent.step())

    def settle(self, command: NodeCommand) -> None:
        """Let the agent carry it out: its replicas are ready."""
        self.plane.command = command
        self.step()
        self.device.make_ready()
        self.step()

    @property
    def last(self) -> Observation:
        return self.plane.received[-1]


def test_windows_follow_each_other_without_gap_or_overlap() -> None:
    bench = Bench()
    for seconds in (2.0, 3.0, 1.5):
        bench.step(seconds)
    windows = [(each.window_start_s, each.window_s) for each in bench.plane.received]
    assert windows == [(1000.0, 2.0), (1002.0, 3.0), (1005.0, 1.5)]


def test_a_new_command_is_enforced_at_once_and_acknowledged_step_by_step() -> None:
    bench = Bench()
    bench.plane.command = on_gpu(a_replica("r1"))
    bench.step()
    assert "start r1" in bench.device.log
    bench.step()
    assert (bench.last.generation, bench.last.acks[-1].status) == (1, "applying")
    bench.device.make_ready()
    bench.step()
    assert bench.last.acks[-1].status == "applied"


def test_a_silent_control_plane_gets_everything_later_in_order() -> None:
    bench = Bench()
    bench.plane.command = on_gpu(a_replica("r1"))
    bench.step()
    bench.plane.error = ControlPlaneSilent("no one there")
    for _ in range(3):
        bench.step()
    bench.device.make_ready()
    bench.step()
    assert bench.device.log[-1] == "route {'chat': ['r1']}"
    assert len(bench.agent.outbox) == 4
    bench.plane.error = None
    bench.step()
    assert [each.sequence for each in bench.plane.received] == [1, 2, 3, 4, 5, 6]
    assert len(bench.agent.outbox) == 0
    assert "no one there" in bench.last.problems[0]


def test_what_was_not_made_durable_is_sent_again_with_the_same_sequence() -> None:
    bench = Bench()
    bench.plane.is_durable = False
    bench.step()
    bench.plane.is_durable = True
    bench.step()
    assert [each.sequence for each in bench.plane.received] == [1, 1, 2]


def test_an_unacceptable_observation_does_not_block_the_next() -> None:
    bench = Bench()
    bench.plane.error = Unacceptable("422: window_s is NaN")
    bench.step()
    bench.plane.error = None
    bench.step()
    assert bench.last.sequence == 2
    assert any("422" in problem for problem in bench.last.problems)
    assert any("1 observations were lost" in problem for problem in bench.last.problems)


def test_a_refused_token_keeps_the_observations() -> None:
    bench = Bench()
    bench.plane.error = NotAuthorised("401")
    bench.step()
    assert len(bench.agent.outbox) == 1


def test_an_older_generation_is_refused_once_and_changes_nothing() -> None:
    bench = Bench()
    bench.plane.command = on_gpu(a_replica("r1"), generation=5)
    bench.step()
    bench.plane.forced = [a_command(generation=4)]
    bench.step()
    bench.step()
    refused = [ack for ack in bench.last.acks if ack.status == "refused"]
    assert [(ack.generation, "older than 5" in ack.detail) for ack in refused] == [
        (4, True)
    ]
    assert bench.agent.command == on_gpu(a_replica("r1"), generation=5)
    bench.step()
    assert [ack.status for ack in bench.last.acks] == ["applying"]


def test_the_same_command_again_is_neither_refused_nor_carried_out_twice() -> None:
    bench = Bench()
    command = on_gpu(a_replica("r1"), generation=5)
    bench.plane.command = command
    bench.step()
    bench.plane.forced = [command, command]
    bench.step()
    bench.step()
    assert bench.device.log.count("start r1") == 1
    assert all(ack.status != "refused" for ack in bench.last.acks)


def test_a_command_that_does_not_fit_the_node_is_refused_in_words() -> None:
    bench = Bench()
    bench.plane.command = on_gpu(a_replica("r1", memory_mib=9999.0))
    bench.step()
    bench.step()
    assert "the replicas and tasks need 9999" in bench.last.acks[0].detail
    assert bench.device.log == []


def test_a_killed_agent_enforces_its_last_command_at_once(tmp_path: Path) -> None:
    first = Bench(directory=tmp_path)
    first.plane.command = on_gpu(a_replica("r1"), generation=3)
    first.step()
    second = Bench(directory=tmp_path, boot="boot-2")
    second.plane.error = ControlPlaneSilent("still down")
    second.step()
    assert "start r1" in second.device.log
    second.plane.error = None
    second.step()
    assert {(each.boot, each.generation) for each in second.plane.received} == {
        ("boot-2", 3)
    }
    second.plane.forced = [a_command(generation=2)]
    second.step()
    second.step()
    assert second.last.acks[0].status == "refused"


def test_a_replica_that_fails_to_start_is_tried_again_later_and_later() -> None:
    bench = Bench()
    bench.device.fails_to_start = {"r1"}
    bench.plane.command = on_gpu(a_replica("r1"))
    for _ in range(40):
        bench.step(1.0)
    assert bench.device.log.count("start r1") == 4  # after 0, 5, 15 and 35 s
    (failed,) = bench.last.acks
    assert (failed.status, failed.detail) == ("failed", "replica r1: r1 does not start")
    bench.device.fails_to_start = set()
    bench.step(40.0)
    bench.settle(bench.plane.command)
    assert bench.last.acks[-1].status == "applied"


def test_a_task_that_fails_is_tried_again_later_and_named_meanwhile() -> None:
    bench = Bench()
    bench.plane.command = on_gpu(tasks=(a_task("t1"),))
    bench.step()
    bench.device.put_task("t1", state="failed")
    for _ in range(4):
        bench.step(1.0)
    assert bench.device.log.count("start task t1") == 1
    ack = bench.last.acks[-1]
    assert (ack.status, ack.detail) == ("failed", "task t1: it ended by itself")
    bench.step(5.0)
    assert bench.device.log[-2:] == ["stop task t1", "start task t1"]
    bench.settle(bench.plane.command)
    bench.step()
    assert bench.last.acks[-1].status == "applied"


def with_a_replica_that_moved(engine: EngineCommand | None = None) -> Bench:
    """Its node no longer has `old`; the service's 10 rps are planned elsewhere."""
    bench = Bench()
    old = msgspec.structs.replace(a_replica("old"), engine=engine)
    bench.settle(on_gpu(old))
    bench.plane.command = a_command(generation=2, services=("chat",))
    bench.step()
    return bench


def test_a_replica_that_moved_serves_on_until_it_is_ready_there() -> None:
    bench = with_a_replica_that_moved()
    for _ in range(20):
        bench.step()
    assert "drain old" not in bench.device.log
    assert bench.last.awaited == ("chat",)
    bench.plane.ready_elsewhere = ("chat",)
    bench.step()
    bench.step()
    assert "drain old" in bench.device.log
    assert bench.last.awaited == ()


def test_what_was_ready_elsewhere_for_one_command_is_not_for_the_next() -> None:
    bench = with_a_replica_that_moved()
    bench.plane.ready_elsewhere = ("chat",)
    bench.plane.command = a_command(generation=3, services=("chat",))
    bench.step()
    bench.plane.ready_elsewhere = ()
    bench.step()
    assert "drain old" not in bench.device.log
    assert bench.last.awaited == ("chat",)


def test_a_replica_that_moved_serves_on_to_the_limit_at_most() -> None:
    bench = with_a_replica_that_moved()
    limit_s = bench.agent.settings.migration_limit_s
    for generation in range(3, 6):
        bench.plane.command = a_command(generation=generation, services=("chat",))
        bench.step(limit_s / 4.0)
        assert "drain old" not in bench.device.log
    bench.step(limit_s / 4.0)
    bench.step()
    assert "drain old" in bench.device.log


@in_loop
async def test_a_device_that_does_not_answer_ends_nothing_and_is_reported() -> None:
    clock, device = ScaledClock(speed=100.0), PaperDevice(an_empty_node())
    plane = PaperControlPlane(clock, on_gpu(a_replica("r1")))
    device.error = NoDriver("the driver is gone")
    agent, stop = an_agent(device, plane, clock), asyncio.Event()
    loops = asyncio.create_task(agent.run(stop))
    await eventually(lambda: any("driver" in str(each) for each in plane.received))
    device.error = None
    await eventually(lambda: loops.done() or "start r1" in device.log)
    assert not loops.done()
    stop.set()
    await loops


def test_a_failing_switch_drains_nothing() -> None:
    bench = Bench()
    bench.settle(on_gpu(a_replica("old")))
    bench.device.switch_error = DeviceError("the router is stuck")
    bench.settle(on_gpu(a_replica("new"), generation=2))
    bench.step()
    assert bench.last.acks[-1].detail == "the router is stuck"
    assert "drain old" not in bench.device.log
    bench.device.switch_error = None
    bench.step()
    assert "drain old" in bench.device.log


def test_a_clock_that_is_off_is_reported() -> None:
    bench = Bench()
    bench.plane.clock = ManualClock(1300.0)
    bench.step()
    bench.step()
    assert "298.0 s behind the control plane's" in " ".join(bench.last.problems)


def test_a_suspended_machine_reports_its_last_hour() -> None:
    bench = Bench()
    bench.step(10_000.0)
    assert (bench.last.window_start_s, bench.last.window_s) == (7400.0, 3600.0)


def test_the_outbox_keeps_the_newest_and_counts_what_it_lost() -> None:
    outbox = Outbox(capacity=3)
    for sequence in range(1, 6):
        outbox.add(an_observation(sequence=sequence))
    oldest = outbox.oldest()
    assert oldest is not None
    assert (oldest.sequence, outbox.dropped) == (3, 2)
    outbox.acknowledge(4)
    assert len(outbox) == 1


def test_delays_double_up_to_the_longest_and_jitter_never_lengthens_them() -> None:
    found = [delay_s(n, first_s=1.0, longest_s=30.0) for n in (1, 2, 3, 5, 6, 1000)]
    assert found == [1.0, 2.0, 4.0, 16.0, 30.0, 30.0]
    drawn = [jittered(10.0, Random(seed)) for seed in range(200)]
    assert 5.0 <= min(drawn) < 5.5 < 9.5 < max(drawn) <= 10.0


def with_r1() -> tuple[Restarts, PaperDevice]:
    """What an agent remembers of failures, and a node on which r1 starts."""
    device = PaperDevice(an_empty_node())
    finish(device.start_replica(0, a_replica("r1")))
    return Restarts(), device


def test_a_recovered_replica_starts_with_a_clean_record() -> None:
    restarts, device = with_r1()
    restarts.note_failure(("replica", "r1"), 0.0, reason="no")
    restarts.note_failure(("replica", "r1"), 5.0, reason="still no")
    assert restarts.held(14.9) == {("replica", "r1"): "still no"}
    device.make_ready()
    for at_s in (20.0, 20.0 + Restarts.FORGOTTEN_S):
        restarts.look(finish(device.state()), at_s)
    restarts.note_failure(("replica", "r1"), at_s, reason="no")
    assert restarts.held(at_s + Restarts.FIRST_S + 0.1) == {}


@pytest.mark.parametrize(("up_s", "waits"), [(9.0, True), (10.0, False)])
def test_what_was_up_for_long_is_started_again_at_once(
    up_s: float, waits: bool
) -> None:
    restarts, device = Restarts(), PaperDevice(an_empty_node())
    restarts.look(finish(device.state()), 90.0)
    finish(device.start_replica(0, a_replica("r1")))
    device.make_ready()
    restarts.look(finish(device.state()), 100.0)
    # Its workers end what is left of it before they say that it failed.
    device.put("r1", state="draining")
    restarts.look(finish(device.state()), 105.0)
    device.put("r1", state="failed")
    restarts.look(finish(device.state()), 100.0 + up_s)
    assert bool(restarts.held(100.0 + up_s)) is waits


@pytest.mark.parametrize("found", ["starting", "ready", "failed"])
def test_what_was_up_is_started_again_at_once_and_only_once(
    found: ReplicaState,
) -> None:
    restarts, device = with_r1()
    held = []
    for at_s, state in enumerate((found, "failed", "starting", "ready", "failed")):
        device.put("r1", state=state)
        restarts.look(finish(device.state()), float(at_s))
        held.append(bool(restarts.held(float(at_s))))
    assert held == [False, False, False, False, True]


def test_what_was_ended_and_begun_anew_is_no_longer_an_earlier_agents() -> None:
    restarts, device = with_r1()
    restarts.look(finish(device.state()), 0.0)
    finish(device.stop_replica("r1"))
    restarts.look(finish(device.state()), 1.0)
    finish(device.start_replica(0, a_replica("r1")))
    device.put("r1", state="failed")
    restarts.look(finish(device.state()), 2.0)
    assert ("replica", "r1") in restarts.held(2.0)


def test_what_fails_again_soon_after_it_was_up_waits_longer_each_time() -> None:
    restarts, device = with_r1()
    at_s, waits_s = 0.0, []
    for _ in range(4):
        # It serves for 12 s, until the first full batch.
        for state, pause_s in (("starting", 5.0), ("ready", 12.0), ("failed", 0.0)):
            device.put("r1", state=state)
            restarts.look(finish(device.state()), at_s)
            at_s += pause_s
        wait_s = next(s for s in range(100) if not restarts.held(at_s + s))
        waits_s.append(wait_s)
        at_s += wait_s
    assert waits_s == [0, 10, 20, 40]
