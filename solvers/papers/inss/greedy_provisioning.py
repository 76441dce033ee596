"""A greedy way to find a provision.

The service that needs most is served first. Each goes where the least money's worth of SM percent carries what is left
of its rate and leaves the others what they need, else where most of it is carried. Where services fall short, it tries
again with those first. What is free then widens the service with least room.

Source: ours, for InSS (section 5.2 leaves that to its actor) where no actor is valid.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.greedy.configure import MAX_REPLICAS, MIN_CAPACITY_RPS
from solvers.greedy.routing import ROUNDING
from solvers.laws.operating_rows import SM_PERCENT_TOLERANCE
from solvers.papers.inss.batch_decision import BatchDecision
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provision,
    Provisioned,
    Settled,
    Share,
    replicas_by_service,
)
from solvers.types.problem import ServiceDemand
from solvers.types.state import GpuType

_TRIES = 4
"""Orders of services that the greedy provisioner goes through while some fall short."""
_GPUS_TO_TRY = 8
"""Different GPUs of each type that are tried for a replica, the fullest first; all of a large fleet would take long."""


def provision_greedily(decider: BatchDecider) -> Settled:
    """The best of a few orders in which services are served."""
    order = _hardest_first(decider)
    tried: list[Settled] = []
    for _ in range(_TRIES):
        settled = decider.settle(widened(decider, _Filling(decider).fill(order)))
        tried.append(settled)
        short = {service.name for service in decider.short(settled)}
        # Stable: services that fall short come first, and both parts keep their order.
        retried = sorted(order, key=lambda each: each.name not in short)
        if not short or retried == order:
            break
        order = retried
    best = tried[0]
    for settled in tried[1:]:
        if decider.unserved(settled) < decider.unserved(best) - ROUNDING:
            best = settled
    return best


class _Filling:
    """GPUs while they are given away."""

    def __init__(self, decider: BatchDecider) -> None:
        self._decider = decider
        self._gpus: list[Provisioned] = []
        self._needs: list[dict[str, float]] = []
        self._replicas: Counter[str] = Counter()

    def fill(self, order: Sequence[ServiceDemand]) -> Provision:
        """Serve all, in that order."""
        for service in order:
            self._serve(service)
        return tuple(self._gpus)

    def _serve(self, service: ServiceDemand) -> None:
        name, left_rps = service.name, service.arrival_rate_rps
        limit = self._decider.max_replicas(service)
        while (
            left_rps > ROUNDING * service.arrival_rate_rps
            or self._replicas[name] < service.min_replicas
        ):
            if self._replicas[name] >= limit or self._replicas.total() >= MAX_REPLICAS:
                break
            # Counted before it is placed, since the service's rate is shared by one replica more.
            self._replicas[name] += 1
            options = self._options(service, left_rps)
            best = min(options, key=lambda option: option.rank, default=None)
            if best is None:
                self._replicas[name] -= 1
                break
            self._take(best, name, left_rps)
            left_rps -= best.carried_rps

    def _take(self, option: "_Option", service: str, left_rps: float) -> None:
        at = option.at
        # A GPU that was empty until now follows last, so that the places of the others stay.
        if at is None:
            at = len(self._gpus)
            self._gpus.append(option.gpu)
            self._needs.append({})
        self._gpus[at] = option.gpu
        self._needs[at][service] = min(left_rps, option.carried_rps)

    def _options(self, service: ServiceDemand, left_rps: float) -> Iterator["_Option"]:
        for gpu_type in sorted(
            self._decider.problem.gpu_types, key=lambda one: one.name
        ):
            if not self._decider.percents(service.name, gpu_type.name):
                continue
            for at in self._places(gpu_type.name, service.name, gpu_type.count):
                yield from self._options_at(at, service.name, gpu_type, left_rps)

    def _options_at(
        self,
        at: int | None,
        service: str,
        gpu_type: GpuType,
        left_rps: float,
    ) -> Iterator["_Option"]:
        """Rising SM percents on one GPU, up to the first that is enough."""
        for percent in self._decider.percents(service, gpu_type.name):
            option = self._option(at, Share(service, percent), gpu_type.name, left_rps)
            if option is None:
                continue
            before = option.rank[:2]
            paid = option.rank[2]
            after = option.rank[3:]
            price = gpu_type.price_usd_per_hour
            yield replace(option, rank=(*before, paid * price, *after))
            # More than enough would only cost more.
            if not option.rank[0]:
                break

    def _places(
        self,
        gpu_type: str,
        service: str,
        stock: int | None,
    ) -> Iterator[int | None]:
        """Different GPUs that might take the service, the fullest first; None = one that is still empty."""
        mine = [at for at, gpu in enumerate(self._gpus) if gpu.gpu_type == gpu_type]
        seen: set[tuple[Share, ...]] = set()
        for at in sorted(mine, key=lambda at: (-self._gpus[at].given_percent, at)):
            shares = self._gpus[at].shares
            # GPUs with equal shares would give equal options.
            if shares in seen or any(share.service == service for share in shares):
                continue
            seen.add(shares)
            yield at
            if len(seen) >= _GPUS_TO_TRY:
                break
        if stock is None or len(mine) < stock:
            yield None

    def _option(
        self,
        at: int | None,
        share: Share,
        gpu_type: str,
        left_rps: float,
    ) -> "_Option | None":
        before = Provisioned(gpu_type) if at is None else self._gpus[at]
        gpu = Provisioned(gpu_type, (*before.shares, share))
        batches = self._decider.settle_gpu(gpu, self._replicas)
        if batches is None or batches[-1].carried_rps < MIN_CAPACITY_RPS:
            return None
        if at is not None and not self._keeps_needs(at, batches):
            return None
        carried = batches[-1].carried_rps
        is_short = carried < left_rps * (1.0 - ROUNDING)
        rank = (
            is_short,
            -carried if is_short else 0.0,
            share.sm_percent,
            -before.given_percent,
            gpu_type,
            at or 0,
        )
        return _Option(at=at, gpu=gpu, carried_rps=carried, rank=rank)

    def _keeps_needs(self, at: int, batches: Sequence[BatchDecision]) -> bool:
        """Whether the services that are there lose only what they have beyond their needs; the last batch is new."""
        needs = self._needs[at]
        return all(
            batch.carried_rps >= needs.get(other.service, 0.0) * (1.0 - ROUNDING)
            for other, batch in zip(self._gpus[at].shares, batches[:-1], strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One way to give a service a replica."""

    at: int | None
    gpu: Provisioned
    carried_rps: float
    rank: tuple[bool, float, float, float, str, int]
    """Whether it is too little, then how little; what it costs; how full the GPU is already: less is better."""


