"""One replica's queue, advanced through windows of trace time in compiled code, never by sleeping.

A free replica takes min(waiting, batch) requests at once; its batch runs for the table's time of that many items times
a noise draw. The queue holds at most its capacity, running requests included; what comes to a full queue is rejected.
So is, unless told otherwise, what cannot finish within the SLO any more: on arrival, even if nothing joined its batch,
and again when its batch begins, with all that joined it. It would miss the SLO anyway, and would only make others late.
So an overloaded replica goes on serving what it can.

With a batch timeout it waits for a full batch, but no longer than until the oldest request has waited that long.

A request counts when its batch has finished, so that at any moment arrivals = served + rejected + queued; and the time
that requests spend here is summed twice, once as a level over time and once per request, so that Little's law can be
held against every run. The state lives in arrays that carry over from window to window, and no cut of the time axis
changes the result.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from agents.base.latency_buckets import MIN_BUCKET_MS
from agents.sim.queues.tally import (
    FINE_COUNT,
    FINE_PER_DOUBLING,
    IN_SLO,
    PRESENT_S,
    REJECTED,
    SERVED,
    SOJOURN_S,
    Floats,
    Ints,
    ServiceTally,
)

HEAD, LENGTH, RUNNING, DRAWN = 0, 1, 2, 3
"""Positions in the cursor of a queue."""
_BATCHES, _REQUESTS, _EXECUTION_S, _BUSY_S, _ENERGY_J = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPace:
    """How fast a replica executes, and at what power, as long as nothing on its GPU changes."""

    batch: int
    """Largest batch that it takes at once."""
    batch_s: Floats
    """(n,) mean execution time by batch size, n > batch; entry 0 is not used."""
    batch_w: Floats
    """(n,) watts that it adds to its GPU while such a batch runs."""
    slo_s: float
    sheds_late: bool = True
    """Whether requests that cannot make the SLO are rejected."""
    timeout_s: float = 0.0
    """How long the oldest request waits for others to fill its batch; 0 = not at all."""
    stall_s: float = 0.0
    """Mean stall of a batch that stalls (`draw_stalls`)."""


class QueueRun(NamedTuple):
    """One replica in one window, as the kernels take it: they change the arrays of its queue and tally in place.

    It is flat, because each level of tuples costs compiled code a reference count per array and access.
    """

    ring: Floats
    """(capacity,) arrival times at the router; `cursor` says where the oldest lies and how many there are."""
    cursor: Ints
    times: Floats
    """(2,) when the running batch finishes, or the earliest moment of the next start; and its start."""
    work: Floats
    """(5,) what was done in the window."""
    batch: int
    batch_s: Floats
    batch_w: Floats
    slo_s: float
    shed_s: float
    """Requests that would take longer are rejected; infinite where none is."""
    timeout_s: float
    stall_s: float
    noise: Floats
    """(2, n) factors on the execution time, and stalls over their mean; used in turn."""
    counts: Ints
    fine: Ints
    sums: Floats
    start_s: float
    end_s: float


class Requests(NamedTuple):
    """What reaches one queue in a window, in order."""

    reached_s: Floats
    """(n,) when each reaches the queue."""
    since_s: Floats
    """(n,) when it reached the router, from which its latency counts."""


class ReplicaQueue:
    """The queue and the running batch of one replica."""

    def __init__(
        self, *, capacity: int, noise: Floats, stalls: Floats | None = None
    ) -> None:
        """`noise` and `stalls`: (n,) factors on the execution time and stalls over their mean, used in turn."""
        self._ring: Floats = np.zeros(capacity)
        self._cursor: Ints = np.zeros(4, np.int64)
        self._times: Floats = np.zeros(2)
        self._work: Floats = np.zeros(5)
        self.noise = np.vstack(
            [noise, np.zeros_like(noise) if stalls is None else stalls]
        )

    @property
    def state(self) -> tuple[Floats, Ints, Floats, Floats]:
        """The first four fields of a `QueueRun`."""
        return self._ring, self._cursor, self._times, self._work

    @property
    def in_flight(self) -> int:
        """Requests that wait or run."""
        return int(self._cursor[LENGTH])

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
        self,
        window: tuple[float, float],
        arrivals: tuple[Floats, Floats],
        pace: ExecutionPace,
        tally: ServiceTally,
    ) -> None:
        """Move through [start, end) of trace time; `arrivals` as in `Requests`, ascending and within the window."""
        # Plain tuples: a call hands those over in a third of the time that named ones take.
        parts = self.state, numbers(pace), self.noise, arrays(tally)
        _advance(parts, window, arrivals)

    def age_s(self, now_s: float) -> float:
        """Summed time since the arrival of all that waits or runs."""
        return float(np.sum(now_s - self._arrived_s))

    def count_older(self, before_s: float) -> int:
        """Requests that wait or run and arrived before a moment."""
        return int(np.sum(self._arrived_s < before_s))

    @property
    def _arrived_s(self) -> Floats:
        # A ring: the oldest request is at HEAD, and places go on at the array's beginning.
        places = (self._cursor[HEAD] + np.arange(self.in_flight)) % len(self._ring)
        return np.asarray(self._ring[places])

    def drop(self) -> int:
        """Lose everything that waits or runs; returns how many requests that were."""
        lost = self.in_flight
        self._cursor[LENGTH] = 0
        self._cursor[RUNNING] = 0
        return lost

    def new_window(self) -> None:
        """Start counting work again."""
        self._work[:] = 0.0


@njit(cache=True)  # type: ignore[untyped-decorator]
def fine_bucket_of_s(latency_s: float) -> int:
    """The fine bucket (`tally`) of a latency."""
    ratio = 1000.0 * latency_s / MIN_BUCKET_MS
    if ratio <= 1.0:
        return 0
    return min(FINE_COUNT - 1, int(np.ceil(FINE_PER_DOUBLING * np.log2(ratio))))


def numbers(
    pace: ExecutionPace,
) -> tuple[int, Floats, Floats, float, float, float, float]:
    """A pace as a `QueueRun` has it: batch, batch_s, batch_w, slo_s, shed_s, timeout_s, stall_s."""
    return (
        pace.batch,
        pace.batch_s,
        pace.batch_w,
        pace.slo_s,
        pace.slo_s if pace.sheds_late else np.inf,
        pace.timeout_s,
        pace.stall_s,
    )


def arrays(tally: ServiceTally) -> tuple[Ints, Ints, Floats]:
    """A tally as a `QueueRun` has it: counts, fine, sums."""
    return tally.counts, tally.fine, tally.sums


# numba itself puts these functions into their callers: handing a run over would count a reference to each array.
@njit(cache=True, inline="always")
def make_run(parts, window):  # type: ignore[no-untyped-def]
    """One replica in a window, from its queue's state, its pace, its noise and its tally."""
    (
        (ring, cursor, times, work),
        (batch, batch_s, batch_w, slo_s, shed_s, timeout_s, stall_s),
        noise,
        (counts, fine, sums),
    ) = parts
    start_s, end_s = window
    return QueueRun(
        ring,
        cursor,
        times,
        work,
        batch,
        batch_s,
        batch_w,
        slo_s,
        shed_s,
        timeout_s,
        stall_s,
        noise,
        counts,
        fine,
        sums,
        start_s,
        end_s,
    )


