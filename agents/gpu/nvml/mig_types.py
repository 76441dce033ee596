"""What is said about slices of a GPU (MIG): profiles, instances and slices; and where they stand among the GPUs.

A slice is a GPU instance (memory and SMs of its own, at a place of the GPU) with a compute instance in it that has all
of them; only that is a device which programs can use. A GPU in MIG mode is no device any more: its slices are.

    MigProfile    a kind of slice that the GPU can have, e.g. 3g.71gb     Placement     where on the GPU
    MigInstance   a GPU instance that is there                            MigSlice      a device

**Index of a slice**: 1000 · (index of its GPU + 1) + 10 · GPU instance + compute instance. So no slice has the index of
a whole GPU or of another slice, and none changes when another slice goes.

**Type of a slice**: its GPU's type, `-MIG-` and its profile: `H100-80GB-MIG-1g.10gb`. The `+` of profiles with media
engines (`1g.10gb+me`) becomes `.`, as names in the catalogue have none.
"""

import re
from dataclasses import dataclass

from agents.base.device import MAX_REPLICAS, DeviceError

INDICES_PER_GPU, INDICES_PER_INSTANCE = 1000, 10
_SEVENTHS = 7


class InUse(DeviceError):
    """The driver does not let go of something that programs use."""


class NoRoom(DeviceError):
    """A slice does not fit next to those that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A stretch of the GPU's memory slices, of which there are eight."""

    start: int
    size: int

    def overlaps(self, other: "Placement") -> bool:
        """Whether they have a memory slice in common."""
        return (
            self.start < other.start + other.size
            and other.start < self.start + self.size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of slice."""

    id: int
    """The driver's number; not the same on every GPU."""
    name: str
    slice_count: int
    """Sevenths of the GPU's SMs."""
    sm_count: int
    memory_mib: float
    max_count: int
    """On an empty GPU."""
    free_count: int | None
    """How many more there is room for; None where this user may not ask."""
    placements: tuple[Placement, ...] = ()
    """Where it may lie on an empty GPU; empty where this user may not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance."""

    id: int
    profile_id: int
    placement: Placement
    compute_count: int
    """Compute instances in it: 1 makes a slice, 0 is of no use yet, more share its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A part of a GPU that is a device of its own (a MIG device)."""

    uuid: str
    """`MIG-…`, what CUDA_VISIBLE_DEVICES takes."""
    name: str
    """As the driver says, e.g. `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    gpu_instance: int
    compute_instance: int = 0
    sm_count: int
    memory_mib: float

    @property
    def profile(self) -> str:
        """E.g. `1g.10gb`."""
        return self.name.rpartition("MIG ")[2].strip()


def slice_index(gpu_index: int, gpu_instance: int, compute_instance: int) -> int:
    """See the module's docstring."""
    return (
        INDICES_PER_GPU * (gpu_index + 1)
        + INDICES_PER_INSTANCE * gpu_instance
        + compute_instance
    )


def slice_type(gpu_type: str, profile: str) -> str:
    """The catalogue's name of a slice."""
    return f"{gpu_type}-MIG-{profile.replace('+', '.')}"


def max_clients(profile: str) -> int:
    """Clients that one MPS server takes on a slice of that profile: of the whole GPU's as many sevenths as it has.

    Empty: a whole GPU.
    """
    sevenths = re.match(r"(?:\d+c\.)?(\d+)g\.", profile)
    return (
        max(1, MAX_REPLICAS * int(sevenths[1]) // _SEVENTHS)
        if sevenths
        else MAX_REPLICAS
    )


def parent_index(index: int) -> int:
    """Index of the GPU that a device is, or is a slice of."""
    return index if index < INDICES_PER_GPU else index // INDICES_PER_GPU - 1
