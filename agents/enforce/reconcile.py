"""Enforcement on one node: look, act, look again, and say how far the command has come.

    enforcing = Enforcing(device, progress, hands=asyncio.Lock(), limits=AgentSettings(...))
    await enforcing.enforce(in_force, now_s)   # once a second, and at once after a new command
    enforcing.ack                              # what became of it

`agents.enforce.diff` says what is to be done; here it is done, and what fails is held back for a while. Starts come
last and without `hands`: one may wait long for the MPS of its GPU, and governors and the guard of power caps act
meanwhile. What is in force is asked again in each round, so that what they have turned stays turned.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Protocol, TypeAlias

from agents.base.backoff import Restarts
from agents.base.device import (
    Device,
    DeviceError,
    GpuState,
    NodeState,
    Part,
    RunningReplica,
)
from agents.base.protocol import (
    MAX_TEXT,
    Ack,
    AckStatus,
    NodeCommand,
    SyncReply,
)
from agents.enforce.actions import (
    Action,
    StartReplica,
    StartTask,
    SwitchRoutes,
    perform,
)
from agents.enforce.admission import missing_gpus
from agents.enforce.diff import actions, is_settled
from agents.enforce.diff_routes import planned_here_alone
from agents.enforce.failed_launches import FailedLaunches
from agents.enforce.launch_timer import LaunchTimer
from agents.enforce.progress import Progress

_STARTS = (StartReplica, StartTask)
MAX_ROUNDS = 4
"""Rounds of one enforcement: drain, stop, start follow at once where nothing is under way."""
STRANDED_S = 0.2

log = logging.getLogger(__name__)

_Outline: TypeAlias = tuple[object, ...]
"""All of a node's state but the load on its replicas, and what foreign processes hold."""
_OF_GPU = attrgetter(
    *(
        each.name
        for each in fields(GpuState)
        if each.name not in ("replicas", "foreign_mib")
    )
)
_LOAD = ("in_flight", "draining_s")
_OF_REPLICA = attrgetter(
    *(each.name for each in fields(RunningReplica) if each.name not in _LOAD)
)


MODEL_LIMIT_S = 1800.0
"""A language model's replica that moves serves on so long at most: as long as the longest drain."""


class MoveLimits(Protocol):
    """How long old replicas serve on; in seconds of the agent's clock."""

    @property
    def migration_limit_s(self) -> float:
        """Those that moved to another node, where it is not said that their successors are ready."""
        ...

    @property
    def leaving_s(self) -> float:
        """The last ones of a service, after balancers are told that the node does not serve it."""
        ...


class PassesOn(Protocol):
    """A router whose waiting requests other nodes can be given."""

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        """Send what waits for a service there; without any address it is refused."""
        ...