@njit(cache=True, inline="always")
def admit(run, requests, position, until_s, max_length):  # type: ignore[no-untyped-def]
    """Queue requests up to and including `until_s`, until `max_length` are here; the position of the next one."""
    ring, cursor, counts, sums = run.ring, run.cursor, run.counts, run.sums
    batch, batch_s, shed_s, end_s = run.batch, run.batch_s, run.shed_s, run.end_s
    reached_s, since_s = requests
    # In variables of its own, counted on without divisions, a request takes half as long.
    free_s = run.times[0]
    full_s = batch_s[batch]
    present_s = sums[PRESENT_S]
    length = cursor[LENGTH]
    full, rest = divmod(length - cursor[RUNNING], batch)
    place = (cursor[HEAD] + length) % len(ring)
    while (
        position < len(reached_s)
        and reached_s[position] <= until_s
        and length < max_length
    ):
        # Full batches first, then the one that this request joins: the best that it can hope for.
        ahead_s = full * full_s + batch_s[rest + 1]
        finish_s = max(free_s, reached_s[position]) + ahead_s
        if length < len(ring) and finish_s - since_s[position] <= shed_s:
            ring[place] = since_s[position]
            place = _next(place, len(ring))
            length += 1
            rest = _next(rest, batch)
            full += rest == 0
            # Counted as if it stayed until the window's end; taking it out gives the rest back.
            present_s += end_s - reached_s[position]
        else:
            counts[REJECTED] += 1
            sums[SOJOURN_S] += reached_s[position] - since_s[position]
        position += 1
    cursor[LENGTH], sums[PRESENT_S] = length, present_s
    return position


@njit(cache=True)
def _next(place, size):  # type: ignore[no-untyped-def]
    """The next place of a ring."""
    # A comparison, as a division takes many times as long.
    return place + 1 if place + 1 < size else 0


