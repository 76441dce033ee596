"""Dispatch: the event loop that gives offline jobs their GPUs, next to the tick and at most every PERIOD_S.

Woken by new and finished tasks, it reads a snapshot, lets `round` decide, checks and pushes a target by the
same compare-and-set as the tick. The two take turns in their process, so that neither makes the other's plan lose; a
push that is lost to another process is feedback: the jobs go to the front of the queue, and the next round, on the new
target, starts them. Nothing is remembered that the store does not know but the window: a crash loses no job.

Source: OLTunes, section 3.4. Its scheduler runs for ever; this one sleeps while no job waits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from app.base.clock import ControlClock
from app.dispatch.check import job_names
from app.dispatch.jobs import DispatchMemory, job_scheduler
from app.dispatch.round import Dispatched, dispatch
from app.loop.controller import Wakeups
from app.loop.events import refused_events
from app.loop.fill import is_used
from app.loop.make_commands import effective_mode
from app.loop.observe import HeardNodes
from app.loop.push import push_target
from app.store.store import PlanRecord, Snapshot, Store
from solvers.policies.registry import dispatches_jobs
from solvers.predict.data.samples import LayerCounts
from solvers.types.jobs import JobScheduler
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundPlan, anonymous
from solvers.types.state import GpuType, Mode

log = structlog.get_logger(__name__)

PERIOD_S = 0.05
"""Least time between two rounds (OLTunes: 50 ms)."""
WAITING_S = 1.0
"""After so long it looks again while a job waits: progress and free GPUs are not announced."""
IDLE_S = 10.0
"""The same while none waits: a wake-up that was lost costs no more."""


@dataclass(slots=True, kw_only=True)
class JobDispatcher:
    """The parts of a round, and what it remembers."""

    store: Store
    clock: ControlClock
    turn: asyncio.Lock
    """Held by the step that reads, decides and pushes in this process: the tick or a round."""
    kernel_ratios: Mapping[str, float] = field(default_factory=dict)
    """Compute to memory by network, of those whose kernels were profiled."""
    layers: Sequence[LayerCounts] = ()
    """Layers of training networks, by which training that was never profiled is judged."""
    memory: DispatchMemory = field(default_factory=DispatchMemory)
    telemetry: HeardNodes = field(default_factory=HeardNodes)
    """When it looked and whom it heard: after an outage it starts nothing elsewhere before the tick does."""
    next_s: float = IDLE_S
    """After so long the next round is due, if nothing happens."""

    async def round(self) -> bool:
        """Read, decide, push; whether there is a new target."""
        async with self.turn:
            snapshot = await self.store.load_snapshot(self.clock.now())
            if not self._may_decide(snapshot):
                return False
            decided = await asyncio.to_thread(
                dispatch, snapshot, self.memory, self.kernel_ratios, self.layers
            )
            self.next_s = _next_s(decided, snapshot)
            await self._record_refused(decided, snapshot)
            if decided.bound is None:
                self._take(decided)
                return False
            won = await self._push(snapshot, decided, decided.bound)
        if won:
            self._take(decided)
        else:
            self._feed_back(decided, job_scheduler(snapshot.settings))
        return won

    def _may_decide(self, snapshot: Snapshot) -> bool:
        # Telemetry may come back at any moment; for the rest, which persons and ticks change, ten seconds do.
        if self.telemetry.hold_reason(snapshot) is not None:
            self.next_s = WAITING_S
            return False
        if not may_dispatch(snapshot):
            self.next_s = IDLE_S
            return False
        return True

    async def _push(
        self, snapshot: Snapshot, decided: Dispatched, bound: BoundPlan
    ) -> bool:
        plan_id = await self.store.record_plan(_record(snapshot, decided, bound))
        won = await push_target(self.store, snapshot, bound, plan_id)
        if not won:
            log.warning(
                "jobs are dispatched again, as another plan became the target first",
                jobs=job_names(decided.batches),
            )
        return won

    async def _record_refused(self, decided: Dispatched, snapshot: Snapshot) -> None:
        """Write that no GPU takes a job, once for as long as it waits."""
        new = [job for job in decided.refused if job.task not in self.memory.recorded]
        if new:
            log.error(
                "jobs wait: the checker refuses them on every GPU",
                jobs=[job.task for job in new][:10],
            )
            await self.store.add_events(*refused_events(new, snapshot.at))
            self.memory.recorded |= {job.task for job in new}

    def _take(self, decided: Dispatched) -> None:
        self.memory.state = decided.state

    def _feed_back(self, decided: Dispatched, scheduler: JobScheduler) -> None:
        """A deployment failed: its jobs in front, a smaller window and smaller batches."""
        for batch in decided.batches:
            self.memory.state = scheduler.deployment_failed(self.memory.state, batch)
        for name in job_names(decided.batches):
            # The scheduler puts those that failed in front, so that they do not pay for a lost push with their turn.
            self.memory.failures[name] = self.memory.failures.get(name, 0) + 1
        # At once: the target that was first is there now, and the next round decides on top of it.
        self.next_s = 0.0


def may_dispatch(snapshot: Snapshot) -> bool:
    """Whether jobs may be dispatched: some policy does, a target is there, no person wants to see plans first, and none
    has one to judge: it would be lost to any other target."""
    settings = snapshot.settings
    # Jobs are pushed without approval: no policy that dispatches may be in a mode that asks for it.
    modes = [
        settings.mode,
        *(group.mode for group in settings.groups if dispatches_jobs(group.policy)),
    ]
    is_free = not settings.paused and all(mode is Mode.AUTO for mode in modes)
    is_ready = (
        is_used(settings) and snapshot.target is not None and snapshot.approved is None
    )
    return is_free and is_ready and not _awaits_approval(snapshot)


def _awaits_approval(snapshot: Snapshot) -> bool:
    """Whether a plan waits for a person's approval.

    Not one that is only advice, nor one of a policy that was given up for the target's, nor what a push that failed
    left: these are not waited for.
    """
    settings = snapshot.settings
    if snapshot.proposal is None or snapshot.target is None:
        return False
    proposed = snapshot.proposal.bound
    is_wanted = proposed.policy in (snapshot.target.policy, settings.planner)
    return (
        is_wanted
        and effective_mode(settings, snapshot.state.services, snapshot.target, proposed)
        is Mode.APPROVE
    )


async def run_dispatcher(
    dispatcher: JobDispatcher, wakeups: Wakeups, is_on: Callable[[], Awaitable[bool]]
) -> None:
    """Rounds until cancelled, while it is on. Broad by intent: a fault costs one round.

    `is_on`: whether this process is the leader and some policy dispatches jobs; asked before every round.
    """
    woken = asyncio.Event()
    listening = asyncio.create_task(
        _listen(wakeups, woken), name="plimsoll-dispatch-wakeups"
    )
    try:
        while True:
            await _sleep_until(woken, dispatcher)
            # Cleared before the round: what comes while it runs is answered by another one.
            woken.clear()
            await _safe_round(dispatcher, is_on)
            await dispatcher.clock.sleep(PERIOD_S)
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def _safe_round(
    dispatcher: JobDispatcher, is_on: Callable[[], Awaitable[bool]]
) -> None:
    dispatcher.next_s = IDLE_S
    try:
        if await is_on():
            await dispatcher.round()
    except Exception as error:
        dispatcher.next_s = WAITING_S
        log.error("dispatch failed; the next round starts again", error=str(error))


async def _listen(wakeups: Wakeups, woken: asyncio.Event) -> None:
    async for _ in wakeups.listen():
        woken.set()


async def _sleep_until(woken: asyncio.Event, dispatcher: JobDispatcher) -> None:
    """Until somebody wakes it, or the next round is due by itself."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(dispatcher.next_s / dispatcher.clock.speed):
            await woken.wait()


