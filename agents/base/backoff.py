"""Waiting longer after each failure, with jitter so that a fleet does not come back in step."""

from collections.abc import Iterator
from random import Random

from agents.base.device import NodeState, Part
from agents.base.protocol import ReplicaState, TaskState

RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 10.0
"""The longest pause is below the silence after which the control plane counts a node as lost (15 s unless set)."""


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


class Restarts:
    """Which failed replicas and tasks must wait before they are started again."""

    FIRST_S = 5.0
    MAX_S = 300.0

    def __init__(self) -> None:
        self._failures: dict[Part, int] = {}
        self._until_s: dict[Part, float] = {}
        self._reasons: dict[Part, str] = {}

    def look(self, state: NodeState, now_s: float) -> None:
        """Take note of what failed, what is coming up again, and what recovered."""
        for part, is_at in _states(state):
            # Counted once: a part that stays failed is seen at every look.
            if is_at == "failed" and part not in self._until_s:
                self.note_failure(part, now_s, reason="it ended by itself")
            elif is_at in ("starting", "ready", "running"):
                self._until_s.pop(part, None)
            # Failures are forgotten only when it came up: a part that merely starts again may fail in the same way.
            if is_at in ("ready", "running"):
                self._failures.pop(part, None)

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
