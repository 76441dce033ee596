"""MIG slices: parts of a GPU with SMs and memory of their own, in which a neighbour changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
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
    """What all processes take together."""
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


@lru_cache(maxsize=32)
def layouts(profiles: tuple[SliceProfile, ...], max_slices: int) -> tuple[Layout, ...]:
    """All ways to cut a GPU into at most `max_slices` that are no part of another way; parts of them fit as well."""
    names = [profile.name for profile in profiles]
    ways = _ways(profiles, max_slices)
    return tuple(
        {name: number for name, number in zip(names, way, strict=True) if number}
        for way in sorted(ways)
        # Whatever is a part of a way is one itself, so that one slice more tells.
        if not any(_one_more(way, index) in ways for index in range(len(names)))
    )


def _ways(profiles: tuple[SliceProfile, ...], max_slices: int) -> set[tuple[int, ...]]:
    """All numbers of slices by profile that one GPU can be cut into, parts of others too."""
    places = [
        (index, ((1 << profile.memory_slices) - 1) << start)
        for index, profile in enumerate(profiles)
        for start in profile.starts
    ]
    ways = {(0,) * len(profiles)}
    # The memory slices that are taken, a bit each, and the slices of each profile; one slice is added at a time.
    ends = {(0, way) for way in ways}
    for _ in range(max_slices):
        ends = {
            (taken | bits, _one_more(way, index))
            for taken, way in ends
            for index, bits in places
            if not taken & bits
        }
        ways.update(way for _, way in ends)
    return ways


def _one_more(way: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*way[:index], way[index] + 1, *way[index + 1 :])
