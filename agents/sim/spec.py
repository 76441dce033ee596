"""What a simulated cluster consists of, and what goes wrong in it."""

import math
from dataclasses import dataclass
from typing import Literal

from agents.sim.truth.tables import read_types

FaultKind = Literal[
    "gpu_lost", "node_lost", "launch_failure", "straggler", "silent", "stale"
]


BUSIEST = "busiest"
"""In place of a node's name: the one with the highest planned rate when the fault begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One simulated GPU."""

    gpu_type: str
    memory_mib: float
    max_clock_mhz: float
    """The graphics clock when nothing is locked."""
    max_replicas: int = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNodeSpec:
    """One simulated machine."""

    name: str
    gpus: tuple[GpuSpec, ...]
    launch_s: float = 5.0
    """From the start of a replica until it is ready: container, weights, warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong between two moments of trace time.

    gpu_lost: the GPU stops, its replicas fail and lose their requests. node_lost: all GPUs of the node, and its agent
    is cut off. launch_failure: a replica that should become ready fails. straggler: everything on the GPU takes
    `factor` times as long. silent: the agent is cut off. stale: what the agent reports arrives `delay_s` late.
    """

    kind: FaultKind
    node: str
    """Its name, or BUSIEST."""
    start_s: float
    end_s: float = math.inf
    gpu_index: int | None = None
    """None = every GPU of the node."""
    factor: float = 1.0
    delay_s: float = 0.0

    def is_on(self, at_s: float) -> bool:
        """Whether it lasts then."""
        # Half open, so that two faults that follow each other never overlap.
        return self.start_s <= at_s < self.end_s

    def hits(self, node: str, gpu_index: int, at_s: float) -> bool:
        """Whether it affects that GPU then."""
        return (
            self.node == node
            and self.gpu_index in (None, gpu_index)
            and self.is_on(at_s)
        )


def make_node(
    name: str, gpu_type: str, *, gpus: int, memory_mib: float, launch_s: float = 5.0
) -> SimulatedNodeSpec:
    """A node with equal GPUs of a type that can be simulated; ValueError names the types that can."""
    types = read_types()
    if gpu_type not in types:
        raise ValueError(
            f"no GPU type {gpu_type!r} to simulate; known: {', '.join(types)}"
        )
    gpu = GpuSpec(
        gpu_type=gpu_type,
        memory_mib=memory_mib,
        max_clock_mhz=types[gpu_type].max_clock_mhz,
    )
    return SimulatedNodeSpec(name=name, gpus=(gpu,) * gpus, launch_s=launch_s)
