"""Provisions: which service holds which SM percent on which GPU, the batches that follow, and a greedy way to find one.

A provision says nothing of batches or rates: those are decided for the rates of the moment
(`solvers.papers.inss.batch_decision`). The greedy provisioner serves the service that needs most first. Each goes where
the least money's worth of SM percent carries what is left of its rate and leaves the others what they need, else where
most of it is carried. Where services fall short, it tries again with those first. What is free then widens whoever has
least room.

Source: ours, for InSS (section 5.2 leaves that to its actor) where no actor is valid.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    fitting_rows,
    planning_clock_mhz,
)
from solvers.greedy.routing import ROUNDING, ArrangedReplica, Carrier
from solvers.laws.operating_rows import SM_PERCENT_DIGITS, SM_PERCENT_TOLERANCE
from solvers.papers.inss.batch_decision import (
    BatchDecision,
    BatchHost,
    BatchTenant,
    decide_batches,
)
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand

_TRIES = 4
"""Orders of services that the greedy provisioner goes through while some fall short."""
_GPUS_TO_TRY = 8
"""Of each GPU type, the fullest ones with room; beyond, a fleet of hundreds would be looked at for every replica."""


class Share(NamedTuple):
    """What one replica holds."""

    service: str
    sm_percent: float


class Provisioned(NamedTuple):
    """One GPU of a provision."""

    gpu_type: str
    shares: tuple[Share, ...] = ()


Provision = tuple[Provisioned, ...]


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
    belief: ProvisioningRules
    queued: Mapping[str, float] = field(default_factory=dict)
    """Requests that wait, by service."""

    @cached_property
    def _rows(self) -> dict[tuple[str, str], dict[float, tuple[OperatingPoint, ...]]]:
        """By service and GPU type: rows by SM percent, ascending in it and in the batch."""
        found: dict[tuple[str, str], dict[float, tuple[OperatingPoint, ...]]] = {}
        for gpu_type in self.problem.gpu_types:
            clock_mhz = planning_clock_mhz(self.problem, gpu_type)
            for service in self.problem.services:
                rows = (
                    fitting_rows(self.problem, service, gpu_type, clock_mhz)
                    if service.allows(gpu_type.name)
                    else ()
                )
                by_percent: dict[float, list[OperatingPoint]] = {}
                for row in sorted(rows):
                    by_percent.setdefault(
                        round(row.sm_percent, SM_PERCENT_DIGITS), []
                    ).append(row)
                found[service.name, gpu_type.name] = {
                    key: tuple(group) for key, group in by_percent.items()
                }
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
        self, gpu: Provisioned, replicas: Mapping[str, int]
    ) -> tuple[BatchDecision, ...] | None:
        """The batches of one GPU, None where it cannot hold them; `replicas`: how many share a service's rate."""
        if len(gpu.shares) > self.problem.max_replicas_per_gpu:
            return None
        if sum(share.sm_percent for share in gpu.shares) > 100.0 + SM_PERCENT_TOLERANCE:
            return None
        gpu_type = self.problem.gpu_type(gpu.gpu_type)
        host = BatchHost(
            gpu_type=gpu_type,
            law=self.problem.capacity_law,
            knows_neighbours=self.belief.knows_neighbours,
        )
        tenants = [
            self._tenant(share, gpu.gpu_type, max(1, replicas.get(share.service, 1)))
            for share in gpu.shares
        ]
        known = [tenant for tenant in tenants if tenant is not None]
        return decide_batches(host, known) if len(known) == len(tenants) else None

    def settle(self, provision: Provision) -> Settled:
        """The provision with its batches; GPUs that cannot hold their shares lose them."""
        replicas = Counter(share.service for gpu in provision for share in gpu.shares)
        lawful, found = [], []
        carried: dict[str, list[float]] = {
            service.name: [] for service in self.problem.services
        }
        for gpu in provision:
            batches = self.settle_gpu(gpu, replicas)
            lawful.append(gpu if batches is not None else Provisioned(gpu.gpu_type))
            found.append(batches or ())
            for share, batch in zip(lawful[-1].shares, found[-1], strict=True):
                carried[share.service].append(batch.carried_rps)
        return Settled(
            provision=tuple(lawful),
            batches=tuple(found),
            carried_rps={name: math.fsum(values) for name, values in carried.items()},
        )

    def max_replicas(self, service: ServiceDemand) -> int:
        """How many replicas the service may have."""
        most = 1 if self.belief.one_gpu_each else MAX_REPLICAS
        return most if service.max_replicas is None else min(most, service.max_replicas)

    def short(self, settled: Settled) -> list[ServiceDemand]:
        """The services that the provision does not serve in full, the most important first."""
        replicas = Counter(
            share.service for gpu in settled.provision for share in gpu.shares
        )
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
        replicas = Counter(
            share.service for gpu in settled.provision for share in gpu.shares
        )
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


