"""The load balancer in front of all nodes of a simulated cluster.

Each request goes to one of its service's ready, routed replicas, drawn at random by weight: thinning a Poisson stream
leaves Poisson streams, the assumption of the capacity law (a round robin would be smoother, and flatter the plan).
While a service has no such replica, its requests wait here in a bounded queue, the oldest giving way, until one comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.sim.queues.tally import Floats

Indices = NDArray[np.intp]

DETECTION_S = 1.0
"""So long requests go to a node after it is lost: until the health check of a front load balancer has failed."""
HOLD_CAPACITY = 512
"""Requests per service that wait while there is no replica."""
_BLOCK_S = 10.0
"""Arrivals are asked for in blocks of this length; `arrivals.ArrivalProcess` draws them so."""


class ArrivalSource(Protocol):
    """Where the requests of one service come from, e.g. `agents.sim.load.arrivals.ArrivalProcess`."""

    def arrivals(
        self,
        start_s: float,
        end_s: float,
    ) -> Floats:
        """Arrival times in [start_s, end_s) of trace time, ascending."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """What becomes of one service's requests in one step."""

    arrived: int
    """Requests that reached the balancer."""
    dropped: int = 0
    """Requests that had to leave the waiting queue."""
    dropped_age_s: float = 0.0
    """How long those had waited, summed."""
    waited_s: float = 0.0
    """Requests that waited here, integrated over the step: request-seconds."""
    shares: tuple[tuple[Floats, Floats], ...] = ()
    """For each target: when its requests reach the replica, and when they reached the balancer; both ascending."""
    new: tuple[int, ...] = ()
    """For each target: how many of its requests arrived in this step."""


class ServiceBalancer:
    """One service's requests, handed out step by step."""

    def __init__(
        self,
        source: ArrivalSource,
        random: np.random.Generator,
    ) -> None:
        self._source = source
        self._random = random
        self._block = np.empty(0)
        self._block_end_s = -np.inf
        self._held = np.empty(0)

    @property
    def waiting(self) -> int:
        """Requests waiting for a replica."""
        return len(self._held)

    def step(
        self,
        start_s: float,
        end_s: float,
        weights: Sequence[float],
    ) -> HandOut:
        """The requests of [start_s, end_s) over targets of these weights; without a target they wait.

        Steps must follow each other without a gap. All weights zero count as equal.
        """
        fresh = self._arrivals(start_s, end_s)
        if not weights:
            return self._hold(fresh, start_s, end_s)
        # Who waited longest is dealt first.
        held, self._held = self._held, np.empty(0)
        since = np.concatenate([held, fresh]) if len(held) else fresh
        dealt, ends, new = _deal(
            since, self._choose(weights, len(since)), len(weights), len(held)
        )
        mine = [dealt[first:last] for first, last in pairwise([0, *ends.tolist()])]
        return HandOut(
            arrived=len(fresh),
            shares=tuple(
                (np.maximum(each, start_s) if len(held) else each, each)
                for each in mine
            ),
            new=tuple(new.tolist()),
        )

    def age_s(self, now_s: float) -> float:
        """Summed time since the arrival of all that wait."""
        return float(np.sum(now_s - self._held))

    def _hold(
        self,
        fresh: Floats,
        start_s: float,
        end_s: float,
    ) -> HandOut:
        """Let them wait; the oldest leaves when one comes that the queue has no room for."""
        everything = np.concatenate([self._held, fresh])
        # The oldest have the least chance of being in time.
        dropped = max(0, len(everything) - HOLD_CAPACITY)
        left_s = np.full(len(everything), end_s)
        left_s[:dropped] = everything[HOLD_CAPACITY : HOLD_CAPACITY + dropped]
        self._held = everything[dropped:]
        return HandOut(
            arrived=len(fresh),
            dropped=dropped,
            dropped_age_s=float(np.sum(left_s[:dropped] - everything[:dropped])),
            waited_s=float(np.sum(left_s - np.maximum(everything, start_s))),
        )

    def _choose(
        self,
        weights: Sequence[float],
        count: int,
    ) -> Indices:
        """(count,) target of each request; one draw per request, so that no cut of the time changes the stream."""
        heights = np.asarray(weights, float)
        cumulative = np.cumsum(
            heights if heights.sum() > 0.0 else np.ones(len(heights))
        )
        chosen: Indices = find_places(self._random.random(count), cumulative)
        return chosen

    def _arrivals(
        self,
        start_s: float,
        end_s: float,
    ) -> Floats:
        parts = []
        while start_s < end_s:
            if start_s >= self._block_end_s:
                block = np.floor(start_s / _BLOCK_S)
                self._block_end_s = (block + 1.0) * _BLOCK_S
                self._block = self._source.arrivals(block * _BLOCK_S, self._block_end_s)
            until_s = min(end_s, self._block_end_s)
            first, last = np.searchsorted(self._block, [start_s, until_s])
            parts.append(self._block[first:last])
            start_s = until_s
        return np.concatenate(parts) if parts else np.empty(0)


@njit(cache=True)
def find_places(shares, cumulative):  # type: ignore[no-untyped-def]
    """For each share in [0, 1) of the total the first place that is above it, else the last one.

    A table says where each part of [0, 1) begins, so that hardly anything is searched: a binary search would take
    longer than all else that is done here for a request.
    """
    last, total, parts = len(cumulative) - 1, cumulative[-1], 4 * len(cumulative)
    begins = np.searchsorted(
        cumulative, np.arange(parts) * (total / parts), side="right"
    )
    found = np.empty(len(shares), np.int64)
    for position, share in enumerate(shares):
        place = min(
            begins[max(0, int(share * parts) - 1)], last
        )  # one part before, for rounding's sake
        while place < last and cumulative[place] <= share * total:
            place += 1
        found[position] = place
    return found


@njit(cache=True)
def _deal(since, chosen, targets, held):  # type: ignore[no-untyped-def]
    """Requests by target, in their order for each; where each target's end; how many of each came after `held` ones."""
    ends, new = np.zeros(targets, np.int64), np.zeros(targets, np.int64)
    for position, target in enumerate(chosen):
        ends[target] += 1
        new[target] += position >= held
    # Two passes, counting and placing, instead of a list per target.
    ends = np.cumsum(ends)
    places = np.zeros(targets, np.int64)
    places[1:] = ends[:-1]
    dealt = np.empty(len(since))
    for position, target in enumerate(chosen):
        dealt[places[target]] = since[position]
        places[target] += 1
    return dealt, ends, new


def make_balancers(
    sources: Mapping[str, ArrivalSource], seed: int
) -> dict[str, ServiceBalancer]:
    """A balancer for every service, each with its own random stream; by service name."""
    return {
        service: ServiceBalancer(
            sources[service], np.random.default_rng([seed, stream])
        )
        for stream, service in enumerate(sorted(sources))
    }
