"""Closed loop: clients that each send their next request when their last one is answered, as load generators do.

A service's arrivals then depend on its answers, so its replicas move through time together, event by event: a batch
ends, its clients send again at once, each to a replica drawn by weight. Who is refused comes again after `retry_s`. The
rate follows from the number of clients and the latencies: a slow service sees fewer requests, and looks better than it
is to clients who do not wait (Schroeder, Wierman and Harchol-Balter 2006, "Open versus closed: a cautionary tale").
HetSev's experiments are closed loops; that is what this is for. Batch timeouts are not applied here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.typed import List as TypedList

from agents.sim.queues.replica_queue import (
    LENGTH,
    RUNNING,
    ExecutionPace,
    ReplicaQueue,
    Requests,
    admit,
    arrays,
    finish,
    make_run,
    numbers,
    run_until_end,
    start,
)
from agents.sim.queues.tally import PRESENT_S, Floats, Ints, ServiceTally

RETRY_S = 1.0
_STREAM = 2_000_000
"""Random streams of clients, far from those of loads and nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How many clients a service has."""

    clients: Floats
    """(T,) in each second; none afterwards."""
    retry_s: float = RETRY_S
    """How long a client waits after it was refused."""

    def at(self, second: int) -> int:
        """Clients in that second."""
        return (
            round(float(self.clients[second])) if 0 <= second < len(self.clients) else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One replica that executes, and what counts its requests."""

    queue: ReplicaQueue
    pace: ExecutionPace
    tally: ServiceTally
    weight: float
    """0: it gets no new requests."""


class _Replicas(NamedTuple):
    """A service's replicas as the kernels take them: a typed list of each part of theirs."""

    queues: TypedList
    paces: TypedList
    noises: TypedList
    tallies: TypedList


class _Choice(NamedTuple):
    """By which weights targets are drawn."""

    cumulative: Floats
    random: np.random.Generator
    sent: Ints
    """(targets + 1,) requests by target, and those that found none."""


class _Senders(NamedTuple):
    """Who sends in a step."""

    moments_s: Floats
    """(n,) when those send who wait for no answer; ascending."""
    clients: int
    """How many there are; who is beyond that leaves with its next answer."""
    retry_s: float


class _Window(NamedTuple):
    """[start, end) of trace time."""

    start_s: float
    end_s: float


class Clients:
    """The clients of one service, moved through time together with all its replicas."""

    def __init__(self, load: ClientLoad, random: np.random.Generator) -> None:
        self._load = load
        self._random = random
        self._retries = np.empty(0)
        """(n,) when those who were refused come again; ascending."""
        self._known: list[tuple[object, ...]] = []
        """What `_replicas` was made of."""
        self._replicas: _Replicas | None = None

    def step(self, start_s: float, end_s: float, targets: Sequence[Target]) -> Ints:
        """Move everybody through [start, end); (targets + 1,) requests by target, and those that found none.

        Who lost a request with a replica sends a new one at the start. Whole seconds are steps of their own, since the
        number of clients may change there.
        """
        sent: Ints = np.zeros(len(targets) + 1, np.int64)
        while start_s < end_s:
            until_s = min(end_s, np.floor(start_s) + 1.0)
            self._second(start_s, until_s, targets, sent)
            start_s = until_s
        return sent

    def _second(
        self, start_s: float, end_s: float, targets: Sequence[Target], sent: Ints
    ) -> None:
        clients = self._load.at(int(start_s))
        busy = len(self._retries) + sum(each.queue.in_flight for each in targets)
        sends = np.concatenate(
            [np.full(max(0, clients - busy), start_s), self._retries]
        )
        if targets:
            weights = np.cumsum([each.weight for each in targets])
            self._retries = _advance(
                self._replicas_of(targets),
                _Choice(weights, self._random, sent),
                _Senders(sends, clients, self._load.retry_s),
                _Window(start_s, end_s),
            )
            return
        # Nothing answers: every attempt is refused.
        while len(due := sends[sends < end_s]):
            sent[-1] += len(due)
            sends = np.concatenate([sends[sends >= end_s], due + self._load.retry_s])
        # Clients that were taken away while nothing answered do not come again.
        self._retries = np.sort(sends)[:clients]

    def _replicas_of(self, targets: Sequence[Target]) -> _Replicas:
        """The last ones where nothing about them has changed: typed lists take longer to make than to go through."""
        known: list[tuple[object, ...]] = [
            (each.queue, each.pace, *arrays(each.tally)) for each in targets
        ]
        is_same = len(known) == len(self._known) and all(
            one is other
            for new, old in zip(known, self._known, strict=True)
            for one, other in zip(new, old, strict=True)
        )
        if self._replicas is None or not is_same:
            self._known = known
            self._replicas = _Replicas(
                queues=TypedList([each.queue.state for each in targets]),
                paces=TypedList([numbers(each.pace) for each in targets]),
                noises=TypedList([each.queue.noise for each in targets]),
                tallies=TypedList([arrays(each.tally) for each in targets]),
            )
        return self._replicas


