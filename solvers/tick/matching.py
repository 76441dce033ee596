"""Which GPU of the plan goes to which GPU of the fleet: one min-cost matching per GPU type.

`bind` says what the matching puts first; here its levels become integers whose sum orders matchings that way.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from solvers.types.plan import BoundGpu, BoundReplica, GpuPlan
from solvers.types.problem import Problem
from solvers.types.state import Gpu, GpuId

Costs = NDArray[np.float64]
Flags = NDArray[np.bool_]
Key = TypeVar("Key", bound=Hashable)

MAX_PAIRS = 250_000
"""Beyond this many pairs of slots and places (500 GPUs of a type) those that run just what a slot wants stay as they
are: to compare all pairs takes time and memory with the square of the fleet."""

ReplicaIdentity = tuple[str, str, float, int]
"""(service, network, SM percent, ordinal): what a running and a planned replica share when one becomes the other.
The ordinal tells replicas of one service on one GPU apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlot:
    """One GPU of the plan."""

    gpu: GpuPlan
    replicas: Mapping[ReplicaIdentity, BoundReplica]
    """They have no ids as yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """One physical GPU that may take something."""

    gpu: Gpu
    cordoned: bool
    running: BoundGpu | None
    replicas: Mapping[ReplicaIdentity, BoundReplica]
    """What runs there."""


def match_slots(
    problem: Problem,
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    avoided: Mapping[str, Set[GpuId]],
) -> list[GpuPlace | None]:
    """The place of each slot, None where there is none; all of one GPU type. avoided: GPUs by service."""
    unchanged = _unchanged(slots, places)
    if None not in unchanged:
        return unchanged
    if len(slots) * len(places) <= MAX_PAIRS:
        return _matched(problem, slots, places, avoided)
    left = _without(places, unchanged)
    wanting = [slot for slot, place in zip(slots, unchanged, strict=True) if not place]
    matched = iter(_matched(problem, wanting, left, avoided))
    return [place or next(matched) for place in unchanged]


def _without(
    places: Sequence[GpuPlace], taken: Sequence[GpuPlace | None]
) -> list[GpuPlace]:
    gone = {place.gpu.id for place in taken if place}
    return [place for place in places if place.gpu.id not in gone]


def _matched(
    problem: Problem,
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    avoided: Mapping[str, Set[GpuId]],
) -> list[GpuPlace | None]:
    """The same by the best matching of all pairs."""
    special = frozenset().union(*avoided.values())
    # GPUs that somebody avoids are looked at one by one, as those are that carry something.
    own = [place for place in places if place.replicas or place.gpu.id in special]
    known = {place.gpu.id for place in own}
    # A task would have to make room: GPUs on which tasks run are taken last.
    empty = sorted(
        (place for place in places if place.gpu.id not in known), key=_task_count
    )
    # No matching uses more empty GPUs than there are slots, and the solver takes the cube of their number.
    offered = own + empty[: len(slots)]
    cost, forbidden = _costs(problem, slots, offered, avoided)
    chosen: list[GpuPlace | None] = [None] * len(slots)
    # GPUs that carry nothing are alike: whichever of them the solver matched, the lowest ids take their parts in order.
    lowest_empty = iter(empty)
    for slot, at in zip(*scipy.optimize.linear_sum_assignment(cost), strict=True):
        if not forbidden[slot, at]:
            chosen[slot] = offered[at] if at < len(own) else next(lowest_empty)
    return chosen


def _unchanged(
    slots: Sequence[PlanSlot], places: Sequence[GpuPlace]
) -> list[GpuPlace | None]:
    """For each slot a place that runs just what it wants, in their order; None where there is none.

    There nothing starts, drains or changes. Where every slot has such a place, no matching is better; where most have
    one, a matching starts as few replicas with these pairs as without, though it may drain more.
    """
    running: defaultdict[Hashable, deque[GpuPlace]] = defaultdict(deque)
    for place in places:
        if place.running is not None:
            content = _content(place.running.clock_mhz, place.replicas)
            running[content].append(place)
    chosen: list[GpuPlace | None] = []
    for slot in slots:
        alike = running[_content(slot.gpu.clock_mhz, slot.replicas)]
        chosen.append(alike.popleft() if alike else None)
    return chosen


def _content(
    clock_mhz: float, replicas: Mapping[ReplicaIdentity, BoundReplica]
) -> Hashable:
    batches = ((identity, replica.batch) for identity, replica in replicas.items())
    return clock_mhz, frozenset(batches)


def _avoiding(
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    avoided: Mapping[str, Set[GpuId]],
) -> Flags:
    """(S, G): whether a slot would start a replica of a service that avoids the GPU."""
    flags: Flags = np.zeros((len(slots), len(places)), dtype=bool)
    for service, gpus in avoided.items():
        wanted = [
            {identity for identity in slot.replicas if identity[0] == service}
            for slot in slots
        ]
        for at, place in enumerate(places):
            if place.gpu.id in gpus:
                # What serves there is kept: on a suspect node a GPU of its own did not fail.
                flags[:, at] |= [not (each <= place.replicas.keys()) for each in wanted]
    return flags


def _task_count(place: GpuPlace) -> int:
    return len(place.running.tasks) if place.running else 0


def _costs(
    problem: Problem,
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    avoided: Mapping[str, Set[GpuId]],
) -> tuple[Costs, Flags]:
    """(S, G) costs whose sum orders matchings as the module says, and (S, G) pairs that are not allowed.

    Integers; each level's unit exceeds all that the levels below can add up to.
    """
    wanted = [list(slot.replicas) for slot in slots]
    kept = _common(wanted, [dict.fromkeys(place.replicas, 1.0) for place in places])
    starts = _column([len(slot.replicas) for slot in slots]) - kept
    stops = np.array([len(place.replicas) for place in places]) - kept
    cordoned = np.array([place.cordoned for place in places], dtype=bool)
    forbidden = cordoned & (starts > 0) | _avoiding(slots, places, avoided)
    special = frozenset().union(*avoided.values())
    suspect = np.array(
        [not place.replicas and place.gpu.id in special for place in places], dtype=bool
    )
    fits = _overlap_fits(problem, slots, places, kept + starts + stops)
    drains = (starts > 0) & (stops > 0) & ~fits

    # A unit is one more than the largest sum of all lower levels, so that no number of lower gains outweighs it.
    pairs = min(len(slots), len(places))
    max_replicas = max(len(slot.replicas) for slot in slots)
    # Empty GPUs that somebody avoids are taken last. Where there are none, which is nearly always, no level grows.
    change_unit = min(pairs, int(suspect.sum())) + 1
    drain_unit = change_unit * (pairs * (max_replicas + 1) + 1)
    start_unit = drain_unit * (pairs + 1)
    forbidden_unit = start_unit * (pairs * max_replicas + 1)
    # A forbidden pair has a price instead of infinity, so that the solver finds a matching where all are forbidden.
    cost = (
        suspect
        + change_unit * _changes(slots, places, kept)
        + drain_unit * drains
        + start_unit * (max_replicas - kept)
        + forbidden_unit * forbidden
    )
    return cost, forbidden


def _column(values: Sequence[float]) -> Costs:
    return np.array(values)[:, None]


def _overlap_fits(
    problem: Problem,
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    together: Costs,
) -> Flags:
    """(S, G): whether the replicas of both, `together` in number, can run side by side; kept ones with new memory."""
    old_mib = [
        {identity: replica.memory_mib for identity, replica in place.replicas.items()}
        for place in places
    ]
    new_total_mib = [
        sum(replica.memory_mib for replica in slot.replicas.values()) for slot in slots
    ]
    old_total_mib = np.array([sum(each.values()) for each in old_mib])
    # A kept replica is in both totals and runs once.
    kept_mib = _common([list(slot.replicas) for slot in slots], old_mib)
    needed_mib = _column(new_total_mib) + old_total_mib - kept_mib
    memory_mib = problem.gpu_type(slots[0].gpu.gpu_type).memory_mib
    fits: Flags = (needed_mib <= memory_mib) & (
        together <= problem.max_replicas_per_gpu
    )
    return fits


def _changes(
    slots: Sequence[PlanSlot],
    places: Sequence[GpuPlace],
    kept: Costs,
) -> Costs:
    """(S, G): kept replicas whose batch changes, plus 1 where the clock changes under kept replicas."""
    new_batches = [
        [(identity, replica.batch) for identity, replica in slot.replicas.items()]
        for slot in slots
    ]
    old_batches = [
        {(identity, replica.batch): 1.0 for identity, replica in place.replicas.items()}
        for place in places
    ]
    same_batch = _common(new_batches, old_batches)

    old_clock_mhz = np.array(
        [place.running.clock_mhz if place.running else 0.0 for place in places]
    )
    new_clock_mhz = _column([slot.gpu.clock_mhz for slot in slots])
    # Where no replica is kept, a clock change disturbs none.
    clock_changes = (new_clock_mhz != old_clock_mhz) & (kept > 0)
    changes: Costs = kept - same_batch + clock_changes
    return changes


def _common(
    wanted: Sequence[Collection[Key]],
    weights: Sequence[Mapping[Key, float]],
) -> Costs:
    """(S, G): the summed weights, per pair, of the keys that both have.

    Key by key, for each is on a few GPUs only: a product of (S, keys) and (keys, G) would be almost all zeros.
    """
    slots_with: defaultdict[Key, list[int]] = defaultdict(list)
    for slot, keys in enumerate(wanted):
        for key in keys:
            slots_with[key].append(slot)
    places_with: defaultdict[Key, dict[int, float]] = defaultdict(dict)
    for place, weight_by_key in enumerate(weights):
        for key, weight in weight_by_key.items():
            places_with[key][place] = weight
    common: Costs = np.zeros((len(wanted), len(weights)))
    for key, slots in slots_with.items():
        if weight_at := places_with.get(key):
            cells = np.array(slots)[:, None], list(weight_at)
            # A cell gets a key's weight once, since no list names a GPU twice for it: += would lose repetitions.
            common[cells] += list(weight_at.values())
    return common
