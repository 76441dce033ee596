"""MIG slices: parts of a GPU with SMs and memory of their own, in which a neighbour changes nothing."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Layout = Mapping[str, int]
"""How many slices of each profile one GPU is cut into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProfile:
    """One size of slice that GPUs of a type can be cut into (contract version 2)."""

    name: str
    """As NVIDIA calls it, e.g. `3g.40gb`."""
    gpcs: int
    """Compute parts of the GPU that are the slice's own."""
    memory_slices: int
    starts: tuple[int, ...]
    """The memory slices of the GPU at which one may begin."""
    memory_mib: float


class SlicePoint(NamedTuple):
    """One way to run a network in a slice of its own; the order of the fields is that of the contract's rows."""

    batch: int
    processes: int
    """Processes of the network that share the slice by MPS."""
    clock_mhz: float
    execution_ms: float
    """One full batch of one process while the others run theirs."""
    memory_mib: float
    """Of all processes together."""
    power_w: float
    """Watts that all of them add to the GPU's idle watts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePoints:
    """All ways to run one network in slices of one profile of a GPU type."""

    network: str
    gpu_type: str
    profile: str
    rows: tuple[SlicePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceUse:
    """The slice that a replica has to itself, and how many processes share it."""

    profile: str
    processes: int


def layouts(profiles: Sequence[SliceProfile], most: int) -> tuple[Layout, ...]:
    """All ways to cut a GPU into at most so many slices that are no part of another one; parts of them fit as well."""
    ways = set(_ways(profiles, frozenset(), most))
    return tuple(
        dict(way)
        for way in sorted(ways)
        # A part of another way needs no name of its own: what is cut need not be used.
        if not any(way != other and _is_part(way, other) for other in ways)
    )


def _ways(
    profiles: Sequence[SliceProfile], taken: frozenset[int], most: int
) -> set[tuple[tuple[str, int], ...]]:
    """What can be cut from the memory slices that are not taken, by the first profile or without it."""
    if not profiles:
        return {()}
    first, rest = profiles[0], profiles[1:]
    found: set[tuple[tuple[str, int], ...]] = set()
    for number in range(min(most, len(first.starts)) + 1):
        for starts in itertools.combinations(first.starts, number):
            ranges = [range(start, start + first.memory_slices) for start in starts]
            places = list(itertools.chain(*ranges))
            if len(taken.union(places)) < len(taken) + len(places):
                continue
            own = ((first.name, number),) if number else ()
            after = _ways(rest, taken.union(places), most - number)
            found.update(own + way for way in after)
    return found


def _is_part(way: tuple[tuple[str, int], ...], of: tuple[tuple[str, int], ...]) -> bool:
    return Counter(dict(way)) <= Counter(dict(of))