def make_clients(loads: Mapping[str, ClientLoad], seed: int) -> dict[str, Clients]:
    """The clients of every service, each with a random stream of its own; by service name."""
    return {
        service: Clients(loads[service], np.random.default_rng([seed, _STREAM, number]))
        # Numbered by name, so that the order of a manifest changes no stream.
        for number, service in enumerate(sorted(loads))
    }


@njit(cache=True)
def _advance(replicas, choice, senders, window):  # type: ignore[no-untyped-def]
    """From moment to moment: batches that end, then the requests sent, then batches that start. Who sends later.

    `moments` are those at which clients send, in order: refusals come again after a constant time, so that they can be
    appended.
    """
    moments = list(senders.moments_s)
    place = 0
    present = len(moments) + _count_present(replicas, window)
    while True:
        now_s = _next_end_s(replicas.queues)
        if place < len(moments):
            now_s = min(now_s, moments[place])
        if now_s >= window.end_s:
            break
        # Answers before requests: a client that is answered now sends again at this moment.
        sending = _finish_due(replicas, window, now_s)
        while place < len(moments) and moments[place] <= now_s:
            place += 1
            sending += 1
        leaving = min(sending, max(0, present - senders.clients))
        present -= leaving
        refused = _send(replicas, choice, window, now_s, sending - leaving)
        # Batches start after all requests of the moment, so that they include them.
        refused += _start_free(replicas, window, now_s)
        moments.extend([now_s + senders.retry_s] * refused)
    for each in range(len(replicas.queues)):
        if replicas.queues[each][1][RUNNING] > 0:
            run_until_end(_run_of(replicas, each, window))
    return np.array(moments[place:])


@njit(cache=True, inline="always")
def _run_of(replicas, each, window):  # type: ignore[no-untyped-def]
    """One replica in this window."""
    return make_run(
        (
            replicas.queues[each],
            replicas.paces[each],
            replicas.noises[each],
            replicas.tallies[each],
        ),
        window,
    )


@njit(cache=True)
def _count_present(replicas, window):  # type: ignore[no-untyped-def]
    """Requests that are with the replicas, each counted as present until the window's end."""
    present = 0
    for each in range(len(replicas.queues)):
        length = replicas.queues[each][1][LENGTH]
        present += length
        replicas.tallies[each][2][PRESENT_S] += length * (window.end_s - window.start_s)
    return present


@njit(cache=True)
def _next_end_s(queues):  # type: ignore[no-untyped-def]
    """When the next running batch ends; infinite where none runs."""
    end_s = np.inf
    for _, cursor, times, _ in queues:
        if cursor[RUNNING] > 0:
            end_s = min(end_s, times[0])
    return end_s


@njit(cache=True)
def _finish_due(replicas, window, now_s):  # type: ignore[no-untyped-def]
    """Finish every batch that ends now; how many requests were answered."""
    answered = 0
    for each in range(len(replicas.queues)):
        _, cursor, times, _ = replicas.queues[each]
        if cursor[RUNNING] > 0 and times[0] <= now_s:
            answered += cursor[RUNNING]
            run = _run_of(replicas, each, window)
            run_until_end(run)
            finish(run)
    return answered


@njit(cache=True)
def _send(replicas, choice, window, now_s, requests):  # type: ignore[no-untyped-def]
    """Send `requests` requests, each to a target of its own; how many were refused."""
    refused = 0
    new = np.full(1, now_s)
    for _ in range(requests):
        target = _draw(choice)
        choice.sent[target] += 1
        if target == len(replicas.queues) or not _offer(
            _run_of(replicas, target, window), new
        ):
            refused += 1
    return refused


@njit(cache=True)
def _start_free(replicas, window, now_s):  # type: ignore[no-untyped-def]
    """Start a batch wherever one can; how many requests were too late for theirs."""
    late = 0
    for each in range(len(replicas.queues)):
        _, cursor, _, _ = replicas.queues[each]
        if cursor[RUNNING] == 0 and cursor[LENGTH] > 0:
            late += start(_run_of(replicas, each, window), now_s)
    return late


@njit(cache=True)
def _draw(choice):  # type: ignore[no-untyped-def]
    """A target by weight; the number of targets where none has any."""
    cumulative, random, _ = choice
    if not cumulative[-1] > 0.0:
        return len(cumulative)
    # A sum of floats may end a last digit below the draw: the last target is then meant.
    return min(
        np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"),
        len(cumulative) - 1,
    )


@njit(cache=True, inline="always")
def _offer(run, new):  # type: ignore[no-untyped-def]
    """Queue one request; whether there was room."""
    before = run.cursor[LENGTH]
    admit(run, Requests(new, new), 0, new[0], len(run.ring) + 1)
    return run.cursor[LENGTH] > before
