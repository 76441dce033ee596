"""Waiting longer after each failure, with jitter so that a fleet does not come back in step."""

from collections.abc import Iterable
from random import Random

from agents.device import RunningReplica


def delay_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """first, 2 · first, 4 · first … seconds after the first, second, third … failure in a row."""
    return float(min(longest_s, first_s * 2.0 ** min(failures - 1, 60)))


def jittered(seconds: float, random: Random) -> float:
    """Between half and all of it ("equal jitter")."""
    return seconds * random.uniform(0.5, 1.0)


class Restarts:
    """Which failed replicas must wait before they are started again."""

    FIRST_S = 5.0
    LONGEST_S = 300.0

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until_s: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def look(self, replicas: Iterable[RunningReplica], now_s: float) -> None:
        """Take note of what failed, what is coming up again, and what recovered."""
        for replica in replicas:
            if replica.state == "failed" and replica.id not in self._until_s:
                self.note_failure(replica.id, now_s, reason="it ended by itself")
            elif replica.state in ("starting", "ready"):
                self._until_s.pop(replica.id, None)
            if replica.state == "ready":
                self._failures.pop(replica.id, None)

    def note_failure(self, replica_id: str, now_s: float, *, reason: str) -> None:
        """One more failure: each doubles the wait."""
        self._reasons[replica_id] = reason
        self._failures[replica_id] = self._failures.get(replica_id, 0) + 1
        wait_s = delay_s(self._failures[replica_id], first_s=self.FIRST_S, longest_s=self.LONGEST_S)
        self._until_s[replica_id] = now_s + wait_s

    def held(self, now_s: float) -> dict[str, str]:
        """Replicas that must not be started yet, each with the reason of its last failure."""
        return {each: self._reasons[each] for each, until_s in self._until_s.items() if until_s > now_s}

    def clear(self) -> None:
        """A new command: everything may be tried at once."""
        self._failures.clear()
        self._until_s.clear()
        self._reasons.clear()