def _next_s(decided: Dispatched, snapshot: Snapshot) -> float:
    if decided.held_until_s is not None:
        # A batch that is held open must go in time even if nothing wakes the dispatcher.
        return max(0.0, decided.held_until_s - snapshot.at.timestamp())
    return WAITING_S if decided.waiting else IDLE_S


def _record(snapshot: Snapshot, decided: Dispatched, bound: BoundPlan) -> PlanRecord:
    names = job_names(decided.batches)
    report = PlanReport(
        status="greedy",
        cost_usd_per_hour=_hourly_usd(bound, snapshot.state.gpu_types),
        method="dispatch",
        messages=(f"jobs started: {', '.join(names)}",),
    )
    return PlanRecord(
        at=snapshot.at,
        state="proposed",
        policy_version=snapshot.settings.version,
        catalogue_revision=snapshot.state.catalogue_revision,
        # The record has the whole target, as every plan has: the next plan is compared with it.
        plan=anonymous(bound),
        report=report,
        bound=bound,
        problem=decided.problem,
        reason=f"{len(names)} jobs are dispatched",
    )


def _hourly_usd(bound: BoundPlan, gpu_types: tuple[GpuType, ...]) -> float:
    """Price of the GPUs with replicas: what a plan's report states; tasks are charged apart."""
    prices = {gpu_type.name: gpu_type.price_usd_per_hour for gpu_type in gpu_types}
    return sum(prices.get(gpu.gpu_type, 0.0) for gpu in bound.gpus if gpu.replicas)
