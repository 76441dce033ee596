"""Governors on a node: when they step, what they turn, and what happens around them."""

import asyncio
from pathlib import Path

import pytest

from agents.base.clock import ManualClock, ScaledClock
from agents.base.device import GpuPoll, NoDriver, ReplicaPoll
from agents.base.latency_buckets import bucket_end_ms, bucket_of
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand
from agents.enforce.governors import Governing, percentile_ms
from agents.sync.ledger import Ledger
from agents.sync.transport import ControlPlaneSilent
from tests.agents.control_planes import PaperControlPlane, an_agent
from tests.agents.factories import (
    a_command,
    a_governor,
    a_gpu,
    a_replica,
    an_empty_gpu,
    an_empty_node,
    on_gpu,
)
from tests.agents.factories import run as finish
from tests.agents.paper_device import PaperDevice
from tests.waiting import eventually, in_loop


class Bench:
    """An agent with one or two governed GPUs; seconds pass one by one, as in its own loop."""

    def __init__(self, command: NodeCommand, *, directory: Path | None = None) -> None:
        self.clock = ManualClock(1000.0)
        self.plane = PaperControlPlane(self.clock, command)
        self.device = PaperDevice(an_empty_node(an_empty_gpu(0), an_empty_gpu(1)))
        self.agent = an_agent(
            self.device, self.plane, self.clock, ledger=Ledger(directory)
        )

    def settle(self) -> None:
        """Let the replicas start and the routes switch."""
        self.pass_s(1)
        self.device.make_ready()
        self.pass_s(1)

    def pass_s(
        self, seconds: int, *, power_w: float | None = None, execution_ms: float = 20.0
    ) -> None:
        """Each second every GPU shows that power, its replicas work, and the agent does all that it has to."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            if power_w is not None:
                self.show(power_w, execution_ms)
            asyncio.run(self.agent.govern())
            finish(self.agent.step())

    def show(self, power_w: float, execution_ms: float = 20.0) -> None:
        for gpu in finish(self.device.state()).gpus:
            worked = tuple(
                ReplicaPoll(
                    id=each.id,
                    batches=10,
                    requests=40,
                    queued=1,
                    execution_ms=execution_ms,
                )
                for each in gpu.replicas
            )
            self.device.polls[gpu.index] = GpuPoll(
                peak_power_w=power_w, replicas=worked
            )

    def clock_mhz(self, index: int = 0) -> float | None:
        return finish(self.device.state()).gpus[index].clock_mhz

    def limit_w(self, index: int = 0) -> float | None:
        return finish(self.device.state()).gpus[index].power_limit_w

    def batches(self) -> dict[str, int]:
        return {each.id: each.batch for each in self.device.replicas()}

    @property
    def status(self) -> str:
        return self.plane.received[-1].acks[-1].status


def settled(*gpus: GpuCommand) -> Bench:
    """A bench whose replicas serve."""
    bench = Bench(a_command(*gpus))
    bench.settle()
    return bench


def governed(
    *replicas: ReplicaCommand, name: str = "dfs", index: int = 0, **changes: object
) -> GpuCommand:
    return a_gpu(
        *(replicas or (a_replica(),)), index=index, governor=a_governor(name, **changes)
    )


def test_a_governor_turns_the_clock_and_the_command_counts_as_applied() -> None:
    bench = settled(governed())
    assert bench.clock_mhz() == 1500.0
    bench.pass_s(3, power_w=305.0)
    # The first second has no beginning; then 305 W is 1.7 % above the cap of 300 W: one step of 15 MHz a second.
    assert bench.clock_mhz() == 1470.0
    bench.pass_s(2, power_w=299.0)
    assert bench.clock_mhz() == 1470.0
    assert bench.status == "applied"


def test_a_governor_goes_about_it_as_the_command_says() -> None:
    for step, below_mhz in ((10, 150.0), (2, 30.0)):
        bench = Bench(
            a_command(governed(name="power_latency", largest_clock_step=step))
        )
        bench.settle()
        bench.pass_s(2, power_w=100.0)
        begun = bench.clock_mhz()
        bench.pass_s(1, power_w=600.0)
        assert begun is not None and bench.clock_mhz() == max(900.0, begun - below_mhz)


def test_a_governor_has_the_batch_up_to_the_plans() -> None:
    bench = settled(governed(a_replica(batch=20), name="clipper_latency"))
    bench.pass_s(
        3, power_w=100.0, execution_ms=101.0
    )  # above the SLO of 100 ms: 20 → 18 → 16
    assert bench.batches() == {"r1": 16}
    bench.pass_s(3, power_w=100.0, execution_ms=50.0)
    assert bench.batches() == {"r1": 19}
    bench.pass_s(5, power_w=100.0, execution_ms=50.0)
    assert bench.batches() == {"r1": 20}


def test_a_governor_goes_on_when_the_control_plane_is_gone() -> None:
    bench = settled(governed())
    bench.plane.error = ControlPlaneSilent("no one there")
    bench.pass_s(4, power_w=400.0)
    assert bench.clock_mhz() == 1500.0 - 3 * 150.0


def test_every_gpu_has_its_own_governor_and_pace() -> None:
    bench = Bench(
        a_command(
            governed(),
            governed(a_replica("r2"), index=1, name="clipper_power", period_s=2.0),
            services=("chat",),
        )
    )
    bench.settle()
    bench.pass_s(6, power_w=305.0)
    # GPU 0 begins with second 1 and steps in seconds 2 to 6; GPU 1 begins with 2 and steps in 4 and 6: 4 → 3 → 2.
    assert bench.clock_mhz(0) == 1425.0
    assert bench.clock_mhz(1) == 1500.0
    assert bench.batches() == {"r1": 4, "r2": 2}


def test_the_board_holds_the_cap_until_a_governor_acts_and_is_its_net_then() -> None:
    bench = settled(governed())
    assert bench.limit_w() == 300.0
    bench.pass_s(1, power_w=200.0)
    assert bench.limit_w() == 330.0
    bench.device.polls.clear()
    bench.pass_s(2)
    assert bench.limit_w() == 300.0


def test_a_gpu_that_cannot_be_measured_runs_as_planned_and_says_so() -> None:
    bench = settled(governed())
    bench.pass_s(3)
    assert bench.clock_mhz() == 1500.0
    assert bench.limit_w() == 300.0
    assert bench.status == "applied"
    assert (
        "governor dfs of GPU 0 cannot act: nothing is measured here"
        in bench.plane.received[-1].problems
    )


def test_a_gpu_that_fails_stops_no_other_gpus_governor() -> None:
    bench = Bench(
        a_command(governed(), governed(a_replica("r2"), index=1), services=("chat",))
    )
    bench.settle()
    bench.pass_s(1, power_w=305.0)
    del bench.device.polls[0]
    bench.clock.advance(1.0)
    asyncio.run(bench.agent.govern())
    assert (bench.clock_mhz(0), bench.clock_mhz(1)) == (1500.0, 1485.0)


class PollCountingDevice(PaperDevice):
    """Counts the polls that are on their way at a time, as of servers that answer late."""

    polls_now = max_polls = 0

    async def poll(self, gpu_index: int) -> GpuPoll:
        self.polls_now += 1
        self.max_polls = max(self.max_polls, self.polls_now)
        await asyncio.sleep(0)
        self.polls_now -= 1
        return await super().poll(gpu_index)


def test_late_servers_of_several_gpus_are_asked_at_once() -> None:
    device = PollCountingDevice(an_empty_node(an_empty_gpu(0), an_empty_gpu(1)))
    command = a_command(governed(), governed(a_replica("r2"), index=1))
    problems = asyncio.run(Governing(device).step(command, 0.0))
    assert device.max_polls == 2
    # Named in the order of their GPUs, whichever answered first.
    assert [text.split(" cannot")[0] for text in problems] == [
        "governor dfs of GPU 0",
        "governor dfs of GPU 1",
    ]


def test_a_device_that_does_not_answer_ends_no_governor() -> None:
    bench = settled(governed())
    bench.pass_s(1, power_w=305.0)
    bench.device.error = NoDriver("the driver is gone")
    bench.clock.advance(1.0)
    asyncio.run(bench.agent.govern())
    bench.device.error = None
    bench.pass_s(2, power_w=305.0)  # begins again, then one step
    assert bench.clock_mhz() == 1485.0


def test_knobs_outlast_a_command_that_asks_the_same_and_no_other() -> None:
    bench = settled(governed())
    bench.pass_s(3, power_w=305.0)
    bench.plane.command = a_command(governed(a_replica(rate_rps=20.0)), generation=2)
    bench.pass_s(2, power_w=299.0)
    assert bench.agent.command == bench.plane.command
    assert bench.clock_mhz() == 1470.0
    bench.plane.command = a_command(governed(a_replica(batch=8)), generation=3)
    bench.pass_s(2, power_w=299.0)
    assert (bench.clock_mhz(), bench.batches()) == (1500.0, {"r1": 8})


def test_without_a_governor_the_commanded_knobs_return() -> None:
    bench = settled(governed())
    bench.pass_s(4, power_w=400.0)
    bench.plane.command = on_gpu(a_replica(), generation=2)
    bench.pass_s(2, power_w=400.0)
    assert (bench.clock_mhz(), bench.limit_w()) == (1500.0, 300.0)
    assert bench.agent.next_govern_s == float("inf")


def test_a_period_in_which_something_else_turned_the_knobs_does_not_count() -> None:
    bench = settled(governed())
    bench.pass_s(1, power_w=305.0)
    finish(bench.device.lock_clock_mhz(0, 900.0))
    bench.clock.advance(1.0)
    asyncio.run(bench.agent.govern())
    assert bench.clock_mhz() == 1500.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "magic"}, "GPU 0: no governor is called magic; there are batch_dvfs"),
        ({"clocks_mhz": (900.0, 1500.0, 1200.0)}, "clocks do not ascend"),
        ({"clocks_mhz": (900.0, 1200.0)}, "1500 MHz is outside its governor's, 900 to"),
        ({"power_limit_w": 299.0}, "under a board limit of 299 W"),
    ],
)
def test_a_command_whose_governor_cannot_be_is_refused(
    changes: dict[str, object], reason: str
) -> None:
    bench = Bench(on_gpu(a_replica(), governor=a_governor(**changes)))  # type: ignore[arg-type]
    bench.pass_s(2)
    acks = bench.plane.received[-1].acks
    (refused,) = (ack for ack in acks if ack.status == "refused")
    assert reason in refused.detail
    assert bench.device.log == []


def test_an_unknown_governor_on_disk_governs_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path).accept(on_gpu(a_replica(), governor=a_governor("of_tomorrow")))
    bench = Bench(a_command(), directory=tmp_path)
    bench.plane.error = ControlPlaneSilent("no one there")
    bench.pass_s(3, power_w=400.0)
    bench.plane.error = None
    bench.pass_s(1, power_w=400.0)
    assert (bench.clock_mhz(), bench.limit_w()) == (1500.0, 300.0)
    assert (
        "GPU 0 is not governed: no governor is called of_tomorrow"
        in bench.plane.received[1].problems
    )


@in_loop
async def test_the_agents_own_loop_governs() -> None:
    clock, device = ScaledClock(speed=100.0), PaperDevice(an_empty_node())
    device.polls[0] = GpuPoll(peak_power_w=400.0)
    plane, stop = PaperControlPlane(clock, a_command(governed())), asyncio.Event()
    loops = asyncio.create_task(an_agent(device, plane, clock).run(stop))
    await eventually(
        lambda: loops.done() or finish(device.state()).gpus[0].clock_mhz == 900.0
    )
    assert not loops.done()
    stop.set()
    await loops


def test_a_percentile_lies_between_the_ends_of_its_bucket() -> None:
    bucket = bucket_of(90.0)
    begin_ms, end_ms = bucket_end_ms(bucket - 1), bucket_end_ms(bucket)
    assert percentile_ms((), 0.98) == 0.0
    assert percentile_ms(((bucket, 10),), 0.5) == pytest.approx(
        (begin_ms + end_ms) / 2.0
    )
    # 8 of 10 lie in the bucket before: the 9th of 10 is half way through the two of this one.
    assert percentile_ms(((bucket - 1, 8), (bucket, 2)), 0.9) == pytest.approx(
        (begin_ms + end_ms) / 2.0
    )
    assert percentile_ms(((0, 4),), 1.0) == bucket_end_ms(0)


def test_one_with_a_start_of_its_own_begins_there_once_it_can_measure() -> None:
    bench = settled(governed(a_replica(batch=8), name="power_latency"))
    assert (bench.clock_mhz(), bench.batches()) == (1500.0, {"r1": 8})
    bench.pass_s(1, power_w=100.0, execution_ms=20.0)
    assert (bench.clock_mhz(), bench.batches()) == (900.0, {"r1": 1})
    # No latency is shown, so the batch may grow to four times as much, and then to the plan's.
    bench.pass_s(1, power_w=100.0, execution_ms=20.0)
    assert (bench.clock_mhz(), bench.batches()) == (900.0, {"r1": 4})
    bench.pass_s(1, power_w=100.0, execution_ms=20.0)
    assert (bench.clock_mhz(), bench.batches()) == (900.0, {"r1": 8})


def test_a_governor_begins_anew_only_with_other_replicas() -> None:
    bench = settled(governed(a_replica(batch=8), name="power_latency"))
    bench.pass_s(3, power_w=100.0)
    assert bench.batches() == {"r1": 8}
    bench.plane.command = a_command(
        governed(a_replica(batch=6), name="power_latency"), generation=2
    )
    bench.pass_s(2, power_w=295.0)
    assert (bench.clock_mhz(), bench.batches()) == (900.0, {"r1": 6})
    bench.plane.command = a_command(
        governed(a_replica("r2", batch=8), name="power_latency"), generation=3
    )
    bench.pass_s(2, power_w=295.0)
    bench.device.make_ready()
    bench.pass_s(2, power_w=295.0)
    assert bench.clock_mhz() == 900.0
    assert bench.batches()["r2"] == 1


def test_after_three_failing_periods_another_partition_is_asked_for() -> None:
    bench = settled(governed(a_replica(batch=1), name="power_latency"))
    bench.pass_s(3, power_w=400.0)  # the first second is no period
    assert bench.plane.received[-1].repartition == ()
    bench.pass_s(2, power_w=400.0)
    assert bench.plane.received[-1].repartition == (0,)
    bench.pass_s(2, power_w=299.0)
    assert bench.plane.received[-1].repartition == ()