def provision_greedily(settler: BatchDecider) -> Settled:
    """The best of a few orders in which services are served."""
    order = _hardest_first(settler)
    best: Settled | None = None
    for _ in range(_TRIES):
        settled = settler.settle(_widened(settler, _Filling(settler).fill(order)))
        if (
            best is None
            or settler.unserved(settled) < settler.unserved(best) - ROUNDING
        ):
            best = settled
        short = [service.name for service in settler.short(settled)]
        retried = [
            *(each for each in order if each.name in short),
            *(each for each in order if each.name not in short),
        ]
        if not short or retried == order:
            break
        order = retried
    assert best is not None, "at least one order is tried"
    return best


def lawful(settler: BatchDecider, provision: Iterable[Provisioned]) -> Provision:
    """What of a provision may still be: services that are there, shares that were profiled, GPUs that are in stock.

    Where fewer GPUs are left, those with the least SM percent go.
    """
    problem = settler.problem
    kept: list[Provisioned] = []
    for gpu_type in sorted(problem.gpu_types, key=lambda one: one.name):
        mine = [
            Provisioned(
                gpu.gpu_type,
                tuple(
                    share for share in gpu.shares if settler.rows(share, gpu.gpu_type)
                ),
            )
            for gpu in provision
            if gpu.gpu_type == gpu_type.name
        ]
        stock = len(mine) if gpu_type.count is None else min(gpu_type.count, len(mine))
        fullest = sorted(
            range(len(mine)), key=lambda at: (-_given_percent(mine[at]), at)
        )[:stock]
        kept.extend(mine[at] for at in sorted(fullest))
    return tuple(kept)


