"""Which launches failed since the last observation: what the control plane needs to know to place them elsewhere.

A launch has failed where the device refused it, or its replica or task failed before it was up for HEALTHY_S. What was
up for longer and then ended is restarted where it is, and says nothing about its GPU; nor does what another agent
started.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from agents.base.device import GpuState, NodeState, Part
from agents.base.protocol import (
    MAX_LAUNCHES,
    MAX_TEXT,
    LaunchFailure,
    ReplicaReading,
    ReplicaState,
    TaskState,
)
from agents.base.successors import base_id

HEALTHY_S = 10.0
"""A crash loop is often ready for a moment, until the first request needs memory."""


@dataclass(slots=True)
class FailedLaunches:
    """Counted once each: what has failed stays so, and is seen so, until it is started again."""

    _found: list[LaunchFailure] = field(default_factory=list)
    _up_since_s: dict[Part, float] = field(default_factory=dict)
    _launched: set[Part] = field(default_factory=set)
    """Those that this agent started and that have not failed since: an earlier agent's may have served for days."""
    _starts: dict[Part, int] = field(default_factory=dict)
    """How often each was started since it was commanded, whatever became of it."""

    def look(self, state: NodeState, wanted: Collection[Part], now_s: float) -> None:
        """Judge what is there; `wanted`: what the command has, as others may fail while they end."""
        for gpu in state.gpus:
            # On a GPU that does not answer everything fails, and the plan leaves it anyway.
            for each in _present(gpu) if gpu.healthy else ():
                if each.state in ("ready", "running"):
                    self._up_since_s.setdefault(each.part, now_s)
                elif each.state == "failed" and each.part in self._launched:
                    self._launched.remove(each.part)
                    self._judge(each, gpu.index, wanted, now_s)
        self._starts = {
            part: count for part, count in self._starts.items() if part in wanted
        }
        present = {each.part for gpu in state.gpus for each in _present(gpu)}
        self._launched &= present
        self._up_since_s = {
            part: since_s
            for part, since_s in self._up_since_s.items()
            if part in present
        }

    def _judge(
        self,
        present: "_Present",
        gpu_index: int,
        wanted: Collection[Part],
        now_s: float,
    ) -> None:
        kind, name = present.part
        # One that was never seen up was so for 0 s.
        up_s = now_s - self._up_since_s.pop(present.part, now_s)
        if up_s < HEALTHY_S and (kind, base_id(name)) in wanted:
            self.note(name, present.service, gpu_index, "it ended by itself")

    def start(self, part: Part) -> None:
        """A launch begins: it may fail again."""
        kind, name = part
        base: Part = (kind, base_id(name))
        self._starts[base] = self._starts.get(base, 0) + 1
        self._launched.add(part)
        self._up_since_s.pop(part, None)

    def counted(self, readings: Iterable[ReplicaReading]) -> tuple[ReplicaReading, ...]:
        """The readings of commanded replicas, each with how often its replica was started again."""
        return tuple(
            structs.replace(each, restarts=starts - 1)
            if (starts := self._starts.get(("replica", each.id), 0)) > 1
            else each
            for each in readings
        )

    def note(self, name: str, service: str, gpu_index: int, detail: str) -> None:
        """One more; of too many the oldest are forgotten, since the newest say best what goes on."""
        failure = LaunchFailure(
            replica=base_id(name),
            service=service,
            gpu_index=gpu_index,
            detail=detail,
        )
        self._found = [*self._found, failure][-MAX_LAUNCHES:]

    def take(self, problems: Sequence[str]) -> tuple[LaunchFailure, ...]:
        """All since the last call, each with the device's own words on it where it has some."""
        found, self._found = self._found, []
        return tuple(_explained(each, problems) for each in found)


class _Present(NamedTuple):
    """A replica or task on a GPU."""

    part: Part
    service: str
    """Empty for a task."""
    state: ReplicaState | TaskState


def _present(gpu: GpuState) -> Iterator[_Present]:
    for replica in gpu.replicas:
        yield _Present(
            part=("replica", replica.id),
            service=replica.service,
            state=replica.state,
        )
    for task in gpu.tasks:
        yield _Present(part=("task", task.name), service="", state=task.state)


def _explained(failure: LaunchFailure, problems: Sequence[str]) -> LaunchFailure:
    """The failure with the first problem that is about it for its detail; with its own where there is none."""
    # The device's own words name the cause; ours often say only that it ended.
    about = (text for text in problems if _mentions(text, failure.replica))
    detail = next(about, failure.detail)
    # With a longer one the whole failure would be refused, and nothing be placed elsewhere.
    return structs.replace(failure, detail=detail[:MAX_TEXT])


def _mentions(text: str, replica: str) -> bool:
    """Whether a problem is about this replica or task, or about its successor (`…~8`), and not about one like `…10`."""
    return re.search(rf"(?<![\w.-]){re.escape(replica)}(?![\w-])", text) is not None