@njit(cache=True, inline="always")
def finish(run):  # type: ignore[no-untyped-def]
    """Count the running batch and take it off the queue."""
    ring, cursor, times, work = run.ring, run.cursor, run.times, run.work
    counts, fine, sums, slo_s = run.counts, run.fine, run.sums, run.slo_s
    finish_s, head, sojourn_s, in_slo = times[0], cursor[HEAD], sums[SOJOURN_S], 0
    for _ in range(cursor[RUNNING]):
        latency_s = finish_s - ring[head]
        head = _next(head, len(ring))
        fine[fine_bucket_of_s(latency_s)] += 1
        sojourn_s += latency_s
        in_slo += latency_s <= slo_s
    cursor[HEAD], sums[SOJOURN_S] = head, sojourn_s
    counts[IN_SLO] += in_slo
    counts[SERVED] += cursor[RUNNING]
    # They were counted as present until the window's end.
    sums[PRESENT_S] -= cursor[RUNNING] * (run.end_s - finish_s)
    work[_BATCHES] += 1.0
    work[_REQUESTS] += cursor[RUNNING]
    work[_EXECUTION_S] += finish_s - times[1]
    cursor[LENGTH] -= cursor[RUNNING]
    cursor[RUNNING] = 0


@njit(cache=True, inline="always")
def run_until_end(run):  # type: ignore[no-untyped-def]
    """Account for the running batch's part of the window; whether it ends later."""
    times, work = run.times, run.work
    busy_s = min(times[0], run.end_s) - max(times[1], run.start_s)
    work[_BUSY_S] += busy_s
    work[_ENERGY_J] += busy_s * run.batch_w[run.cursor[RUNNING]]
    return times[0] >= run.end_s


@njit(cache=True, inline="always")
def start(run, now_s):  # type: ignore[no-untyped-def]
    """Take what waits and can be in time, at most a batch, and run it; how many requests were too late."""
    ring, cursor, times, sums = run.ring, run.cursor, run.times, run.sums
    batch, batch_s, shed_s = run.batch, run.batch_s, run.shed_s
    late, take = 0, min(cursor[LENGTH], batch)
    # The oldest first: without it the batch may be smaller, and those behind it in time.
    while take > 0 and now_s + batch_s[take] - ring[cursor[HEAD]] > shed_s:
        sums[SOJOURN_S] += now_s - ring[cursor[HEAD]]
        cursor[HEAD] = _next(cursor[HEAD], len(ring))
        cursor[LENGTH] -= 1
        late, take = late + 1, min(cursor[LENGTH], batch)
    run.counts[REJECTED] += late
    sums[PRESENT_S] -= late * (run.end_s - now_s)
    if take > 0:
        cursor[RUNNING] = take
        times[1] = now_s
        factor, stall = run.noise[:, cursor[DRAWN] % run.noise.shape[1]]
        # The decision what can be in time does not see a stall coming.
        times[0] = now_s + batch_s[take] * factor + run.stall_s * stall
        cursor[DRAWN] += 1
    return late


@njit(cache=True)
def _advance(parts, window, arrivals):  # type: ignore[no-untyped-def]
    """Move one replica through its window, from the start of one batch to the next."""
    run = make_run(parts, window)
    reached_s, since_s = arrivals
    requests = Requests(reached_s, since_s)
    ring, cursor, times = run.ring, run.cursor, run.times
    # More than the ring holds: `admit` itself rejects what finds it full.
    unlimited = len(ring) + 1
    # Who is here at the start is counted as present for the entire window, as in `admit`.
    run.sums[PRESENT_S] += cursor[LENGTH] * (run.end_s - run.start_s)
    position = 0
    while True:
        if cursor[RUNNING] > 0:
            # What arrives at the very moment of the finish is in time for the next batch.
            until_s = min(times[0], run.end_s)
            position = admit(run, requests, position, until_s, unlimited)
            if run_until_end(run):
                return
            finish(run)
            now_s = times[0]
        elif cursor[LENGTH] == 0:
            if position == len(reached_s):
                return
            now_s = reached_s[position]
        else:
            now_s = max(times[0], run.start_s)
        position = admit(run, requests, position, now_s, unlimited)
        if cursor[LENGTH] == 0:
            continue
        if cursor[LENGTH] < run.batch and run.timeout_s > 0.0:
            position, now_s = _fill_batch(run, requests, position, now_s)
            if now_s == np.inf:
                return
        start(run, now_s)


@njit(cache=True)
def _fill_batch(run, requests, position, now_s):  # type: ignore[no-untyped-def]
    """Wait until the batch is full or its oldest request has waited long enough.

    The position of the next request, and the moment of the start; infinite where that lies beyond the window.
    """
    ring, cursor = run.ring, run.cursor
    due_s = max(now_s, ring[cursor[HEAD]] + run.timeout_s)
    until_s = min(due_s, run.end_s)
    position = admit(run, requests, position, until_s, run.batch)
    if cursor[LENGTH] >= run.batch:
        return position, max(now_s, requests.reached_s[position - 1])
    return position, due_s if due_s < run.end_s else np.inf