class _Filling:
    """GPUs while they are given away."""

    def __init__(self, settler: BatchDecider) -> None:
        self._settler = settler
        self._gpus: list[Provisioned] = []
        self._needs: list[dict[str, float]] = []
        self._replicas: Counter[str] = Counter()

    def fill(self, order: Sequence[ServiceDemand]) -> Provision:
        """Serve all, in that order."""
        for service in order:
            self._serve(service)
        return tuple(self._gpus)

    def _serve(self, service: ServiceDemand) -> None:
        left_rps = service.arrival_rate_rps
        most = self._settler.max_replicas(service)
        while (
            left_rps > ROUNDING * service.arrival_rate_rps
            or self._replicas[service.name] < service.min_replicas
        ):
            if (
                self._replicas[service.name] >= most
                or self._replicas.total() >= MAX_REPLICAS
            ):
                break
            self._replicas[service.name] += 1
            options = list(self._options(service, left_rps))
            if not options:
                self._replicas[service.name] -= 1
                break
            best = min(options, key=lambda option: option.rank)
            if best.at is None:
                self._gpus.append(best.gpu)
                self._needs.append({})
            at = len(self._gpus) - 1 if best.at is None else best.at
            self._gpus[at] = best.gpu
            self._needs[at][service.name] = min(left_rps, best.carried_rps)
            left_rps -= best.carried_rps

    def _options(self, service: ServiceDemand, left_rps: float) -> Iterator["_Option"]:
        for gpu_type in sorted(
            self._settler.problem.gpu_types, key=lambda one: one.name
        ):
            percents = self._settler.percents(service.name, gpu_type.name)
            if not percents:
                continue
            price = gpu_type.price_usd_per_hour
            for at in self._places(gpu_type.name, service.name, gpu_type.count):
                for percent in percents:
                    option = self._option(
                        at, Share(service.name, percent), gpu_type.name, left_rps
                    )
                    if option is None:
                        continue
                    yield replace(
                        option,
                        rank=(
                            *option.rank[:2],
                            option.rank[2] * price,
                            *option.rank[3:],
                        ),
                    )
                    if not option.rank[0]:
                        break

    def _places(
        self, gpu_type: str, service: str, stock: int | None
    ) -> Iterator[int | None]:
        """Different GPUs that might take the service, the fullest first; None = one that is still empty."""
        mine = [at for at, gpu in enumerate(self._gpus) if gpu.gpu_type == gpu_type]
        seen: set[tuple[Share, ...]] = set()
        for at in sorted(mine, key=lambda at: (-_given_percent(self._gpus[at]), at)):
            shares = self._gpus[at].shares
            if shares in seen or any(share.service == service for share in shares):
                continue
            seen.add(shares)
            yield at
            if len(seen) >= _GPUS_TO_TRY:
                break
        if stock is None or len(mine) < stock:
            yield None

    def _option(
        self, at: int | None, share: Share, gpu_type: str, left_rps: float
    ) -> "_Option | None":
        before = Provisioned(gpu_type) if at is None else self._gpus[at]
        gpu = Provisioned(gpu_type, (*before.shares, share))
        batches = self._settler.settle_gpu(gpu, self._replicas)
        if batches is None or batches[-1].carried_rps < MIN_CAPACITY_RPS:
            return None
        needs = {} if at is None else self._needs[at]
        for other, batch in zip(before.shares, batches[:-1], strict=True):
            if batch.carried_rps < needs.get(other.service, 0.0) * (1.0 - ROUNDING):
                return None
        carried = batches[-1].carried_rps
        is_short = carried < left_rps * (1.0 - ROUNDING)
        rank = (
            is_short,
            -carried if is_short else 0.0,
            share.sm_percent,
            -_given_percent(before),
            gpu_type,
            at or 0,
        )
        return _Option(at=at, gpu=gpu, carried_rps=carried, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One way to give a service a replica."""

    at: int | None
    gpu: Provisioned
    carried_rps: float
    rank: tuple[bool, float, float, float, str, int]
    """Whether it is too little, then how little; what it costs; how full the GPU is already: less is better."""


def _hardest_first(settler: BatchDecider) -> list[ServiceDemand]:
    """By the part of a whole GPU that the rate takes, the greatest first."""

    def part(service: ServiceDemand) -> float:
        max_rps = 0.0
        for gpu_type in settler.problem.gpu_types:
            percents = settler.percents(service.name, gpu_type.name)
            if percents:
                alone = Provisioned(gpu_type.name, (Share(service.name, percents[-1]),))
                batches = settler.settle_gpu(alone, {})
                max_rps = max(max_rps, batches[0].carried_rps if batches else 0.0)
        return service.arrival_rate_rps / max_rps if max_rps > 0.0 else 0.0

    parts = {service.name: part(service) for service in settler.problem.services}
    return sorted(
        settler.problem.services,
        key=lambda service: (-service.priority, -parts[service.name], service.name),
    )


def _widened(settler: BatchDecider, provision: Provision) -> Provision:
    """The provision with what is free given, step by step, to whoever has least room on its GPU."""
    replicas = Counter(share.service for gpu in provision for share in gpu.shares)
    widened: dict[Provisioned, Provisioned] = {}
    for gpu in provision:
        if gpu not in widened:
            widened[gpu] = _widened_gpu(settler, gpu, replicas)
    return tuple(widened[gpu] for gpu in provision)


def _widened_gpu(
    settler: BatchDecider, gpu: Provisioned, replicas: Mapping[str, int]
) -> Provisioned:
    def room(carried: BatchDecision, share: Share) -> float:
        rate_rps = settler.problem.service(share.service).arrival_rate_rps / max(
            1, replicas[share.service]
        )
        return carried.carried_rps / rate_rps if rate_rps > 0.0 else math.inf

    now = gpu
    while (batches := settler.settle_gpu(now, replicas)) is not None:
        rooms = [
            room(batch, share) for batch, share in zip(batches, now.shares, strict=True)
        ]
        for at in sorted(range(len(rooms)), key=lambda at: (rooms[at], at)):
            wider = _wider(settler, now, at)
            after = settler.settle_gpu(wider, replicas) if wider is not None else None
            if wider is None or after is None:
                continue
            new = [
                room(batch, share)
                for batch, share in zip(after, wider.shares, strict=True)
            ]
            if min(new) >= min(rooms) * (1.0 - ROUNDING) and new[at] > rooms[at]:
                now = wider
                break
        else:
            return now
    return now


def _wider(settler: BatchDecider, gpu: Provisioned, at: int) -> Provisioned | None:
    """The GPU with that share at the next SM percent; None where there is none."""
    share = gpu.shares[at]
    steps = settler.percents(share.service, gpu.gpu_type)
    wider = next(
        (step for step in steps if step > share.sm_percent + SM_PERCENT_TOLERANCE), None
    )
    if (
        wider is None
        or _given_percent(gpu) + wider - share.sm_percent > 100.0 + SM_PERCENT_TOLERANCE
    ):
        return None
    return Provisioned(
        gpu.gpu_type,
        (*gpu.shares[:at], Share(share.service, wider), *gpu.shares[at + 1 :]),
    )


def _given_percent(gpu: Provisioned) -> float:
    return sum(share.sm_percent for share in gpu.shares)
