"""The agent of one node: observe, sync, enforce, guard, govern, each a step of its own, and a loop around them.

The loops run side by side, so that a silent control plane stops neither the counting nor enforcement nor governors:

    observe   every period: read the device, put an observation into the outbox
    sync      when there is one: send the oldest; on an answer forget what is acknowledged, consider its command;
              without one wait (jittered, doubling) and send the same again
    enforce   every second, and at once after a new command or when the device tells of a change: do what can be done
    guard     every second: slow a GPU down that draws more than its power cap
    govern    when the governor of a GPU is due: turn its clock and batches by what was measured
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec import structs

from agents.base.backoff import retry_s
from agents.base.clock import Clock
from agents.base.device import Device, DeviceError, DeviceReadings
from agents.base.protocol import MAX_TEXT, Ack, NodeCommand, Observation, SyncReply
from agents.base.successors import as_commanded
from agents.base.waits import cancel
from agents.daemon.acquittals import Acquittals
from agents.daemon.notes import MAX_WINDOW_S, AgentNotes, sendable, within_limits
from agents.daemon.steps import FORESEEN, Steps, problem_of, sleep_unless
from agents.enforce.admission import objections
from agents.enforce.governors import Governing
from agents.enforce.power_guard import PowerGuard
from agents.enforce.progress import Progress
from agents.enforce.reconcile import Enforcing
from agents.sync.lease import Lease, machine_uptime
from agents.sync.ledger import Ledger
from agents.sync.outbox import Outbox
from agents.sync.transport import (
    ClockSkew,
    ControlPlaneSilent,
    Transport,
    TransportError,
    Unacceptable,
)

MIN_WINDOW_S = 0.1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Who this agent is and how often it acts; all times in seconds of its clock."""

    node: str
    boot: str
    """Identity of this start; no two starts may share it."""
    version: str = ""
    period_s: float = 1.0
    """From observation to observation."""
    enforce_period_s: float = 1.0
    migration_limit_s: float = 120.0
    """How long replicas that moved to another node serve on here, where their successors are not said to be ready."""
    leaving_s: float = 0.0
    """How long a service that leaves the node is served after the node says that it is not ready for it."""