class Enforcing:
    """Enforcement of one node; two at once take turns."""

    def __init__(
        self,
        device: Device,
        progress: Progress,
        *,
        hands: asyncio.Lock,
        limits: MoveLimits,
    ) -> None:
        """`hands`: held while something but a start is done."""
        self.ack: Ack | None = None
        self._moving: frozenset[str] = frozenset()
        self._stranded: frozenset[str] = frozenset()
        self._device, self._progress, self._limits = device, progress, limits
        self._hands, self._turn = hands, asyncio.Lock()
        self._restarts = Restarts()
        self.failed_launches = FailedLaunches()
        self.launch_timer = LaunchTimer()
        self._unwanted_since_s: dict[str, float] = {}
        self._ready_elsewhere: frozenset[str] = frozenset()
        self._leaving_since_s: dict[str, float] = {}
        self._settled: tuple[NodeCommand, _Outline] | None = None
        """The command that was found carried out, and the node then: while only its load changes, it stays so."""

    @property
    def awaited(self) -> frozenset[str]:
        """Services that are served here, or whose requests wait here, until replicas on other nodes are ready."""
        return self._moving | self._stranded

    @property
    def report_within_s(self) -> float:
        """What waits here for a replica on another node goes on when the answer to a report says that it is ready."""
        return STRANDED_S if self._stranded else math.inf

    def begin_anew(self) -> None:
        """Forget what failed and what was said to be ready elsewhere, since there is a new command."""
        self._restarts.clear()
        self._ready_elsewhere = frozenset()

    def note_ready_elsewhere(self, reply: SyncReply) -> bool:
        """The control plane says which services need not be served on here; whether one of them was. What waits here
        for one of them is passed on where the control plane says to whom: one at rest, it starts somewhere first."""
        found = frozenset(reply.ready_elsewhere or ())
        self._ready_elsewhere |= found
        # Only devices that take requests have what waits.
        router: PassesOn | None = getattr(self._device, "router", None)
        carriers = reply.carriers or {}
        for service in sorted(carriers.keys() & found & self._stranded):
            if router is not None:
                router.pass_on(service, carriers[service])
        return bool(found & self._moving)

    async def enforce(self, in_force: Callable[[], NodeCommand], now_s: float) -> None:
        """Carry out what can be done now; a failing action is reported in `ack` and tried again. Raises DeviceError."""
        async with self._turn:
            await self._enforce(in_force, now_s)

    async def _enforce(self, in_force: Callable[[], NodeCommand], now_s: float) -> None:
        for at in range(MAX_ROUNDS):
            async with self._hands:
                command = in_force()
                state = await self._device.state()
                self._stranded = frozenset(state.stranded)
                if at == 0 and self._settled == (command, _without_load(state)):
                    return
                todo = self._todo(command, state, now_s)
                starts = [each for each in todo if isinstance(each, _STARTS)]
                failures = await self._set(
                    each for each in todo if not isinstance(each, _STARTS)
                )
            # Starts may take long, so they do not keep governors and guard from the device.
            await self._start(starts, now_s)
            # A round that failed would fail again at once; the next enforcement tries again.
            if failures or not todo:
                break
        if todo:
            command = in_force()
            state = await self._device.state()
        self._report(command, state, failures, now_s)

    def _todo(
        self, command: NodeCommand, state: NodeState, now_s: float
    ) -> tuple[Action, ...]:
        self._restarts.look(state, now_s)
        self.failed_launches.look(state, _wanted(command), now_s)
        self.launch_timer.look(state, now_s)
        held = self._restarts.held(now_s)
        return actions(
            command,
            state,
            held=held,
            migrating=self._migrating(command, state, now_s),
            leaving=self._leaving(state, now_s),
        )

    async def _set(self, todo: Iterable[Action]) -> list[str]:
        """Carry actions out in their order; what failed, in words."""
        failures = []
        for action in todo:
            try:
                await perform(self._device, action)
            except DeviceError as error:
                failures.append(str(error))
                if isinstance(action, SwitchRoutes):
                    break  # what follows would drain replicas that still get requests
        return failures

    async def _start(
        self, starts: Iterable[StartReplica | StartTask], now_s: float
    ) -> None:
        """Start replicas and tasks; one that fails is held back."""
        for start in starts:
            part: Part
            if isinstance(start, StartReplica):
                part = ("replica", start.replica.id)
                service = start.replica.service
                self.launch_timer.start(start.replica.id, now_s)
            else:
                part = ("task", start.task.name)
                service = ""
            self.failed_launches.start(part)
            try:
                await perform(self._device, self._progress.resumed(start))
            except DeviceError as error:
                self._restarts.note_failure(part, now_s, reason=str(error))
                self.failed_launches.note(part[1], service, start.gpu_index, str(error))

    def _report(
        self, command: NodeCommand, state: NodeState, failures: list[str], now_s: float
    ) -> None:
        """Say how far the command has come."""
        held = self._restarts.held(now_s)
        # What is held back must show in the answer, else the command would seem to hang without a reason.
        reasons = (f"{kind} {name}: {reason}" for (kind, name), reason in held.items())
        ack = _ack(command, state, [*failures, *reasons])
        if ack != self.ack:
            level = logging.WARNING if ack.status == "failed" else logging.INFO
            log.log(
                level, "generation %d is %s. %s", ack.generation, ack.status, ack.detail
            )
        self.ack = ack
        is_done = ack.status == "applied"
        self._settled = (command, _without_load(state)) if is_done else None

    def _migrating(
        self, command: NodeCommand, state: NodeState, now_s: float
    ) -> set[str]:
        """Old replicas whose successors are not known to be ready; a newer command does not restart their time."""
        wanted = {replica.id for gpu in command.gpus for replica in gpu.replicas}
        unwanted = {
            each.id: each
            for gpu in state.gpus
            for each in gpu.replicas
            if each.id not in wanted
        }
        self._unwanted_since_s = {
            each: self._unwanted_since_s.get(each, now_s) for each in unwanted
        }
        migrating = [
            each
            for each in unwanted.values()
            if each.state == "ready"
            and each.service not in self._ready_elsewhere
            and now_s < self._unwanted_since_s[each.id] + self._limit_s(each)
        ]
        self._moving = frozenset(
            each.service for each in migrating
        ) - planned_here_alone(command)
        return {each.id for each in migrating}

    def _limit_s(self, each: RunningReplica) -> float:
        """How long an old replica serves on at most."""
        limit_s = self._limits.migration_limit_s
        # Only language models have a drain of their own. Their successors load weights for minutes.
        return limit_s if each.drain_s is None else max(limit_s, MODEL_LIMIT_S)

    def _leaving(self, state: NodeState, now_s: float) -> set[str]:
        """Services that balancers may still send here: all but those whose leaving they have had the time to see."""
        leaving = [route.service for route in state.routes if route.is_leaving]
        self._leaving_since_s = {
            each: self._leaving_since_s.get(each, now_s) for each in leaving
        }
        return {
            route.service
            for route in state.routes
            if now_s
            < self._leaving_since_s.get(route.service, now_s) + self._limits.leaving_s
        }


def _wanted(command: NodeCommand) -> set[Part]:
    """All replicas and tasks of a command."""
    wanted: set[Part] = set()
    for gpu in command.gpus:
        for replica in gpu.replicas:
            wanted.add(("replica", replica.id))
        for task in gpu.tasks:
            wanted.add(("task", task.name))
    return wanted


def _ack(command: NodeCommand, state: NodeState, failures: list[str]) -> Ack:
    """How far the command has come."""
    # An empty GPU that does not answer keeps no part of the command from being carried out.
    lost = {gpu.index for gpu in state.gpus if not gpu.healthy}
    broken = [
        f"GPU {gpu.index} does not answer"
        for gpu in command.gpus
        if gpu.index in lost and (gpu.replicas or gpu.tasks)
    ]
    broken += missing_gpus(command, state.gpus)
    status: AckStatus = "applying"
    if failures or broken:
        status = "failed"
    elif is_settled(command, state):
        status = "applied"
    detail = "; ".join([*failures, *broken])[:MAX_TEXT]
    return Ack(generation=command.generation, status=status, detail=detail)


def _without_load(state: NodeState) -> _Outline:
    return (
        state.routes,
        *((_OF_GPU(gpu), *map(_OF_REPLICA, gpu.replicas)) for gpu in state.gpus),
    )
