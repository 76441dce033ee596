"""Provisions: which service holds which SM percent on which GPU, and the batches that follow.

A provision says nothing of batches or rates: those are decided for the rates of the moment
(`solvers.papers.inss.batch_decision`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from solvers.greedy.configure import MAX_REPLICAS, fitting_rows, planning_clock_mhz
from solvers.greedy.routing import ROUNDING, ArrangedReplica, Carrier
from solvers.laws.operating_rows import SM_PERCENT_DIGITS, SM_PERCENT_TOLERANCE
from solvers.papers.inss.batch_decision import (
    BatchDecision,
    BatchHost,
    BatchTenant,
    decide_batches,
)
from solvers.types.plan import Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand

RowsByPercent = dict[float, tuple[OperatingPoint, ...]]


class Share(NamedTuple):
    """What one replica holds."""

    service: str
    sm_percent: float


class Provisioned(NamedTuple):
    """One GPU of a provision."""

    gpu_type: str
    shares: tuple[Share, ...] = ()

    @property
    def given_percent(self) -> float:
        """The SM percents of its shares together."""
        return sum(share.sm_percent for share in self.shares)


Provision = tuple[Provisioned, ...]


def provision_of_plan(plan: Plan) -> Provision:
    """What a plan provisions, one entry for each of its GPUs."""
    return tuple(
        Provisioned(
            gpu.gpu_type,
            tuple(Share(each.service, each.sm_percent) for each in gpu.replicas),
        )
        for gpu in plan.gpus
        # No provision has more GPUs than a plan has replicas.
        for _ in range(min(gpu.count, MAX_REPLICAS))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningRules:
    """How the planner reckons."""

    knows_neighbours: bool = True
    one_gpu_each: bool = False
    """The paper's constraint 1e: no service has a second replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A provision with its batches."""

    provision: Provision
    batches: tuple[tuple[BatchDecision, ...], ...]
    """By GPU, in the order of its shares."""
    carried_rps: Mapping[str, float]
    """By service."""

    def carriers(self) -> list[Carrier]:
        """The GPUs that carry anything, with their rows."""
        return [
            Carrier(
                gpu_type=gpu.gpu_type,
                seats=tuple(
                    ArrangedReplica(service=share.service, row=batch.row)
                    for share, batch in zip(gpu.shares, batches, strict=True)
                ),
            )
            for gpu, batches in zip(self.provision, self.batches, strict=True)
            if gpu.shares
        ]


