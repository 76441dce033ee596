"""What a node may report of: services that are there, its own GPUs, and what targets put on them.

Both stores leave everything else out of an observation, and count it: a node neither speaks for another one nor leaves
rows under names that never existed. Replicas drain, and agents send what they kept while they were cut off, so what a
target put on a GPU may be reported from there for LINGER after the target was replaced.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from msgspec import structs

from agents.base.protocol import (
    GpuReading,
    Observation,
    ReplicaReading,
    ServiceReading,
    UseReading,
)
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId, gpu_id

LINGER = timedelta(hours=1)
"""A replica that drains takes minutes, and an agent keeps half an hour of observations (`agents.sync.outbox`)."""

Part: TypeAlias = tuple[GpuId, str, str, str]
"""(GPU, `replica` or `task`, its id, its service): something that a target puts on a GPU."""

Places: TypeAlias = Mapping[Part, datetime | None]
"""Parts with the moment at which the last target that put them there was replaced; None = it is in force."""

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reportable:
    """What reports may name."""

    services: Collection[str] = frozenset()
    """That are there, by name; not those that were deleted."""
    gpus: Collection[GpuId] = frozenset()
    """The GPUs of registered nodes."""
    places: Places = field(default_factory=dict)

    def holds(self, part: Part, at: datetime) -> bool:
        """Whether a target puts the part there, or did so not long before."""
        until = self.places.get(part, _NEVER)
        return until is None or until > at - LINGER


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What a store takes of an observation."""

    observation: Observation
    """With that alone of which its node may report."""
    held: frozenset[str]
    """Tasks that it says are finished on a GPU of its own on which a target put them, now or not long before."""
    dropped: Mapping[str, int]
    """Readings that were left out, by kind."""


def places_under(before: Places, target: BoundPlan, at: datetime) -> Places:
    """What targets put where, from the moment on at which another one comes into force."""
    present: dict[Part, datetime | None] = dict.fromkeys(_parts(target))
    gone = {
        part: until or at
        for part, until in before.items()
        if part not in present and (until is None or until > at - LINGER)
    }
    return present | gone


def _parts(target: BoundPlan) -> Iterator[Part]:
    for gpu in target.gpus:
        for replica in gpu.replicas:
            yield gpu.id, "replica", replica.id, replica.service
        for task in gpu.tasks:
            yield gpu.id, "task", task.name, ""


def admit(
    observation: Observation, reportable: Reportable, received: datetime
) -> Admitted:
    """The observation without what its node may not report of."""
    node = observation.node

    def is_own_gpu(reading: GpuReading) -> bool:
        return gpu_id(node, reading.index) in reportable.gpus

    def is_known(reading: ServiceReading) -> bool:
        return reading.service in reportable.services

    def is_placed(reading: ReplicaReading) -> bool:
        gpu = gpu_id(node, reading.gpu_index)
        return reportable.holds((gpu, "replica", reading.id, reading.service), received)

    def is_own_use(use: UseReading) -> bool:
        gpu = gpu_id(node, use.gpu_index)
        if use.kind in ("replica", "task"):
            return reportable.holds((gpu, use.kind, use.name, use.service), received)
        # Nobody's use has one name: hours are summed by it.
        return gpu in reportable.gpus and use.name == f"({use.kind})"

    kept = {
        "gpus": tuple(filter(is_own_gpu, observation.gpus)),
        "services": tuple(filter(is_known, observation.services)),
        "replicas": tuple(filter(is_placed, observation.replicas)),
        "uses": tuple(filter(is_own_use, observation.uses)),
    }
    dropped = {
        name: count
        for name, readings in kept.items()
        if (count := len(getattr(observation, name)) - len(readings))
    }
    return Admitted(
        # A copy only where something is left out: nearly all observations stay as they are.
        observation=structs.replace(observation, **kept) if dropped else observation,
        held=_held(observation, reportable, received),
        dropped=dropped,
    )


def _held(
    observation: Observation, reportable: Reportable, received: datetime
) -> frozenset[str]:
    return frozenset(
        task.name
        for task in observation.tasks
        if task.state == "finished"
        and reportable.holds(
            (gpu_id(observation.node, task.gpu_index), "task", task.name, ""), received
        )
    )


def dropped_in(admitted: Collection[Admitted]) -> Mapping[str, int]:
    """Readings that were left out of several observations, by kind."""
    dropped: Counter[str] = Counter()
    for each in admitted:
        dropped.update(each.dropped)
    return dict(dropped)
