"""Dispatchers of jobs by policy: the pure functions of OLTunes' `schedule` and of `bench.papers.dispatch_*`, each with
what it remembers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.papers import dispatch_orion as orion
from bench.papers import dispatch_reserve_and_pack as reserve_and_pack
from bench.papers.dispatch_reserve_and_pack import Reservation
from solvers.papers.oltunes import least_cost, schedule
from solvers.papers.oltunes.queues import put_back
from solvers.types.jobs import (
    DispatchRules,
    DispatchState,
    Job,
    JobBatch,
    JobGpu,
    Queues,
    enqueue,
)


class Dispatcher(Protocol):
    """What the simulation asks of a policy."""

    @property
    def queues(self) -> Queues:
        """Who waits."""

    def submit(self, jobs: Iterable[Job]) -> None:
        """More jobs wait."""

    def step(self, gpus: Sequence[JobGpu], now_s: float) -> tuple[JobBatch, ...]:
        """What starts now."""

    def failed(self, batch: JobBatch) -> None:
        """A batch that could not be started comes back."""


@dataclass(slots=True, kw_only=True)
class OltunesDispatcher:
    """OLTunes' scheduler."""

    rules: DispatchRules
    state: DispatchState = field(default_factory=DispatchState)

    @property
    def queues(self) -> Queues:
        """Who waits."""
        return self.state.queues

    def submit(self, jobs: Iterable[Job]) -> None:
        """More jobs wait."""
        self.state = schedule.submitted(self.state, jobs)

    def step(self, gpus: Sequence[JobGpu], now_s: float) -> tuple[JobBatch, ...]:
        """What starts now."""
        decided = schedule.schedule(self.state, gpus, now_s, self.rules)
        self.state = decided.state
        return decided.batches

    def failed(self, batch: JobBatch) -> None:
        """A batch that could not be started comes back."""
        self.state = schedule.deployment_failed(self.state, batch)


@dataclass(slots=True, kw_only=True)
class OrionDispatcher:
    """The baseline `orion`."""

    ratios: Mapping[str, float]
    state: orion.OrionState = field(default_factory=orion.OrionState)

    @property
    def queues(self) -> Queues:
        """Who waits."""
        return self.state.queues

    def submit(self, jobs: Iterable[Job]) -> None:
        """More jobs wait."""
        self.state = orion.OrionState(
            queues=enqueue(self.state.queues, jobs), turn=self.state.turn
        )

    def step(self, gpus: Sequence[JobGpu], now_s: float) -> tuple[JobBatch, ...]:
        """What starts now."""
        del now_s
        batches, self.state = orion.schedule(self.state, gpus, self.ratios)
        return batches

    def failed(self, batch: JobBatch) -> None:
        """A batch that could not be started comes back."""
        jobs = (member.job for member in batch.members)
        self.state = orion.OrionState(
            queues=enqueue(self.state.queues, jobs), turn=self.state.turn
        )


@dataclass(slots=True, kw_only=True)
class PackingDispatcher:
    """The baseline `reserve_and_pack`."""

    reservation: Reservation
    queues: Queues = field(default_factory=Queues)

    def submit(self, jobs: Iterable[Job]) -> None:
        """More jobs wait."""
        self.queues = enqueue(self.queues, jobs)

    def step(self, gpus: Sequence[JobGpu], now_s: float) -> tuple[JobBatch, ...]:
        """What starts now."""
        del now_s
        batches, self.queues = reserve_and_pack.schedule(
            self.queues, gpus, self.reservation
        )
        return batches

    def failed(self, batch: JobBatch) -> None:
        """A batch that could not be started comes back."""
        self.queues = put_back(self.queues, (member.job for member in batch.members))


@dataclass(slots=True, kw_only=True)
class LeastCostDispatcher:
    """OLTunes' jobs by the parameter `dispatch: least cost`."""

    prices_usd_per_hour: Mapping[str, float]
    queues: Queues = field(default_factory=Queues)

    def submit(self, jobs: Iterable[Job]) -> None:
        """More jobs wait."""
        self.queues = enqueue(self.queues, jobs)

    def step(self, gpus: Sequence[JobGpu], now_s: float) -> tuple[JobBatch, ...]:
        """What starts now."""
        batches, self.queues = least_cost.schedule(
            self.queues, gpus, now_s, self.prices_usd_per_hour
        )
        return batches

    def failed(self, batch: JobBatch) -> None:
        """A batch that could not be started comes back."""
        self.queues = put_back(self.queues, (member.job for member in batch.members))
