"""One replica's queue, advanced through windows of trace time in compiled code, never by sleeping.

A free replica takes min(waiting, batch) requests at once; its batch runs for the table's time of that many items times
a noise draw. The queue holds at most its capacity, running requests included; what comes to a full queue is rejected.
So is, unless told otherwise, what cannot finish within the SLO any more even if nothing joined its batch: it would miss
the SLO anyway, and would only make others late. An overloaded replica thus goes on serving what it can.

A request counts when its batch has finished, so that at any moment arrivals = served + rejected + queued. The state
lives in arrays that carry over from window to window, and no cut of the time axis changes the result.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.protocol import BUCKET_COUNT, BUCKETS_PER_DOUBLING, SMALLEST_BUCKET_MS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOISE_DRAWS = 4096
"""Execution time factors drawn ahead per replica; they are used in turn, for ever."""

# Positions in the state arrays of a queue.
_HEAD, _LENGTH, _RUNNING, _DRAWN = 0, 1, 2, 3
_SERVED, _IN_SLO, _REJECTED = 0, 1, 2
_BATCHES, _REQUESTS, _EXECUTION_S, _BUSY_S, _ENERGY_J = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a replica executes, and at what power, as long as nothing on its GPU changes."""

    batch: int
    """Largest batch that it takes at once."""
    batch_s: Floats
    """(n,) mean execution time by batch size, n > batch; entry 0 is not used."""
    batch_w: Floats
    """(n,) watts that it adds to its GPU while such a batch runs."""
    slo_s: float
    sheds_late: bool = True
    """Whether requests that cannot make the SLO are rejected on arrival."""