@dataclass(frozen=True, kw_only=True)
class BatchDecider:
    """Decides batches for provisions of one Problem."""

    problem: Problem
    rules: ProvisioningRules
    queued: Mapping[str, float] = field(default_factory=dict)
    """Requests that wait, by service."""

    @cached_property
    def _rows(self) -> dict[tuple[str, str], RowsByPercent]:
        """By service and GPU type: rows by SM percent, ascending in it and in the batch."""
        found: dict[tuple[str, str], RowsByPercent] = {}
        for gpu_type in self.problem.gpu_types:
            # InSS sets no clocks: all rows are of the one that a plan will have.
            clock_mhz = planning_clock_mhz(self.problem, gpu_type)
            for service in self.problem.services:
                rows: Iterable[OperatingPoint] = ()
                if service.allows(gpu_type.name):
                    rows = fitting_rows(self.problem, service, gpu_type, clock_mhz)
                found[service.name, gpu_type.name] = _by_percent(rows)
        return found

    def percents(self, service: str, gpu_type: str) -> tuple[float, ...]:
        """The SM percents at which the service was profiled there and fits, ascending."""
        return tuple(self._rows[service, gpu_type])

    def rows(self, share: Share, gpu_type: str) -> tuple[OperatingPoint, ...]:
        """The share's batches; empty where there are none."""
        return self._rows.get((share.service, gpu_type), {}).get(
            round(share.sm_percent, SM_PERCENT_DIGITS), ()
        )

    def settle_gpu(
        self,
        gpu: Provisioned,
        replicas: Mapping[str, int],
    ) -> tuple[BatchDecision, ...] | None:
        """The batches of one GPU, None where it cannot hold them; `replicas`: how many share a service's rate."""
        if len(gpu.shares) > self.problem.max_replicas_per_gpu:
            return None
        if gpu.given_percent > 100.0 + SM_PERCENT_TOLERANCE:
            return None
        host = BatchHost(
            gpu_type=self.problem.gpu_type(gpu.gpu_type),
            law=self.problem.capacity_law,
            knows_neighbours=self.rules.knows_neighbours,
        )
        tenants = [
            # Rates are shared evenly; routing may do better, once the batches are known.
            self._tenant(share, gpu.gpu_type, max(1, replicas.get(share.service, 1)))
            for share in gpu.shares
        ]
        known = [tenant for tenant in tenants if tenant is not None]
        return decide_batches(host, known) if len(known) == len(tenants) else None

    def settle(self, provision: Provision) -> Settled:
        """The provision with its batches; GPUs that cannot hold their shares lose them."""
        replicas = replicas_by_service(provision)
        lawful: list[Provisioned] = []
        found: list[tuple[BatchDecision, ...]] = []
        for gpu in provision:
            batches = self.settle_gpu(gpu, replicas)
            # An empty GPU stays in the provision, so that each GPU keeps its place among the batches.
            lawful.append(gpu if batches is not None else Provisioned(gpu.gpu_type))
            found.append(batches or ())
        return Settled(
            provision=tuple(lawful),
            batches=tuple(found),
            carried_rps=self._carried_rps(lawful, found),
        )

    def _carried_rps(
        self,
        gpus: Sequence[Provisioned],
        batches: Sequence[Sequence[BatchDecision]],
    ) -> dict[str, float]:
        carried: dict[str, list[float]] = {
            service.name: [] for service in self.problem.services
        }
        for gpu, decided in zip(gpus, batches, strict=True):
            for share, batch in zip(gpu.shares, decided, strict=True):
                carried[share.service].append(batch.carried_rps)
        return {name: math.fsum(values) for name, values in carried.items()}

    def max_replicas(self, service: ServiceDemand) -> int:
        """How many replicas the service may have."""
        limit = 1 if self.rules.one_gpu_each else MAX_REPLICAS
        if service.max_replicas is not None:
            limit = min(limit, service.max_replicas)
        return limit

    def short(self, settled: Settled) -> list[ServiceDemand]:
        """The services that the provision does not serve in full, the most important first."""
        replicas = replicas_by_service(settled.provision)
        found = [
            service
            for service in self.problem.services
            if settled.carried_rps[service.name]
            < service.arrival_rate_rps * (1.0 - ROUNDING)
            or replicas[service.name] < service.min_replicas
        ]
        return sorted(found, key=lambda service: (-service.priority, service.name))

    def unserved(self, settled: Settled) -> float:
        """Weighted requests per second that are not carried, and replicas that are missing."""
        replicas = replicas_by_service(settled.provision)
        # A missing replica counts as much as one unserved request per second of priority 1: more than rounding.
        return sum(
            service.priority
            * max(0.0, service.arrival_rate_rps - settled.carried_rps[service.name])
            + max(0, service.min_replicas - replicas[service.name])
            for service in self.problem.services
        )

    def headroom(self, settled: Settled) -> float:
        """By which factor all rates could grow before one service falls short."""
        return min(
            (
                settled.carried_rps[service.name] / service.arrival_rate_rps
                for service in self.problem.services
                if service.arrival_rate_rps > 0.0
            ),
            default=math.inf,
        )

    def _tenant(self, share: Share, gpu_type: str, replicas: int) -> BatchTenant | None:
        rows = self.rows(share, gpu_type)
        if not rows:
            return None
        service = self.problem.service(share.service)
        points = self.problem.points_of(service.network, gpu_type)
        assert points is not None, "rows without operating points"
        return BatchTenant(
            rows=rows,
            sensitivity=points.sensitivity,
            slo_ms=service.slo_ms,
            percentile=service.percentile,
            arrival_rate_rps=service.arrival_rate_rps / replicas,
            queued=self.queued.get(service.name, 0.0) / replicas,
        )


def _by_percent(rows: Iterable[OperatingPoint]) -> RowsByPercent:
    by_percent: defaultdict[float, list[OperatingPoint]] = defaultdict(list)
    for row in sorted(rows):
        by_percent[round(row.sm_percent, SM_PERCENT_DIGITS)].append(row)
    return {percent: tuple(group) for percent, group in by_percent.items()}


def replicas_by_service(provision: Iterable[Provisioned]) -> Counter[str]:
    """How many replicas each service has."""
    return Counter(share.service for gpu in provision for share in gpu.shares)


def lawful(decider: BatchDecider, provision: Iterable[Provisioned]) -> Provision:
    """What of a provision may still be: services that are there, shares that were profiled, GPUs that are in stock.

    Where fewer GPUs are left, those with the least SM percent go.
    """
    by_type: defaultdict[str, list[Provisioned]] = defaultdict(list)
    for gpu in provision:
        shares = tuple(each for each in gpu.shares if decider.rows(each, gpu.gpu_type))
        by_type[gpu.gpu_type].append(Provisioned(gpu.gpu_type, shares))
    kept: list[Provisioned] = []
    for gpu_type in sorted(decider.problem.gpu_types, key=lambda one: one.name):
        kept += _stocked(by_type[gpu_type.name], gpu_type.count)
    return tuple(kept)


def _stocked(gpus: Sequence[Provisioned], stock: int | None) -> list[Provisioned]:
    """As many as there are GPUs, the fullest ones, in their order."""
    # A provision does not say which GPUs are lost. The emptiest are given up: fewest replicas start elsewhere.
    fullest = sorted(range(len(gpus)), key=lambda at: (-gpus[at].given_percent, at))
    return [gpus[at] for at in sorted(fullest[:stock])]
