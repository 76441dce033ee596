"""A greedy way to find a provision.

The service that needs most is served first. Each goes where the least money's worth of SM percent carries what is left
of its rate and leaves the others what they need, else where most of it is carried. Where services fall short, it tries
again with those first. What is free then widens whoever has least room.

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
)
from solvers.types.problem import ServiceDemand
from solvers.types.state import GpuType

_TRIES = 4
"""Orders of services that the greedy provisioner goes through while some fall short."""
_GPUS_TO_TRY = 8
"""Of each GPU type, the fullest ones with room; beyond, a fleet of hundreds would be looked at for every replica."""


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
            if not self._settler.percents(service.name, gpu_type.name):
                continue
            for at in self._places(gpu_type.name, service.name, gpu_type.count):
                yield from self._options_at(at, service.name, gpu_type, left_rps)

    def _options_at(
        self, at: int | None, service: str, gpu_type: GpuType, left_rps: float
    ) -> Iterator["_Option"]:
        """Rising SM percents on one GPU, up to the first that is enough."""
        for percent in self._settler.percents(service, gpu_type.name):
            option = self._option(at, Share(service, percent), gpu_type.name, left_rps)
            if option is None:
                continue
            before, paid, after = option.rank[:2], option.rank[2], option.rank[3:]
            price = gpu_type.price_usd_per_hour
            yield replace(option, rank=(*before, paid * price, *after))
            if not option.rank[0]:
                break

    def _places(
        self, gpu_type: str, service: str, stock: int | None
    ) -> Iterator[int | None]:
        """Different GPUs that might take the service, the fullest first; None = one that is still empty."""
        mine = [at for at, gpu in enumerate(self._gpus) if gpu.gpu_type == gpu_type]
        seen: set[tuple[Share, ...]] = set()
        for at in sorted(mine, key=lambda at: (-self._gpus[at].given_percent, at)):
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
            -before.given_percent,
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
        or gpu.given_percent + wider - share.sm_percent > 100.0 + SM_PERCENT_TOLERANCE
    ):
        return None
    return Provisioned(
        gpu.gpu_type,
        (*gpu.shares[:at], Share(share.service, wider), *gpu.shares[at + 1 :]),
    )
