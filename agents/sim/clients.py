"""Closed loop: clients that each send their next request when their last one is answered, as load generators do.

A service's arrivals then depend on its answers, so its replicas move through time together, event by event: a batch
ends, its clients send again at once, each to a replica drawn by weight. Who is refused comes again after `retry_s`. The
rate follows from the number of clients and the latencies: a slow service sees fewer requests, and looks better than it
is to clients who do not wait (Schroeder, Wierman and Harchol-Balter 2006, "Open versus closed: a cautionary tale").
HetSev's experiments are closed loops; that is what this is for. Batch timeouts are not applied here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numba.typed import List as TypedList

from agents.sim.engine import (
    LENGTH,
    RUNNING,
    ExecutionPace,
    ReplicaQueue,
    admit,
    arrays,
    finish,
    numbers,
    run_until_end,
    start,
)
from agents.sim.tally import PRESENT_S, Floats, Ints, ServiceTally

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


class Clients:
    """The clients of one service, moved through time together with all its replicas."""

    def __init__(self, load: ClientLoad, random: np.random.Generator) -> None:
        self._load = load
        self._random = random
        self._retries = np.empty(0)
        """(n,) when those who were refused come again; ascending."""

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
            self._retries = _advance(
                TypedList([each.queue.state for each in targets]),
                TypedList([numbers(each.pace) for each in targets]),
                TypedList([arrays(each.tally) for each in targets]),
                TypedList([each.queue.noise for each in targets]),
                (np.cumsum([each.weight for each in targets]), self._random),
                (sends, clients, self._load.retry_s),
                (start_s, end_s),
                sent,
            )
            return
        while len(
            due := sends[sends < end_s]
        ):  # Nobody answers: every attempt is refused.
            sent[-1] += len(due)
            sends = np.concatenate([sends[sends >= end_s], due + self._load.retry_s])
        self._retries = np.sort(sends)[:clients]


def make_clients(loads: Mapping[str, ClientLoad], seed: int) -> dict[str, Clients]:
    """The clients of every service, each with a random stream of its own; by service name."""
    return {
        service: Clients(loads[service], np.random.default_rng([seed, _STREAM, number]))
        for number, service in enumerate(sorted(loads))
    }


@njit(cache=True)
def _advance(states, paces, tallies, noises, choice, sends, window, sent):  # type: ignore[no-untyped-def]
    """From moment to moment: batches that end, then the requests sent, then batches that start. Who sends later.

    `moments` are those at which clients send, in order: refusals come again after a constant time, so that they can be
    appended.
    """
    first, clients, retry_s = sends
    start_s, end_s = window
    moments = list(first)
    place, present, new = 0, len(first), np.empty(1)
    for each in range(len(states)):
        length = states[each][1][LENGTH]
        present += length
        tallies[each][2][PRESENT_S] += length * (end_s - start_s)
    while True:
        now_s = moments[place] if place < len(moments) else np.inf
        for state in states:
            if state[1][RUNNING] > 0:
                now_s = min(now_s, state[2][0])
        if now_s >= end_s:
            break
        senders = 0
        for each in range(len(states)):
            if states[each][1][RUNNING] > 0 and states[each][2][0] <= now_s:
                senders += states[each][1][RUNNING]
                run_until_end(states[each], window, paces[each])
                finish(states[each], paces[each][3], end_s, tallies[each])
        while place < len(moments) and moments[place] <= now_s:
            place += 1
            senders += 1
        leaving = min(senders, max(0, present - clients))
        present -= leaving
        new[0] = now_s
        for _ in range(senders - leaving):
            target = _draw(choice)
            sent[target] += 1
            if target == len(states) or not _offer(
                states[target], new, paces[target], end_s, tallies[target]
            ):
                moments.append(now_s + retry_s)
        for each in range(len(states)):
            if states[each][1][RUNNING] == 0 and states[each][1][LENGTH] > 0:
                late = start(
                    states[each], now_s, paces[each], noises[each], end_s, tallies[each]
                )
                moments.extend([now_s + retry_s] * late)
    for each in range(len(states)):
        if states[each][1][RUNNING] > 0:
            run_until_end(states[each], window, paces[each])
    return np.array(moments[place:])


@njit(cache=True)
def _draw(choice):  # type: ignore[no-untyped-def]
    """A target by weight; the number of targets where none has any."""
    cumulative, random = choice
    if not cumulative[-1] > 0.0:
        return len(cumulative)
    return min(
        np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"),
        len(cumulative) - 1,
    )


@njit(cache=True)
def _offer(state, new, pace, end_s, tallies):  # type: ignore[no-untyped-def]
    """Queue one request; whether there was room."""
    before = state[1][LENGTH]
    admit(state, (new, new), 0, new[0], len(state[0]) + 1, pace, end_s, tallies)
    return state[1][LENGTH] > before
