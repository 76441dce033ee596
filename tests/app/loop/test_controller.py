"""The controller around the tick: who leads, who wakes it, and what a fault costs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import pytest

from app.base.clock import ManualControlClock
from app.loop.controller import Controller, SlowJob
from app.loop.tick import Loop, TickOutcome
from app.store.memory_store import MemoryStore
from app.store.store import Snapshot
from tests.app.fleets import Answering, Failing, a_fleet
from tests.waiting import PATIENCE_S, eventually

NEVER_S = 1e6


class StandingClock(ManualControlClock):
    """Sleeping takes no time and lets the others go on."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Only when a test says so."""
        await super().sleep(seconds)


@dataclass
class ALead:
    """A lead that a test gives and takes."""

    given: bool = True
    fault: str = ""
    asked: int = 0
    released: int = 0

    async def acquire(self) -> bool:
        self.asked += 1
        if self.fault:
            raise ConnectionError(self.fault)
        return self.given

    async def release(self) -> None:
        self.released += 1


@dataclass
class Calls:
    """Wake-ups that a test sends; can break."""

    queue: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    async def listen(self) -> AsyncIterator[str]:
        while True:
            word = await self.queue.get()
            if word == "break":
                raise ConnectionError("the database is away")
            yield word


class BrokenStore(MemoryStore):
    """A store that cannot be read."""

    async def load_snapshot(self, now: datetime) -> Snapshot:
        raise ConnectionError("the database is away")


