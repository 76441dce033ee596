"""Enforcement on one node: look, act, look again, and say how far the command has come.

    enforcing = Enforcing(device, progress, handover_s=10.0)
    await enforcing.enforce(command, now_s)    # once a second, and at once after a new command
    enforcing.ack                              # what became of it

`agents.enforce` says what is to be done; here it is done, and what fails is held back for a while.
"""

import logging
from dataclasses import fields
from operator import attrgetter
from typing import TypeAlias

from agents.actions import Action, Start, StartTask, SwitchRoutes
from agents.backoff import Restarts
from agents.device import Device, DeviceError, GpuState, NodeState, Part, RunningReplica
from agents.enforce import actions, is_settled
from agents.perform import perform
from agents.progress import Progress
from agents.protocol import Ack, AckStatus, NodeCommand

LONGEST_DETAIL = 2000
MOST_ROUNDS = 4
"""Rounds of one enforcement: drain, stop, start follow at once where nothing is under way."""

log = logging.getLogger(__name__)

_Outline: TypeAlias = tuple[object, ...]
"""All of a node's state but the load on its replicas, and what strangers hold."""
_OF_GPU = attrgetter(*(each.name for each in fields(GpuState) if each.name not in ("replicas", "foreign_mib")))
_LOAD = ("in_flight", "draining_s")
_OF_REPLICA = attrgetter(*(each.name for each in fields(RunningReplica) if each.name not in _LOAD))


class Enforcing:
    """Not for two at once: what one of them has read must not change under it."""

    def __init__(self, device: Device, progress: Progress, *, handover_s: float) -> None:
        """`handover_s`: how long replicas that moved to another node serve on here."""
        self.ack: Ack | None = None
        self._device, self._progress, self._handover_s = device, progress, handover_s
        self._restarts = Restarts()
        self._unwanted_since_s: dict[str, float] = {}
        self._settled: tuple[NodeCommand, _Outline] | None = None
        """The command that was found carried out, and the node then: while only its load changes, it stays so."""

    def forget_failures(self) -> None:
        """Of a new command everything may be tried at once."""
        self._restarts.clear()

    async def enforce(self, command: NodeCommand, now_s: float) -> None:
        """Carry out what can be done now; a failing action is reported in `ack` and tried again. Raises DeviceError."""
        state = await self._device.state()
        if self._settled == (command, _without_load(state)):
            return
        failures: list[str] = []
        for _ in range(MOST_ROUNDS):
            self._restarts.look(state, now_s)
            held, handover = self._restarts.held(now_s), self._handover(command, state, now_s)
            todo = actions(command, state, held=held, handover=handover)
            if not todo:
                break
            failures = await self._perform(todo, now_s)
            state = await self._device.state()
            if failures:
                break
        failures += (f"{kind} {name}: {reason}" for (kind, name), reason in self._restarts.held(now_s).items())
        ack = _ack(command, state, failures)
        if ack != self.ack:
            level = logging.WARNING if ack.status == "failed" else logging.INFO
            log.log(level, "generation %d is %s. %s", ack.generation, ack.status, ack.detail)
        self.ack = ack
        self._settled = (command, _without_load(state)) if ack.status == "applied" else None

    async def _perform(self, todo: tuple[Action, ...], now_s: float) -> list[str]:
        """Carry actions out in their order; what failed, in words. What fails to start is held back."""
        failures = []
        for action in todo:
            try:
                await perform(self._device, self._progress.resumed(action))
            except DeviceError as error:
                if isinstance(action, Start | StartTask):
                    part: Part = (
                        ("replica", action.replica.id) if isinstance(action, Start) else ("task", action.task.name)
                    )
                    self._restarts.note_failure(part, now_s, reason=str(error))
                    continue
                failures.append(str(error))
                if isinstance(action, SwitchRoutes):
                    break  # what follows would drain replicas that still get requests
        return failures

    def _handover(self, command: NodeCommand, state: NodeState, now_s: float) -> set[str]:
        """Old replicas that have not been unwanted for long; a newer command does not start their time anew."""
        wanted = {replica.id for gpu in command.gpus for replica in gpu.replicas}
        unwanted = {each.id for gpu in state.gpus for each in gpu.replicas} - wanted
        self._unwanted_since_s = {each: self._unwanted_since_s.get(each, now_s) for each in unwanted}
        return {each for each in unwanted if now_s < self._unwanted_since_s[each] + self._handover_s}


def _ack(command: NodeCommand, state: NodeState, failures: list[str]) -> Ack:
    """How far the command has come."""
    lost = {gpu.index for gpu in state.gpus if not gpu.healthy}
    broken = [
        f"GPU {gpu.index} does not answer" for gpu in command.gpus if gpu.index in lost and (gpu.replicas or gpu.tasks)
    ]
    status: AckStatus = "applying"
    if failures or broken:
        status = "failed"
    elif is_settled(command, state):
        status = "applied"
    detail = "; ".join([*failures, *broken])[:LONGEST_DETAIL]
    return Ack(generation=command.generation, status=status, detail=detail)


def _without_load(state: NodeState) -> _Outline:
    return (state.routes, *((_OF_GPU(gpu), *map(_OF_REPLICA, gpu.replicas)) for gpu in state.gpus))
