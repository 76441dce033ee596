"""The controller: one process leads and ticks; the others wait for the lead.

The tick runs every period and whenever somebody wakes it (a service changed, a plan was approved, load jumped).
Wake-ups that come while a tick runs are answered by one more tick, however many they were.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from app.base.clock import ControlClock
from app.loop.events import led_event
from app.loop.tick import Loop, TickOutcome, tick
from app.solver.process import SolverUnavailable

log = structlog.get_logger(__name__)

MAINTENANCE_PERIOD_S = 3600.0
FIRST_PERIOD_S = 5.0
RETRY_S = 2.0
"""Pause after a failed tick or a lost database, in this clock's seconds."""

MAX_FAULT = 300
"""Characters of an error in the audit."""

MIN_GAP_S = 0.5
"""Least time between two ticks, so that a storm of wake-ups cannot occupy the database."""


MIN_JOB_S = 1.0
"""On the wall: a fast demo's slow jobs must leave the machine to its ticks."""

JOB_DEFAULTS = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
"""However late a job runs, it runs once."""


class Lead(Protocol):
    """The right to decide: at most one process has it."""

    async def acquire(self) -> bool:
        """Try to get or confirm the lead; False: another process has it."""
        ...

    async def release(self) -> None:
        """Give it back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowJob:
    """Work next to the tick that only the leader does; a failed run is logged, and tried again at its next time."""

    name: str
    period_s: float
    run: Callable[[], Awaitable[object]]


class Wakeups(Protocol):
    """Somebody else's changes, as they happen."""

    def listen(self) -> AsyncIterator[str]:
        """Yields what changed; reconnects by itself."""
        ...


def _ignore(outcome: TickOutcome) -> None:
    """Take the outcome where nothing watches."""


async def _until_cancelled(run: Callable[[], Awaitable[None]]) -> None:
    """Run a job of the scheduler, which owns its task and cancels it only when it shuts down."""
    # The scheduler would log a cancelled job as an error, with its traceback.
    with contextlib.suppress(asyncio.CancelledError):
        await run()


