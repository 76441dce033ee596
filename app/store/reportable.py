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

from agents.base.protocol import Observation, UseReading
from solvers.types.plan import BoundPlan
from solvers.types.state import GpuId, gpu_id

LINGER = timedelta(hours=1)
"""A replica that drains takes minutes, and an agent keeps half an hour of observations (`agents.sync.outbox`)."""

MAX_REPLACED = 100_000
"""Parts of replaced targets that a process remembers: some 40 MB."""

Part: TypeAlias = tuple[GpuId, str, str, str]
"""(GPU, `replica` or `task`, its id, its service): something that a target puts on a GPU."""

Places: TypeAlias = Mapping[Part, datetime | None]
"""Parts with the moment at which the last target that put them there was replaced; None = it is in force."""

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became of a batch of observations."""

    acknowledged: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, boot) → highest sequence number that is durable."""
    unknown_nodes: tuple[str, ...] = ()
    refused_boots: frozenset[tuple[str, str]] = frozenset()
    """(node, boot) of which nothing was kept: the node's agent was started too often. In PostgreSQL alone."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Readings of what their nodes may not report of, by kind (`app.store.reportable`), and acknowledgements of
    commands that never were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reportable:
    """What reports may name."""

    services: Collection[str] = frozenset()
    """That are there, by name; not those that were deleted."""
    gpus: Collection[GpuId] = frozenset()
    """The GPUs of registered nodes."""
    places: Places = field(default_factory=dict)

    def holds(self, part: Part, ended: datetime) -> bool:
        """Whether a target puts the part there, or one did that was replaced after `ended`."""
        until = self.places.get(part, _NEVER)
        return until is None or until > ended


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
    return places_after(before, dict.fromkeys(_parts(target)), at)


def places_after(before: Places, newer: Places, at: datetime) -> Places:
    """The same after several targets, of which the first came into force `at`. `newer`: what these put where."""
    gone = {
        part: until or at
        for part, until in before.items()
        if part not in newer and (until is None or until > at - LINGER)
    }
    # Only plans that move all of a large fleet each minute come to this number: the oldest have drained long ago.
    if len(gone) > MAX_REPLACED:
        newest = sorted(gone.items(), key=lambda entry: entry[1])[-MAX_REPLACED:]
        gone = dict(newest)
    return {**gone, **newer}


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
    # What targets of before put somewhere may be reported from there no more.
    ended = received - LINGER
    kept = _own(observation, reportable, ended)
    dropped = {
        name: count
        for name, readings in kept.items()
        if (count := len(getattr(observation, name)) - len(readings))
    }
    held = (
        each.name
        for each in observation.tasks
        if each.state == "finished"
        and reportable.holds(
            (gpu_id(observation.node, each.gpu_index), "task", each.name, ""), ended
        )
    )
    return Admitted(
        # A copy only where something is left out: nearly all observations stay as they are.
        observation=structs.replace(observation, **kept) if dropped else observation,
        held=frozenset(held),
        dropped=dropped,
    )


def _own(
    observation: Observation, reportable: Reportable, ended: datetime
) -> Mapping[str, tuple[object, ...]]:
    """The readings of which its node may report, by the observation's field."""
    node, holds = observation.node, reportable.holds
    # Comprehensions, since a thousand observations come in a second: calls would cost more than the look.
    gpus = [
        each for each in observation.gpus if gpu_id(node, each.index) in reportable.gpus
    ]
    services = [
        each for each in observation.services if each.service in reportable.services
    ]
    replicas = [
        each
        for each in observation.replicas
        if holds(
            (gpu_id(node, each.gpu_index), "replica", each.id, each.service), ended
        )
    ]
    failures = [
        each
        for each in observation.failures
        if holds(
            (
                gpu_id(node, each.gpu_index),
                "replica" if each.service else "task",
                each.replica,
                each.service,
            ),
            ended,
        )
    ]
    launches = [
        each
        for each in observation.launches
        if holds(
            (gpu_id(node, each.gpu_index), "replica", each.replica, each.service), ended
        )
    ]
    uses = [
        each
        for each in observation.uses
        if _is_own_use(each, gpu_id(node, each.gpu_index), reportable, ended)
    ]
    return {
        "gpus": tuple(gpus),
        "services": tuple(services),
        "replicas": tuple(replicas),
        "uses": tuple(uses),
        "failures": tuple(failures),
        "launches": tuple(launches),
    }


def _is_own_use(
    use: UseReading, gpu: GpuId, reportable: Reportable, ended: datetime
) -> bool:
    if use.kind in ("replica", "task"):
        return reportable.holds((gpu, use.kind, use.name, use.service), ended)
    # What belongs to none has one name: hours are summed by it.
    return gpu in reportable.gpus and use.name == f"({use.kind})"


def dropped_in(admitted: Collection[Admitted]) -> Mapping[str, int]:
    """Readings that were left out of several observations, by kind."""
    return add_counts(*(each.dropped for each in admitted))


def add_counts(*counts: Mapping[str, int]) -> Mapping[str, int]:
    """The sum of several, by kind, without zeros."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {kind: count for kind, count in total.items() if count}
