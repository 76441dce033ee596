"""Which replicas of one service are left out because they fail, and when they are asked whether they are well again.

    in ──cannot be connected to, or STRIKES failures in a row──▶ out ──a probe of its readiness succeeds──▶ in
                                                                     ──left by the table──▶ forgotten

Never all of a service's replicas are out: the last one stays in whatever it does, since no answer is no better than its
answers, and if the table leaves only those that are out, they are all in again. Probes follow PROBE_S after the replica
went out, and twice as late each time that it went out again without a good answer in between, at most MAX_PROBE_S.
"""

from agents.base.backoff import delay_s

STRIKES = 3
"""Answers of 5xx, or no whole answer, in a row."""
PROBE_S = 0.25
MAX_PROBE_S = 30.0


class ReplicaHealth:
    """What is known of one service's replicas."""

    def __init__(self) -> None:
        self._members: frozenset[str] = frozenset()
        self._strikes: dict[str, int] = {}
        self._falls: dict[str, int] = {}
        """How often a replica went out since it last answered well."""
        self._out: set[str] = set()

    @property
    def out(self) -> frozenset[str]:
        """Replicas that get nothing."""
        return frozenset(self._out)

    def set_members(self, replica_ids: frozenset[str]) -> None:
        """The replicas that take new requests from now on; what is known of others is forgotten."""
        self._members = replica_ids
        self._strikes = {
            each: count for each, count in self._strikes.items() if each in replica_ids
        }
        self._falls = {
            each: count for each, count in self._falls.items() if each in replica_ids
        }
        self._out &= replica_ids
        # When all that are left are out, trying them is better than sending nothing anywhere.
        if self._out == replica_ids:
            self._out.clear()

    def succeed(self, replica_id: str) -> None:
        """It answered well."""
        # Nearly every answer finds nothing to forget.
        if self._strikes or self._falls:
            self._strikes.pop(replica_id, None)
            self._falls.pop(replica_id, None)

    def fail(self, replica_id: str, *, is_unreachable: bool) -> bool:
        """It did not; whether it goes out now."""
        if replica_id not in self._members or replica_id in self._out:
            return False
        self._strikes[replica_id] = self._strikes.get(replica_id, 0) + 1
        is_enough = is_unreachable or self._strikes[replica_id] >= STRIKES
        # The last replica stays in: without it every request would fail for certain.
        if not is_enough or len(self._members - self._out) == 1:
            return False
        self._out.add(replica_id)
        self._falls[replica_id] = self._falls.get(replica_id, 0) + 1
        return True

    def readmit(self, replica_id: str) -> None:
        """Its probe succeeded. One more failure in a row is enough to send it out again."""
        self._out.discard(replica_id)
        self._strikes[replica_id] = STRIKES - 1

    def probe_in_s(self, replica_id: str) -> float:
        """How long to wait before the next probe."""
        return delay_s(
            max(1, self._falls.get(replica_id, 1)),
            first_s=PROBE_S,
            longest_s=MAX_PROBE_S,
        )
