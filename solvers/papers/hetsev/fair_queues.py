"""Fair queues: in which order waiting replicas are placed, so that no kind of them starves.

Source: HetSev §4.2, Algorithm 1, lines 1–3: waiting replicas are clustered by GPU memory and network into queues; each
round picks some of them, a queue's part growing with its weight, length × median waiting time. Changed: the first pick
of every round is the replica that waits longest. Weights alone starve a small queue by one that floods: the flood's
length and waiting time both grow, so the small queue's part shrinks faster than its waiting time rises.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingReplica:
    """A replica that waits for a GPU."""

    name: str
    network: str
    memory_mib: float
    waiting_s: float


def fair_order(
    waiting: Sequence[WaitingReplica],
    *,
    queues: int,
    per_round: int,
) -> tuple[str, ...]:
    """All names in the order in which to place them; rounds of `per_round` ≥ 1 picks from at most `queues` ≥ 1 queues.

    Within a queue the longest wait comes first, ties by name. The k-th longest waiting replica of all is among the
    first k rounds, whatever else waits. The order of `waiting` does not matter. Raises ValueError below 1.
    """
    if queues < 1 or per_round < 1:
        raise ValueError(
            f"queues and per_round must be at least 1, not {queues} and {per_round}"
        )
    # The paper clusters again as replicas arrive; one call has all of them, so its queues are made once (line 1).
    remaining = make_queues(waiting, queues)
    order: list[str] = []
    while remaining:
        order += _pick_round(remaining, per_round)
        remaining = [queue for queue in remaining if queue]
    return tuple(order)


def make_queues(
    waiting: Sequence[WaitingReplica],
    queues: int,
) -> list[list[WaitingReplica]]:
    """At most that many queues of similar replicas, each with the longest wait first."""
    # Clusters depend on the order of their points, so the order must depend on the replicas alone.
    by_name = sorted(waiting, key=lambda replica: replica.name)
    labels = cluster(_features(by_name), queues)
    made: list[list[WaitingReplica]] = [
        [] for _ in range(int(labels.max(initial=-1)) + 1)
    ]
    for replica, label in zip(by_name, labels.tolist(), strict=True):
        made[label].append(replica)
    return [sorted(queue, key=_longest_first) for queue in made]


def weight(queue: Sequence[WaitingReplica]) -> float:
    """Length × median waiting time, as section 4.2, step 2, has it."""
    return len(queue) * statistics.median(replica.waiting_s for replica in queue)


def _pick_round(queues: list[list[WaitingReplica]], picks: int) -> list[str]:
    """Take the replica that waits longest, then share the other picks among the queues by their weights."""
    # Weights are those at the start of the round, as in Algorithm 1, line 3: picks of one round do not change them.
    weights = [weight(queue) for queue in queues]
    lengths = [len(queue) for queue in queues]
    taken = [0] * len(queues)

    def average(number: int) -> tuple[float, float]:
        # Highest averages (D'Hondt): parts in proportion to the weights; by length where none has waited yet.
        parts = taken[number] + 1
        return weights[number] / parts, lengths[number] / parts

    names: list[str] = []
    for pick in range(min(picks, sum(lengths))):
        waiting = [number for number, queue in enumerate(queues) if queue]
        if pick == 0:
            chosen = min(waiting, key=lambda number: _longest_first(queues[number][0]))
        else:
            chosen = max(waiting, key=average)
        names.append(queues[chosen].pop(0).name)
        taken[chosen] += 1
    return names


def _longest_first(replica: WaitingReplica) -> tuple[float, str]:
    return -replica.waiting_s, replica.name


Reals = npt.NDArray[np.float64]


def _features(replicas: Sequence[WaitingReplica]) -> Reals:
    """(N, 1 + networks): standardised memory, and 1 in the column of the replica's network."""
    memory = np.array([replica.memory_mib for replica in replicas], dtype=np.float64)
    # Standardised, since the paper's L1 distance would otherwise see nothing but MiB next to a network's 0 or 1.
    spread = memory.std() if len(memory) else 0.0
    standardised = (
        (memory - memory.mean()) / spread if spread > 0.0 else np.zeros(len(memory))
    )
    networks = sorted({replica.network for replica in replicas})
    is_network = np.array(
        [[replica.network == network for network in networks] for replica in replicas],
        dtype=float,
    )
    # Without replicas the array has one dimension, of which `column_stack` would make a column.
    return np.column_stack(
        [standardised, is_network.reshape(len(replicas), len(networks))]
    )


Labels = npt.NDArray[np.int64]

_MAX_ROUNDS = 100
"""Far beyond need: each round lowers the summed distance or ends, and small inputs settle within ten."""


def cluster(points: Reals, clusters: int) -> Labels:
    """(N,) the cluster of each of the (N, D) points, 0 to at most `clusters` − 1; every cluster has a point.

    Medians, not means, make the L1 distance within a cluster least, so each round lowers it and the rounds end. The
    first centre is the point nearest to the overall median, each further one the point farthest from all centres;
    ties go to the first point. Fewer different points than clusters: one cluster for each. O(N · clusters · D) a round.
    """
    if len(points) == 0:
        return np.zeros(0, dtype=np.int64)
    centres = _first_centres(points, clusters)
    labels = _nearest(points, centres)
    for _ in range(_MAX_ROUNDS):
        centres = np.array(
            [np.median(points[labels == label], axis=0) for label in np.unique(labels)]
        )
        moved = _nearest(points, centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _first_centres(points: Reals, clusters: int) -> Reals:
    distance = np.abs(points - np.median(points, axis=0)).sum(axis=1)
    chosen = [int(np.argmin(distance))]
    nearest = np.abs(points - points[chosen[0]]).sum(axis=1)
    # Distance 0 means that every different point is a centre already: one more would leave a cluster empty.
    while len(chosen) < clusters and nearest.max() > 0.0:
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.abs(points - points[chosen[-1]]).sum(axis=1))
    return points[chosen]


def _nearest(points: Reals, centres: Reals) -> Labels:
    distances = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2)
    nearest: Labels = np.argmin(distances, axis=1)
    return nearest
