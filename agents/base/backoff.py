"""Waiting longer after each failure, with jitter so that a fleet does not come back in step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from agents.base.device import NodeState, Part
from agents.base.protocol import ReplicaState, TaskState

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 3.0
"""A control plane that is back must hear from every node within the longest pause. Agents that get answers ask more
often, so that such a pause takes no load from it; one with too much to do says by `Retry-After` how long it needs."""


def delay_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """first, 2 · first, 4 · first … seconds after the first, second, third … failure in a row."""
    # The exponent is bounded, because 2.0 ** 1024 raises OverflowError.
    return float(min(longest_s, first_s * 2.0 ** min(failures - 1, 60)))


def jittered(seconds: float, random: Random) -> float:
    """Between half and all of it ("equal jitter")."""
    return seconds * random.uniform(0.5, 1.0)


def retry_s(failures: int, random: Random, *, asked_s: float = 0.0) -> float:
    """The pause before a sync is tried again; `asked_s`: what the control plane asked for, which it is not below.

    A fleet that was told the same pause comes back over as long again, not at its end.
    """
    own_s = jittered(
        delay_s(failures, first_s=RETRY_FIRST_S, longest_s=RETRY_LONGEST_S), random
    )
    return max(own_s, asked_s * random.uniform(1.0, 2.0))


@dataclass(slots=True)
class BackOff:
    """Seconds before a process that ended is started again; twice as many where it did not run for long."""

    FIRST_S: ClassVar[float] = 0.5
    LONGEST_S: ClassVar[float] = 30.0
    STEADY_S: ClassVar[float] = 60.0
    """What ran for as long did not end for want of something that is there now."""
    ends: int = 0
    """In a row, without a long run between."""

    def after(self, ran_s: float) -> float:
        """The pause after it ran for `ran_s`."""
        self.ends = 1 if ran_s >= self.STEADY_S else self.ends + 1
        return delay_s(self.ends, first_s=self.FIRST_S, longest_s=self.LONGEST_S)


class Restarts:
    """Which failed replicas and tasks must wait before they are started again."""

    FIRST_S = 5.0
    MAX_S = 300.0
    STEADY_S = 10.0
    """What was up for so long and then fails is started again at once, since its start is not what fails."""
    FORGOTTEN_S = 300.0
    """What is up for so long starts with a clean record: a replica may run out of memory at each first full batch."""

    def __init__(self) -> None:
        self._up_since_s: dict[Part, float] = {}
        self._adopted: set[Part] | None = None
        """Found at the first look, not failed or gone since: an earlier agent had them up, for an unknown time."""
        self._failures: dict[Part, int] = {}
        self._until_s: dict[Part, float] = {}
        self._reasons: dict[Part, str] = {}

    def look(self, state: NodeState, now_s: float) -> None:
        """Take note of what failed, what is coming up again, and what recovered."""
        before_s, self._up_since_s = self._up_since_s, {}
        if self._adopted is None:
            self._adopted = {part for part, _ in _states(state)}
        adopted = self._adopted
        for part, is_at in _states(state):
            up_since_s = before_s.get(part, -math.inf if part in adopted else now_s)
            # Counted once: a part that stays failed is seen at every look.
            if is_at == "failed" and part not in self._until_s:
                adopted.discard(part)
                self._note_end(part, now_s, up_s=now_s - up_since_s)
            elif is_at in ("starting", "ready", "running"):
                self._until_s.pop(part, None)
            # Failures are forgotten only after a long run: what is up for a moment may fail in the same way.
            if is_at in ("ready", "running") and now_s - up_since_s >= self.FORGOTTEN_S:
                self._failures.pop(part, None)
            if is_at not in ("starting", "failed"):
                self._up_since_s[part] = up_since_s
        # What is started later under the name of one that is gone is this agent's own.
        adopted &= {part for part, _ in _states(state)}

    def _note_end(self, part: Part, now_s: float, *, up_s: float) -> None:
        self.note_failure(part, now_s, reason="it ended by itself")
        # Once only: what fails again before it is forgotten waits longer each time.
        if up_s >= self.STEADY_S and self._failures[part] == 1:
            self._until_s[part] = now_s

    def note_failure(self, part: Part, now_s: float, *, reason: str) -> None:
        """One more failure: each doubles the wait."""
        self._reasons[part] = reason
        self._failures[part] = self._failures.get(part, 0) + 1
        wait_s = delay_s(
            self._failures[part], first_s=self.FIRST_S, longest_s=self.MAX_S
        )
        self._until_s[part] = now_s + wait_s

    def held(self, now_s: float) -> dict[Part, str]:
        """Replicas and tasks that must not be started yet, each with the reason of its last failure."""
        return {
            each: self._reasons[each]
            for each, until_s in self._until_s.items()
            if until_s > now_s
        }

    def clear(self) -> None:
        """A new command: everything may be tried at once."""
        self._failures.clear()
        self._until_s.clear()
        self._reasons.clear()


def _states(state: NodeState) -> Iterator[tuple[Part, ReplicaState | TaskState]]:
    for gpu in state.gpus:
        yield from (
            (("replica", replica.id), replica.state) for replica in gpu.replicas
        )
        yield from ((("task", task.name), task.state) for task in gpu.tasks)
