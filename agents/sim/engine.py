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

import numpy as np
from numba import njit

from agents.base.protocol import MIN_BUCKET_MS
from agents.sim.tally import (
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

NOISE_DRAWS = 4096
"""Execution time factors drawn ahead per replica; they are used in turn, for ever."""

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


class ReplicaQueue:
    """The queue and the running batch of one replica."""

    def __init__(self, *, capacity: int, noise: Floats) -> None:
        """`noise`: (n,) factors on the execution time, used in turn."""
        self._queue: Floats = np.zeros(capacity)
        self._cursor: Ints = np.zeros(4, np.int64)
        self._times: Floats = np.zeros(2)
        self._work: Floats = np.zeros(5)
        self.noise = noise

    @property
    def state(self) -> tuple[Floats, Ints, Floats, Floats]:
        """The arrays that the kernels work on: arrival times in a ring, cursor, times of the batch, work done."""
        return self._queue, self._cursor, self._times, self._work

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
        """Move through [start, end) of trace time.

        `arrivals`: for each request when it reaches the queue (ascending, within the window) and when it reached the
        router (from which its latency counts).
        """
        reached, since = arrivals
        _advance(
            self.state,
            (reached, since),
            window,
            numbers(pace),
            self.noise,
            arrays(tally),
        )

    def age_s(self, now_s: float) -> float:
        """Summed time since the arrival of all that waits or runs."""
        places = (self._cursor[HEAD] + np.arange(self.in_flight)) % len(self._queue)
        return float(np.sum(now_s - self._queue[places]))

    def drop(self) -> int:
        """Lose everything that waits or runs; returns how many requests that were."""
        lost = self.in_flight
        self._cursor[LENGTH] = 0
        self._cursor[RUNNING] = 0
        return lost

    def new_window(self) -> None:
        """Start counting work anew."""
        self._work[:] = 0.0


def draw_noise(random: np.random.Generator, deviation: float) -> Floats:
    """(NOISE_DRAWS,) log-normal factors of mean 1 and the given standard deviation."""
    variance = np.log1p(deviation**2)
    return random.lognormal(-variance / 2.0, np.sqrt(variance), NOISE_DRAWS)


@njit(cache=True)  # type: ignore[untyped-decorator]
def fine_bucket_of_s(latency_s: float) -> int:
    """The fine bucket (`tally`) of a latency."""
    ratio = 1000.0 * latency_s / MIN_BUCKET_MS
    if ratio <= 1.0:
        return 0
    return min(FINE_COUNT - 1, int(np.ceil(FINE_PER_DOUBLING * np.log2(ratio))))


def numbers(pace: ExecutionPace) -> tuple[int, Floats, Floats, float, float, float]:
    """A pace as the kernels take it: batch, batch_s, batch_w, slo_s, shed_s, timeout_s."""
    shed_s = pace.slo_s if pace.sheds_late else np.inf
    return pace.batch, pace.batch_s, pace.batch_w, pace.slo_s, shed_s, pace.timeout_s


def arrays(tally: ServiceTally) -> tuple[Ints, Ints, Floats]:
    """A tally as the kernels take it."""
    return tally.counts, tally.fine, tally.sums


@njit(cache=True)
def admit(state, arrivals, position, until_s, most, pace, end_s, tallies):  # type: ignore[no-untyped-def]
    """Queue arrivals up to and including `until_s`, until `most` requests are here; the position of the next one."""
    queue, cursor, times, _ = state
    reached, since = arrivals
    counts, _, sums = tallies
    batch, batch_s, _, _, shed_s, _ = pace
    # In variables of its own, counted on without divisions, a request takes half as long.
    free_s, full_s, present_s, length = (
        times[0],
        batch_s[batch],
        sums[PRESENT_S],
        cursor[LENGTH],
    )
    full, rest = divmod(length - cursor[RUNNING], batch)
    place = (cursor[HEAD] + length) % len(queue)
    while position < len(reached) and reached[position] <= until_s and length < most:
        ahead_s = full * full_s + batch_s[rest + 1]
        finish_s = max(free_s, reached[position]) + ahead_s
        if length < len(queue) and finish_s - since[position] <= shed_s:
            queue[place] = since[position]
            place = _next(place, len(queue))
            length += 1
            rest = _next(rest, batch)
            full += rest == 0
            present_s += end_s - reached[position]
        else:
            counts[REJECTED] += 1
            sums[SOJOURN_S] += reached[position] - since[position]
        position += 1
    cursor[LENGTH], sums[PRESENT_S] = length, present_s
    return position


@njit(cache=True)
def _next(place, size):  # type: ignore[no-untyped-def]
    """The next place of a ring."""
    return place + 1 if place + 1 < size else 0


@njit(cache=True)
def finish(state, slo_s, end_s, tallies):  # type: ignore[no-untyped-def]
    """Count the running batch and take it off the queue."""
    queue, cursor, times, work = state
    counts, fine, sums = tallies
    finish_s, head, sojourn_s, in_slo = times[0], cursor[HEAD], sums[SOJOURN_S], 0
    for _ in range(cursor[RUNNING]):
        latency_s = finish_s - queue[head]
        head = _next(head, len(queue))
        fine[fine_bucket_of_s(latency_s)] += 1
        sojourn_s += latency_s
        in_slo += latency_s <= slo_s
    cursor[HEAD], sums[SOJOURN_S] = head, sojourn_s
    counts[IN_SLO] += in_slo
    counts[SERVED] += cursor[RUNNING]
    sums[PRESENT_S] -= cursor[RUNNING] * (end_s - finish_s)
    work[_BATCHES] += 1.0
    work[_REQUESTS] += cursor[RUNNING]
    work[_EXECUTION_S] += finish_s - times[1]
    cursor[LENGTH] -= cursor[RUNNING]
    cursor[RUNNING] = 0


@njit(cache=True)
def run_until_end(state, window, pace):  # type: ignore[no-untyped-def]
    """Account for the running batch's part of the window; whether it ends later."""
    _, cursor, times, work = state
    start_s, end_s = window
    busy_s = min(times[0], end_s) - max(times[1], start_s)
    work[_BUSY_S] += busy_s
    work[_ENERGY_J] += busy_s * pace[2][cursor[RUNNING]]
    return times[0] >= end_s


@njit(cache=True)
def start(state, now_s, pace, noise, end_s, tallies):  # type: ignore[no-untyped-def]
    """Take what waits and can be in time, at most a batch, and run it; how many requests were too late."""
    queue, cursor, times, _ = state
    counts, _, sums = tallies
    batch, batch_s, _, _, shed_s, _ = pace
    late, take = 0, min(cursor[LENGTH], batch)
    while take > 0 and now_s + batch_s[take] - queue[cursor[HEAD]] > shed_s:
        sums[SOJOURN_S] += now_s - queue[cursor[HEAD]]
        cursor[HEAD] = _next(cursor[HEAD], len(queue))
        cursor[LENGTH] -= 1
        late, take = late + 1, min(cursor[LENGTH], batch)
    counts[REJECTED] += late
    sums[PRESENT_S] -= late * (end_s - now_s)
    if take > 0:
        cursor[RUNNING] = take
        times[1] = now_s
        times[0] = now_s + batch_s[take] * noise[cursor[DRAWN] % len(noise)]
        cursor[DRAWN] += 1
    return late


@njit(cache=True)
def _advance(state, arrivals, window, pace, noise, tallies):  # type: ignore[no-untyped-def]
    """times[0]: when the running batch finishes, or the earliest moment of the next start; times[1]: its start."""
    queue, cursor, times, _ = state
    reached, _ = arrivals
    start_s, end_s = window
    batch, _, _, slo_s, _, timeout_s = pace
    anything = len(queue)
    tallies[2][PRESENT_S] += cursor[LENGTH] * (end_s - start_s)
    position = 0
    while True:
        if cursor[RUNNING] > 0:
            # What arrives at the very moment of the finish is in time for the next batch.
            until_s = min(times[0], end_s)
            position = admit(
                state, arrivals, position, until_s, anything + 1, pace, end_s, tallies
            )
            if run_until_end(state, window, pace):
                return
            finish(state, slo_s, end_s, tallies)
            now_s = times[0]
        elif cursor[LENGTH] == 0:
            if position == len(reached):
                return
            now_s = reached[position]
        else:
            now_s = max(times[0], start_s)
        position = admit(
            state, arrivals, position, now_s, anything + 1, pace, end_s, tallies
        )
        if cursor[LENGTH] == 0:
            continue
        if cursor[LENGTH] < batch and timeout_s > 0.0:
            due_s = max(now_s, queue[cursor[HEAD]] + timeout_s)
            position = admit(
                state,
                arrivals,
                position,
                min(due_s, end_s),
                batch,
                pace,
                end_s,
                tallies,
            )
            if cursor[LENGTH] >= batch:
                now_s = max(now_s, reached[position - 1])
            elif due_s >= end_s:
                return
            else:
                now_s = due_s
        start(state, now_s, pace, noise, end_s, tallies)