class NodeAgent:
    """One node's agent. Simulations call the steps; a process calls `run`."""

    def __init__(
        self,
        settings: AgentSettings,
        device: Device,
        *,
        transport: Transport,
        clock: Clock,
        ledger: Ledger,
    ) -> None:
        self.settings = settings
        self.outbox = Outbox()
        self._device = device
        self._transport = transport
        self._clock = clock
        self._ledger = ledger
        self._lease = Lease(
            ledger.directory, uptime=machine_uptime(), now_s=clock.now_s()
        )
        self._skew = ClockSkew()
        self._governing, self._acquittals = Governing(device), Acquittals(device)
        self._hands = asyncio.Lock()
        """Held by the step that sets the device: what one of them has read must not change under it. Starts go without:
        they may take long, and change nothing that another sets."""
        self._notes = AgentNotes()
        self._steps = Steps(clock)
        self._sequence = 0
        self._window_start_s = clock.now_s()
        self._progress = Progress(ledger.directory)
        self._guard = PowerGuard(device)
        self._enforcing = Enforcing(
            device, self._progress, hands=self._hands, limits=settings
        )
        self._observed = asyncio.Event()
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        """There may be something to enforce, as after a new command; or to report, before its time."""
        device.on_change(self._note_change)
        self._random = Random(f"{settings.node} {settings.boot}")

    def _note_change(self) -> None:
        self._changed.set()
        self._urgent.set()

    @property
    def command(self) -> NodeCommand | None:
        """The command in force."""
        return self._ledger.command

    async def step(self) -> None:
        """Observe, sync and enforce once, as a simulation does each period; a silent control plane is no error."""
        await self.enforce()
        await self.observe()
        # A command that came with the answer is carried out in the same step.
        before = self.command
        try:
            await self.sync(waits=False)
        except TransportError as error:
            self._notes.sync_problem = str(error)
        if self.command is not before:
            await self.enforce()

    async def observe(self) -> None:
        """Read the device and keep the observation until it is acknowledged; nothing if no time has passed.

        A device that does not answer is reported without readings; its counts come with the next window.
        """
        now_s = self._clock.now_s()
        if now_s <= self._window_start_s:
            return
        # Before the readings: what is said to be applied shows in them.
        ack = self._enforcing.ack
        try:
            readings = await self._device.read()
        except DeviceError as error:
            log.error("the device cannot be read: %s", error)
            readings = DeviceReadings(problems=(str(error),))
        self._report(readings, ack, now_s)

    def _report(self, readings: DeviceReadings, ack: Ack | None, now_s: float) -> None:
        """Keep what was read in the window that ends now."""
        self._progress.note(readings.tasks, self.command)
        self._sequence += 1
        acks = (*self._notes.refusals, *((ack,) if ack else ()))
        launches = self._enforcing.failed_launches
        start_s = max(self._window_start_s, now_s - MAX_WINDOW_S)
        observation = Observation(
            node=self.settings.node,
            boot=self.settings.boot,
            sequence=self._sequence,
            window_start_s=start_s,
            window_s=now_s - start_s,
            generation=self._ledger.generation,
            command_digest=self._ledger.digest,
            gpus=readings.gpus,
            replicas=launches.counted(as_commanded(readings.replicas)),
            services=readings.services,
            tasks=readings.tasks,
            acks=acks,
            agent_version=self.settings.version,
            problems=within_limits((*readings.problems, *self._problems())),
            repartition=self._governing.asks(),
            uses=readings.uses,
            failures=launches.take(readings.problems),
            launches=self._enforcing.launch_timer.take(),
            awaited=tuple(sorted(self._enforcing.awaited)),
        )
        self.outbox.add(sendable(observation))
        # The window moves on even where the device fails: its counts come with the next one.
        self._window_start_s = now_s
        self._notes.refusals.clear()
        # A problem of the lease that is over is told once.
        self._lease.reported()
        self._observed.set()

    async def sync(self, *, waits: bool) -> None:
        """Send everything that is not yet acknowledged, in order; the last answer may wait for the next observation.

        With a new command in force the newest is sent once more, which the control plane takes once: so that a command
        which follows soon need not wait for the next observation either. Raises TransportError (not Unacceptable: such
        an observation is given up, and says so in the next one).
        """
        asked = self.outbox.oldest()
        while asked is not None:
            # Only the newest may wait: older ones are late already.
            is_newest = len(self.outbox) <= 1
            left_s = self._next_observation_s() - self._clock.now_s()
            wait_s = max(0.0, left_s) if waits and is_newest else 0.0
            sent_s, before = self._clock.now_s(), self._ledger.generation
            try:
                reply = await self._transport.exchange(asked, wait_s=wait_s)
            except Unacceptable as error:
                log.error("observation %d is dropped: %s", asked.sequence, error)
                self.outbox.discard(asked.sequence)
                self._notes.sync_problem = f"an observation was dropped: {error}"
                asked = self.outbox.oldest()
                continue
            self._notes.sync_problem = ""
            await self._take(reply, sent_s)
            if reply.boot != self.settings.boot or reply.acknowledged < asked.sequence:
                return  # not durable yet: sent again with the next one
            newest, held = asked, self._ledger
            asked = self.outbox.oldest()
            if asked is None and waits and held.generation > before:
                asked = structs.replace(
                    newest, generation=held.generation, command_digest=held.digest
                )

    async def enforce(self) -> None:
        """Carry out what can be done now; a failing action is reported and tried again."""
        now_s = self._clock.now_s()
        self._lease.tick(now_s)
        if (command := self._wanted(now_s)) is not None:
            await self._enforcing.enforce(partial(self._in_force, command), now_s)

    async def govern(self) -> None:
        """Let every governor that is due take a step, whether the control plane is there or not."""
        async with self._hands:
            now_s = self._clock.now_s()
            if (command := self._wanted(now_s)) is not None:
                problems = await self._governing.step(command, now_s)
                if set(problems) - set(self._notes.governor_problems):
                    log.error("%s", "; ".join(problems))
                self._notes.governor_problems = problems

    async def guard(self) -> None:
        """Slow a GPU down that draws more than its power cap, unless its governor sees to that."""
        async with self._hands:
            now_s = self._clock.now_s()
            if (command := self._wanted(now_s)) is not None:
                command = self._governing.in_force(command, now_s)
                acting = self._governing.acting()
                self._notes.power_problems = await self._guard.step(command, acting)

    @property
    def next_govern_s(self) -> float:
        """When `govern` has something to do next, by the agent's clock; infinite while nothing is governed."""
        now_s = self._clock.now_s()
        command = self._wanted(now_s)
        return math.inf if command is None else self._governing.next_s(command, now_s)

    def _in_force(self, command: NodeCommand) -> NodeCommand:
        """The command with what governors and guard have turned."""
        command = self._governing.in_force(command, self._clock.now_s())
        return self._guard.in_force(command)

    def _wanted(self, now_s: float) -> NodeCommand | None:
        """The command in force, or what its lease leaves of it."""
        command = self._ledger.command
        return command if command is None else self._lease.in_force(command, now_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Do everything until `stop` is set; then say goodbye once. The device is left as it is."""
        loops = [self._observe_loop, self._sync_loop, self._enforce_loop]
        loops += [self._govern_loop, self._guard_loop]
        tasks = [asyncio.create_task(each()) for each in loops]
        # Waiting for `stop` together with the loops ends them at once, not at their next turn.
        stopper = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait(
                {*tasks, stopper}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # a loop only ends by an error
        finally:
            await cancel(*tasks, stopper)
        await self._observe_anyway()
        try:
            await self.sync(waits=False)
        # Whatever it is must not make an orderly end a failed one.
        except Exception as error:
            log.warning("could not sign off: %s", problem_of("syncing", error))

    def _next_observation_s(self) -> float:
        """The first multiple of the period that leaves at least half a period for the window.

        All agents cut their windows at the same moments, so that the control plane can add them up as they are.
        """
        period_s = self.settings.period_s
        next_s = period_s * math.ceil(self._window_start_s / period_s + 0.5)
        return min(next_s, self._window_start_s + self._enforcing.report_within_s)

    async def _observe_loop(self) -> None:
        while True:
            # Not sooner: a storm of changes must not become one of reports.
            await self._clock.sleep(MIN_WINDOW_S)
            left_s = self._next_observation_s() - self._clock.now_s()
            await sleep_unless(self._urgent, self._clock, left_s)
            await self._observe_anyway()

    async def _observe_anyway(self) -> None:
        """Observe; where that raises what was not foreseen, report the window without readings."""
        now_s = self._clock.now_s()
        if not await self._steps.take("observing", self.observe):
            # A node that tells nothing gets no command, not even the one that would end the cause.
            self._report(DeviceReadings(), self._enforcing.ack, now_s)

    async def _sync_loop(self) -> None:
        failures = 0
        while True:
            await self._observed.wait()
            self._observed.clear()
            try:
                await self.sync(waits=True)
                failures = 0
            # Whatever it is: the same observation is sent again later, and nothing but a reply brings another command.
            except Exception as error:
                failures += 1
                self._notes.sync_problem = problem_of("syncing", error)
                silent = error if isinstance(error, ControlPlaneSilent) else None
                asked_s = silent.retry_after_s if silent else 0.0
                wait_s = retry_s(failures, self._random, asked_s=asked_s)
                log.warning(
                    "sync failed %d times, next try in %.1f s: %s",
                    failures,
                    wait_s,
                    self._notes.sync_problem,
                    exc_info=not isinstance(error, FORESEEN),
                )
                await self._clock.sleep(wait_s)
                self._observed.set()

    async def _enforce_loop(self) -> None:
        while True:
            await self._steps.take("enforcing", self.enforce)
            period_s = self.settings.enforce_period_s
            await sleep_unless(self._changed, self._clock, period_s)

    async def _govern_loop(self) -> None:
        while True:
            due_s = min(
                self.next_govern_s - self._clock.now_s(), self.settings.enforce_period_s
            )
            await self._clock.sleep(max(0.0, due_s))
            # What failed may be due at once, for ever.
            if not await self._steps.take("governing", self.govern):
                await self._clock.sleep(self.settings.enforce_period_s)

    async def _guard_loop(self) -> None:
        while True:
            await self._clock.sleep(self.settings.enforce_period_s)
            await self._steps.take("guarding power caps", self.guard)

    async def _take(self, reply: SyncReply, sent_s: float) -> None:
        """Forget what is durable, renew the lease, and consider the command."""
        if reply.boot == self.settings.boot:
            self.outbox.acknowledge(reply.acknowledged)
        now_s = self._clock.now_s()
        self._skew.note(
            sent_s=sent_s, received_s=now_s, server_time_s=reply.server_time_s
        )
        # A lease that had ended left less of the command; enforcement must now bring that back.
        had_ended = self._lease.has_ended(now_s)
        self._lease.renew(reply.lease, now_s)
        ready = self._enforcing.note_ready_elsewhere(reply)
        if await self._acquittals.take(reply.acquitted) or had_ended or ready:
            self._changed.set()
        if reply.command is not None:
            await self.consider(reply.command)

    async def consider(self, command: NodeCommand) -> None:
        """Accept a command, or refuse it in the next observation. Simulations hand it over as a waiting sync would."""
        if command == self._ledger.command:
            return
        state = await self._device.state()
        # The ledger's objection comes first: an old generation is refused whatever it contains.
        reason = self._ledger.objection(command) or "; ".join(
            objections(command, self.settings.node, state.gpus)
        )
        if not reason:
            try:
                self._ledger.accept(command)
            except OSError as error:
                reason = f"the command cannot be saved to disk: {error}"
        if reason:
            log.error("generation %d is refused: %s", command.generation, reason)
            self._notes.refuse(command.generation, reason[:MAX_TEXT])
            return
        log.info("generation %d is in force", command.generation)
        # What failed under the old command may work under the new one, and must not wait for its back-off.
        self._enforcing.begin_anew()
        self._changed.set()

    def _problems(self) -> tuple[str, ...]:
        found = self._notes.problems(
            self._steps.problems,
            self._skew.problem,
            self._lease.problem,
            lost=self.outbox.dropped,
        )
        return (*filter(None, self._ledger.problems), *found)