class Controller:
    """Runs the loop in this process for as long as it leads."""

    def __init__(
        self,
        loop: Loop,
        lead: Lead,
        wakeups: Wakeups,
        *,
        period_s: Callable[[], Awaitable[float]],
        maintain: Callable[[], Awaitable[None]],
        on_tick: Callable[[TickOutcome], None] = _ignore,
        slow_jobs: Sequence[SlowJob] = (),
    ) -> None:
        self._loop = loop
        self._clock: ControlClock = loop.clock
        self._lead = lead
        self._wakeups = wakeups
        self._period_s = period_s
        self._maintain = maintain
        self._slow_jobs = tuple(slow_jobs)
        self._wake = asyncio.Event()
        self._silence: asyncio.Task[None] | None = None
        """Wakes the loop when a node comes to count as silent."""
        self.last: TickOutcome | None = None
        """The newest tick's outcome, for health checks and the live view."""
        self.leads = False
        self._fault = ""
        """Why the last tick failed; empty once it is in the audit."""
        self._is_noted = False
        """Whether the audit says that this process is the leader."""
        self.on_tick = on_tick

    def wake(self) -> None:
        """Ask for a tick soon."""
        self._wake.set()

    async def run(self) -> None:
        """Lead and tick until cancelled."""
        # Until the database answers; `_reschedule` follows what it says.
        period_s = FIRST_PERIOD_S
        scheduler = self._make_scheduler(period_s)
        listener = asyncio.create_task(self._listen(), name="plimsoll-wakeups")
        scheduler.start()
        self.wake()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._round()
                period_s = await self._reschedule(scheduler, period_s)
                # Wake-ups of the meantime are kept by the event and answered together.
                await self._clock.sleep(MIN_GAP_S)
        finally:
            # The lead goes last: nothing may be decided here once another process can take it.
            scheduler.shutdown(wait=False)
            self._stop_silence()
            listener.cancel()
            await asyncio.wait([listener])
            await self._lead.release()

    def _make_scheduler(self, period_s: float) -> AsyncIOScheduler:
        scheduler = AsyncIOScheduler(timezone="UTC", job_defaults=JOB_DEFAULTS)

        def every(
            seconds: float, run: Callable[[], Awaitable[None]], name: str
        ) -> None:
            job = partial(_until_cancelled, run)
            scheduler.add_job(job, "interval", seconds=seconds, id=name)

        every(self._wall(period_s), self._wake_on_time, "tick")
        every(self._wall(MAINTENANCE_PERIOD_S), self._safely_maintain, "maintain")
        for job in self._slow_jobs:
            seconds = max(self._wall(job.period_s), MIN_JOB_S)
            every(seconds, partial(self._safely_run, job), job.name)
        return scheduler

    async def _round(self) -> None:
        """One tick, if this process is the leader. Broad by intent: a fault costs one round, never the loop."""
        try:
            led, self.leads = self.leads, await self._lead.acquire()
            if self.leads and not led:
                log.info("this process is the leader")
                # Another process may have proposed plans, or withdrawn them, meanwhile.
                self._loop.has_resumed = False
                await self._start_solver()
                await self._safely_maintain()
            if self.leads:
                # The dispatcher of jobs pushes targets, too; the second one would lose its plan.
                async with self._loop.turn:
                    self.last = await tick(self._loop)
                self._stop_silence()
                self._silence = asyncio.create_task(
                    self._wake_at_silence(), name="plimsoll-silence"
                )
                self.on_tick(self.last)
                await self._note_lead()
            else:
                self._stop_silence()
                # Another process decides: what failed here is no reason for a lead that is taken later.
                self._is_noted, self._fault = False, ""
        except Exception as error:
            await self._hold_after_fault(error)

    async def _wake_at_silence(self) -> None:
        """Not at the next period: what ran on a node that is gone is missing until others are started."""
        telemetry = self._loop.telemetry
        while (due_at := telemetry.silence_due_at) is not None:
            # From now: the tick that looked may have taken long.
            wait_s = max(0.0, (due_at - self._clock.now()).total_seconds())
            await asyncio.sleep(self._wall(wait_s) + MIN_GAP_S)
            # Most nodes were heard meanwhile. To look costs little; a tick for nothing would cost a plan.
            if await self._has_new_silence():
                self.wake()
                return

    async def _has_new_silence(self) -> bool:
        try:
            snapshot = await self._loop.store.load_snapshot(self._clock.now())
        except Exception as error:
            # The tick fails as well, and has its way to deal with it.
            log.warning("cannot check for silent nodes", error=str(error))
            return True
        return self._loop.telemetry.has_new_silence(snapshot)

    def _stop_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    async def _note_lead(self) -> None:
        """Say in the audit that this process decides, and why none could before: while that lasted none wrote."""
        # Only after a tick that went well, since ticks that fail again and again must not fill the audit.
        if not self._is_noted:
            event = led_event(self._clock.now(), self._fault)
            await self._loop.store.add_events(event)
            self._is_noted, self._fault = True, ""

    async def _hold_after_fault(self, error: Exception) -> None:
        """Decide nothing for RETRY_S after a round failed, for instance because the database is gone.

        Nodes keep the target that they have, and their agents keep what they could not report.
        """
        # Whatever failed may have been the lead itself; it is asked for again in the next round.
        self.leads = self._is_noted = False
        self._fault = f"{type(error).__name__}: {error}"[:MAX_FAULT]
        log.error(
            "the tick failed; the next one starts again",
            error=str(error),
            kind=type(error).__name__,
        )
        await self._clock.sleep(RETRY_S)

    async def _start_solver(self) -> None:
        """Have the solver ready for the first tick; where it is not, ticks keep the plan and say why."""
        try:
            await self._loop.solver.start()
        except SolverUnavailable as error:
            log.error("the solver did not start", error=str(error))

    async def _reschedule(self, scheduler: AsyncIOScheduler, period_s: float) -> float:
        """Follow a changed period; keep the old one while the database does not answer."""
        try:
            wanted_s = await self._period_s()
        except Exception as error:
            log.warning("cannot read the period", error=str(error))
            return period_s
        if wanted_s != period_s:
            scheduler.reschedule_job(
                "tick", trigger="interval", seconds=self._wall(wanted_s)
            )
        return wanted_s

    async def _wake_on_time(self) -> None:
        # A coroutine: the scheduler runs plain functions in another thread, which must not set an asyncio.Event.
        self.wake()

    async def _listen(self) -> None:
        async for _ in self._wakeups.listen():
            self.wake()

    async def _safely_maintain(self) -> None:
        if not self.leads:
            return
        try:
            await self._maintain()
        except Exception as error:
            log.error(
                "maintenance failed; it will run again within the hour",
                error=str(error),
            )

    async def _safely_run(self, job: SlowJob) -> None:
        if not self.leads:
            return
        try:
            await job.run()
        except Exception as error:
            log.error(
                "a slow job failed; it will run again at its next turn",
                job=job.name,
                error=str(error),
            )

    def _wall(self, seconds: float) -> float:
        return seconds / self._clock.speed