def _hardest_first(decider: BatchDecider) -> list[ServiceDemand]:
    """By the part of a whole GPU that the rate takes, the greatest first."""
    services = decider.problem.services
    parts = {service.name: _part(decider, service) for service in services}
    return sorted(
        services,
        key=lambda service: (-service.priority, -parts[service.name], service.name),
    )


def _part(decider: BatchDecider, service: ServiceDemand) -> float:
    """The service's rate over the most that one replica alone on a GPU carries; 0 where that is nothing."""
    max_rps = 0.0
    for gpu_type in decider.problem.gpu_types:
        percents = decider.percents(service.name, gpu_type.name)
        if percents:
            alone = Provisioned(gpu_type.name, (Share(service.name, percents[-1]),))
            batches = decider.settle_gpu(alone, {})
            max_rps = max(max_rps, batches[0].carried_rps if batches else 0.0)
    return service.arrival_rate_rps / max_rps if max_rps > 0.0 else 0.0


def widened(decider: BatchDecider, provision: Provision) -> Provision:
    """The provision with what is free given, step by step, to the replica with least room on its GPU."""
    replicas = replicas_by_service(provision)
    wider: dict[Provisioned, Provisioned] = {}
    for gpu in provision:
        if gpu not in wider:
            wider[gpu] = _widened_gpu(decider, gpu, replicas)
    return tuple(wider[gpu] for gpu in provision)


def _widened_gpu(
    decider: BatchDecider,
    gpu: Provisioned,
    replicas: Mapping[str, int],
) -> Provisioned:
    now = gpu
    rooms = _rooms(decider, gpu, replicas)
    while rooms is not None:
        widened = _one_wider(decider, now, rooms, replicas)
        if widened is None:
            return now
        now, rooms = widened
    return now


def _one_wider(
    decider: BatchDecider,
    gpu: Provisioned,
    rooms: Sequence[float],
    replicas: Mapping[str, int],
) -> tuple[Provisioned, list[float]] | None:
    """The GPU with one share wider, the first that gains by it, in the order of least room; and the rooms then."""
    for at in sorted(range(len(rooms)), key=lambda at: (rooms[at], at)):
        wider = _wider(decider, gpu, at)
        after = _rooms(decider, wider, replicas) if wider is not None else None
        if wider is None or after is None:
            continue
        # A wider share presses more on the others: the one with the least room must not pay for it.
        if min(after) >= min(rooms) * (1.0 - ROUNDING) and after[at] > rooms[at]:
            return wider, after
    return None


def _rooms(
    decider: BatchDecider,
    gpu: Provisioned,
    replicas: Mapping[str, int],
) -> list[float] | None:
    """What each share carries over its part of its service's rate; None where the GPU cannot hold them."""
    batches = decider.settle_gpu(gpu, replicas)
    if batches is None:
        return None
    rooms = []
    for share, batch in zip(gpu.shares, batches, strict=True):
        service = decider.problem.service(share.service)
        rate_rps = service.arrival_rate_rps / max(1, replicas[share.service])
        rooms.append(batch.carried_rps / rate_rps if rate_rps > 0.0 else math.inf)
    return rooms


def _wider(decider: BatchDecider, gpu: Provisioned, at: int) -> Provisioned | None:
    """The GPU with that share at the next SM percent; None where there is none."""
    share = gpu.shares[at]
    free_percent = 100.0 - gpu.given_percent
    for step in decider.percents(share.service, gpu.gpu_type):
        if step > share.sm_percent + SM_PERCENT_TOLERANCE:
            # Only the next step: where it does not fit, no larger one does.
            if step - share.sm_percent > free_percent + SM_PERCENT_TOLERANCE:
                return None
            wider = Share(share.service, step)
            return Provisioned(
                gpu.gpu_type, (*gpu.shares[:at], wider, *gpu.shares[at + 1 :])
            )
    return None