class ServiceTally:
    """Counts of one service on one node since the last reading."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.counts: Ints = np.zeros(3, np.int64)
        self.buckets: Ints = np.zeros(BUCKET_COUNT, np.int64)

    @property
    def served(self) -> int:
        """Requests finished."""
        return int(self.counts[_SERVED])

    @property
    def in_slo(self) -> int:
        """Requests finished within the SLO."""
        return int(self.counts[_IN_SLO])

    @property
    def rejected(self) -> int:
        """Requests refused or lost."""
        return int(self.counts[_REJECTED])

    def reject(self, requests: int) -> None:
        """Count requests that will never be served."""
        self.counts[_REJECTED] += requests

    def add(self, other: "ServiceTally") -> None:
        """Add another tally to this one."""
        self.arrivals += other.arrivals
        self.counts += other.counts
        self.buckets += other.buckets


class ReplicaQueue:
    """The queue and the running batch of one replica."""

    def __init__(self, *, capacity: int, noise: Floats) -> None:
        """`noise`: (n,) factors on the execution time, used in turn."""
        self._queue: Floats = np.zeros(capacity)
        self._cursor: Ints = np.zeros(4, np.int64)
        self._times: Floats = np.zeros(2)
        self._noise = noise
        self._work: Floats = np.zeros(5)

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return int(self._cursor[_LENGTH])

    @property
    def batches(self) -> int:
        """Batches finished in the window."""
        return int(self._work[_BATCHES])

    @property
    def requests(self) -> int:
        """Requests finished in the window."""
        return int(self._work[_REQUESTS])

    @property
    def execution_s(self) -> float:
        """Summed execution time of those batches."""
        return float(self._work[_EXECUTION_S])

    @property
    def busy_s(self) -> float:
        """Time of the window in which a batch ran."""
        return float(self._work[_BUSY_S])

    @property
    def energy_j(self) -> float:
        """Energy of the window above idle."""
        return float(self._work[_ENERGY_J])

    def advance(
        self, window: tuple[float, float], arrivals: tuple[Floats, Floats], pace: Pace, tally: ServiceTally
    ) -> None:
        """Move through [start, end) of trace time.

        `arrivals`: for each request when it reaches the queue (ascending, within the window) and when it reached the
        router (from which its latency counts).
        """
        reached, since = arrivals
        _advance(
            (self._queue, self._cursor, self._times, self._work),
            (reached, since),
            window,
            (pace.batch, pace.batch_s, pace.batch_w, pace.slo_s, pace.slo_s if pace.sheds_late else np.inf),
            self._noise,
            (tally.counts, tally.buckets),
        )

    def drop(self) -> int:
        """Lose everything that waits or runs; returns how many requests that were."""
        lost = self.in_flight
        self._cursor[_LENGTH] = 0
        self._cursor[_RUNNING] = 0
        return lost

    def new_window(self) -> None:
        """Start counting work anew."""
        self._work[:] = 0.0


def draw_noise(random: np.random.Generator, deviation: float) -> Floats:
    """(NOISE_DRAWS,) log-normal factors of mean 1 and the given standard deviation."""
    variance = np.log1p(deviation**2)
    return random.lognormal(-variance / 2.0, np.sqrt(variance), NOISE_DRAWS)


@njit(cache=True)  # type: ignore[untyped-decorator]
def bucket_of_s(latency_s: float) -> int:
    """agents.protocol.bucket_of for seconds; a test holds the two together."""
    latency_ms = 1000.0 * latency_s
    if latency_ms <= SMALLEST_BUCKET_MS:
        return 0
    return min(BUCKET_COUNT - 1, int(np.ceil(BUCKETS_PER_DOUBLING * np.log2(latency_ms / SMALLEST_BUCKET_MS))))


@njit(cache=True)
def _admit(state, arrivals, position, until_s, pace, counts):  # type: ignore[no-untyped-def]
    """Queue the arrivals up to and including `until_s`; returns the position of the next one."""
    queue, cursor, times, _ = state
    reached, since = arrivals
    batch, batch_s, _, _, shed_s = pace
    while position < len(reached) and reached[position] <= until_s:
        waiting = cursor[_LENGTH] - cursor[_RUNNING]
        ahead_s = (waiting // batch) * batch_s[batch] + batch_s[waiting % batch + 1]
        finish_s = max(times[0], reached[position]) + ahead_s
        if cursor[_LENGTH] < len(queue) and finish_s - since[position] <= shed_s:
            queue[(cursor[_HEAD] + cursor[_LENGTH]) % len(queue)] = since[position]
            cursor[_LENGTH] += 1
        else:
            counts[_REJECTED] += 1
        position += 1
    return position


@njit(cache=True)
def _finish(state, slo_s, tallies):  # type: ignore[no-untyped-def]
    """Count the running batch and take it off the queue."""
    queue, cursor, times, work = state
    counts, buckets = tallies
    finish_s = times[0]
    for _ in range(cursor[_RUNNING]):
        latency_s = finish_s - queue[cursor[_HEAD]]
        cursor[_HEAD] = (cursor[_HEAD] + 1) % len(queue)
        buckets[bucket_of_s(latency_s)] += 1
        if latency_s <= slo_s:
            counts[_IN_SLO] += 1
    counts[_SERVED] += cursor[_RUNNING]
    work[_BATCHES] += 1.0
    work[_REQUESTS] += cursor[_RUNNING]
    work[_EXECUTION_S] += finish_s - times[1]
    cursor[_LENGTH] -= cursor[_RUNNING]
    cursor[_RUNNING] = 0


@njit(cache=True)
def _advance(state, arrivals, window, pace, noise, tallies):  # type: ignore[no-untyped-def]
    """times[0]: when the running batch finishes, or the earliest moment of the next start; times[1]: its start."""
    _, cursor, times, work = state
    reached, _ = arrivals
    start_s, end_s = window
    batch, batch_s, batch_w, slo_s, _ = pace
    counts, _ = tallies
    position = 0
    while True:
        if cursor[_RUNNING] > 0:
            # What arrives at the very moment of the finish is in time for the next batch.
            position = _admit(state, arrivals, position, min(times[0], end_s), pace, counts)
            busy_s = min(times[0], end_s) - max(times[1], start_s)
            work[_BUSY_S] += busy_s
            work[_ENERGY_J] += busy_s * batch_w[cursor[_RUNNING]]
            if times[0] >= end_s:
                return
            _finish(state, slo_s, tallies)
            now_s = times[0]
        elif cursor[_LENGTH] == 0:
            if position == len(reached):
                return
            now_s = reached[position]
        else:
            now_s = max(times[0], start_s)
        position = _admit(state, arrivals, position, now_s, pace, counts)
        if cursor[_LENGTH] > 0:
            take = min(cursor[_LENGTH], batch)
            cursor[_RUNNING] = take
            times[1] = now_s
            times[0] = now_s + batch_s[take] * noise[cursor[_DRAWN] % len(noise)]
            cursor[_DRAWN] += 1