@dataclass
class Scene:
    """A controller with everything that it touches."""

    loop: Loop
    lead: ALead = field(default_factory=ALead)
    calls: Calls = field(default_factory=Calls)
    outcomes: list[TickOutcome] = field(default_factory=list)
    maintained: int = 0
    judged: int = 0
    judges_for_ever: bool = False
    period_s: float = NEVER_S

    def __post_init__(self) -> None:
        self.controller = Controller(
            self.loop,
            self.lead,
            self.calls,
            period_s=self._read_period,
            maintain=self._maintain,
            on_tick=self.outcomes.append,
            slow_jobs=(SlowJob(name="judge", period_s=0.01, run=self._judge),),
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let everybody else work until it is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110  many different things are waited for
                await asyncio.sleep(0)

    async def ticks(self, count: int) -> None:
        await self.until(lambda: len(self.outcomes) >= count)

    async def _read_period(self) -> float:
        return self.period_s

    async def _maintain(self) -> None:
        self.maintained += 1

    async def _judge(self) -> None:
        self.judged += 1
        if self.judges_for_ever:
            await asyncio.Event().wait()
        if self.judged == 1:
            raise ConnectionError("the database is away")


def play(
    scenario: Callable[[Scene], Awaitable[None]],
    *,
    leads: bool = True,
    period_s: float = NEVER_S,
) -> Scene:
    """Run a controller next to the scenario; cancel it when the scenario is over."""

    async def main() -> Scene:
        fleet = a_fleet()
        clock = StandingClock()
        scene = Scene(
            loop=replace(fleet.loop, clock=clock),
            lead=ALead(given=leads),
            period_s=period_s,
        )
        task = asyncio.create_task(scene.controller.run())
        try:
            await scenario(scene)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return scene

    return asyncio.run(main())


def test_it_ticks_at_once_and_for_every_wake_up() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ticks(1)
        scene.controller.wake()
        await scene.ticks(2)
        scene.calls.queue.put_nowait("plimsoll_wake")
        await scene.ticks(3)
        assert scene.controller.last is scene.outcomes[-1]

    assert play(scenario).lead.released == 1


def test_it_ticks_every_period_without_a_wake_up() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ticks(4)

    play(scenario, period_s=0.01)


def test_it_ticks_when_a_node_comes_to_count_as_silent_however_long_a_tick_takes() -> (
    None
):
    async def scenario(scene: Scene) -> None:
        clock = scene.loop.clock
        assert isinstance(clock, StandingClock)
        scene.loop.solver = Answering(meanwhile=partial(clock.pass_time, 15.0))
        # No node is heard any more: for 5 s at the first look, for 20 s when its plan is there.
        clock.advance(5.0)
        await scene.ticks(2)
        assert scene.loop.telemetry.silent == {"n1", "n2"}

    play(scenario)


def test_it_does_not_tick_for_a_node_that_was_heard_meanwhile() -> None:
    async def scenario(scene: Scene) -> None:
        clock, telemetry = scene.loop.clock, scene.loop.telemetry
        assert isinstance(clock, StandingClock)
        clock.speed = 1000.0
        clock.advance(10.0)
        await scene.ticks(1)
        # So that the time to look is over, while no node is silent.
        telemetry.silence_due_at = clock.now()
        await scene.until(lambda: telemetry.silence_due_at != clock.now())
        assert len(scene.outcomes) == 1

    play(scenario)


def test_wake_ups_during_a_tick_are_answered_by_one_more() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ticks(1)
        for _ in range(20):
            scene.controller.wake()
        await scene.ticks(2)
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(scene.outcomes) == 2

    play(scenario)


def test_without_the_lead_it_waits_and_with_it_it_maintains_and_ticks() -> None:
    async def scenario(scene: Scene) -> None:
        for _ in range(50):
            scene.controller.wake()
            await asyncio.sleep(0)
        assert (scene.outcomes, scene.maintained, scene.controller.leads) == (
            [],
            0,
            False,
        )
        scene.lead.given = True
        scene.controller.wake()
        await scene.ticks(1)
        assert (scene.maintained, scene.controller.leads) == (1, True)
        scene.lead.given = False
        scene.controller.wake()
        await scene.until(lambda: not scene.controller.leads)
        assert len(scene.outcomes) == 1

    play(scenario, leads=False)


def test_a_tick_that_fails_costs_one_round() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ticks(1)
        good, scene.loop.store = scene.loop.store, BrokenStore()
        scene.controller.wake()
        await scene.until(lambda: not scene.controller.leads)
        scene.loop.store = good
        scene.controller.wake()
        await scene.ticks(2)
        assert scene.controller.leads

    play(scenario)


def test_the_audit_says_once_who_decides_and_why_nobody_could_before() -> None:
    async def scenario(scene: Scene) -> None:
        store = scene.loop.store
        assert isinstance(store, MemoryStore)

        def told() -> list[str]:
            return [each.reason for each in store.events if each.kind == "LeadTaken"]

        await scene.until(lambda: len(told()) == 1)
        scene.loop.store = BrokenStore()
        scene.controller.wake()
        await scene.until(lambda: not scene.controller.leads)
        scene.loop.store = store
        for count in (2, 3, 4):
            scene.controller.wake()
            await scene.ticks(count)
        await scene.until(lambda: len(told()) >= 2)
        assert len(told()) == 2
        assert told()[1].endswith("ConnectionError: the database is away")

    play(scenario)


def test_a_solver_that_does_not_start_leaves_the_plan_and_the_ticks_say_why() -> None:
    async def scenario(scene: Scene) -> None:
        scene.loop.solver = Failing()
        await scene.ticks(1)
        assert scene.outcomes[0].state == "kept"
        assert "solver" in scene.outcomes[0].reason

    play(scenario)


def test_a_listener_that_failed_stops_neither_the_ticks_nor_the_release_of_the_lead() -> (
    None
):
    async def scenario(scene: Scene) -> None:
        await scene.ticks(1)
        scene.calls.queue.put_nowait("break")
        for _ in range(20):
            await asyncio.sleep(0)
        scene.controller.wake()
        await scene.ticks(2)

    assert play(scenario).lead.released == 1


def test_a_slow_job_runs_again_after_a_failure_and_ticks_go_on() -> None:
    async def scenario(scene: Scene) -> None:
        await eventually(lambda: scene.judged >= 3)
        scene.controller.wake()
        await scene.ticks(2)

    play(scenario)


def test_a_slow_job_that_is_cancelled_at_the_end_ends_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.judges_for_ever = True
        await eventually(lambda: scene.judged >= 1)

    play(scenario)

    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


def test_who_does_not_lead_runs_no_slow_job() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until(lambda: scene.calls.queue.empty())
        for _ in range(200):
            await asyncio.sleep(0)
        assert scene.judged == 0
        scene.lead.given = True
        scene.controller.wake()
        await eventually(lambda: scene.judged >= 1)

    play(scenario, leads=False)


def test_a_fault_is_no_reason_for_a_lead_that_is_taken_after_another_process_led() -> (
    None
):
    async def scenario(scene: Scene) -> None:
        await scene.ticks(1)
        for fault, given in (("the database is away", True), ("", False), ("", True)):
            scene.lead.fault, scene.lead.given = fault, given
            asked = scene.lead.asked
            scene.controller.wake()
            await scene.until(lambda asked=asked: scene.lead.asked > asked)
        await scene.ticks(2)

    store = play(scenario).loop.store
    assert isinstance(store, MemoryStore)
    reasons = [each.reason for each in store.events if each.kind == "LeadTaken"]
    assert len(reasons) == 2
    assert "away" not in reasons[1]
