"""Explain: why the GPUs of a plan of any policy run what they run, at the prices of the linear relaxation.

The price of a request is what one more of it per second costs when everything else may adjust, in fractions of GPUs. At
those prices every GPU earns about what it costs, where the relaxation would choose it; what earns less is there because
GPUs come in whole numbers, where the relaxation takes fractions.

The price of a GPU is what the plan pays for it: of a type that is owned, and of the first GPUs of a reserved one, the
energy only. So GPUs of a reserved type that run the same are two kinds where some of them are rented.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from solvers.explain.neighbours import NeighbourReader, ReplicaRow
from solvers.explain.types import Alternative, Earning, GpuExplanation
from solvers.joint.reserved import merged_name, split, split_plan
from solvers.laws.cost import gpu_power_w
from solvers.types.outcome import Prices
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem

_W_PER_KW = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExplanations:
    """Why the GPUs of a plan run what they run."""

    kinds: tuple[GpuExplanation, ...] = ()
    """The kinds with the highest list prices first."""
    left_out: int = 0
    """Kinds beyond those."""


NO_GPUS = GpuExplanations()


def _none(gpu: GpuPlan) -> tuple[Alternative, ...]:  # noqa: ARG001
    """None, where alternatives were not looked for."""
    return ()


def explain_gpus(
    reader: NeighbourReader,
    plan: Plan,
    prices: Prices,
    *,
    most: int,
    alternatives: Callable[[GpuPlan], tuple[Alternative, ...]] = _none,
) -> GpuExplanations:
    """What the GPUs of a plan cost and earn, at most `most` kinds of them.

    GPUs with a replica that the problem has no row for (of a plan that was made for another one) are left out.
    alternatives: of a GPU of `split_plan`, since what is paid for has another price than what is rented.
    """
    halves = split(reader.problem)
    if halves is not reader.problem:
        plan = split_plan(reader.problem, plan)
        reader = NeighbourReader(halves)
    kinds = _sorted_kinds(reader, plan)
    # Alternatives are looked for only where they are shown: each takes a search.
    explained = tuple(
        _explain_gpu(reader, gpu, prices, alternatives(gpu)) for gpu in kinds[:most]
    )
    return GpuExplanations(kinds=explained, left_out=len(kinds) - len(explained))


def _sorted_kinds(reader: NeighbourReader, plan: Plan) -> list[GpuPlan]:
    """The GPUs that the problem has rows for, alike ones together, the highest list prices first."""
    counts = Counter[GpuPlan]()
    for gpu in plan.gpus:
        counts[replace(gpu, count=1)] += gpu.count
    kinds = [
        replace(one, count=count)
        for one, count in counts.items()
        if reader.seats(one) is not None
    ]

    def cost(gpu: GpuPlan) -> float:
        gpu_type = reader.problem.gpu_type(gpu.gpu_type)
        return gpu.count * gpu_type.price_usd_per_hour

    # Sorting is stable, so that kinds that cost the same stay in the plan's order.
    return sorted(kinds, key=lambda gpu: -cost(gpu))


def _explain_gpu(
    reader: NeighbourReader,
    gpu: GpuPlan,
    prices: Prices,
    alternatives: tuple[Alternative, ...],
) -> GpuExplanation:
    price = _price(reader.problem, gpu) if prices.unit == "usd_per_hour" else 0.0
    stock_price = prices.of_gpu_type(gpu.gpu_type)
    replicas = tuple(
        _earning(reader.problem, seat, prices) for seat in reader.seats(gpu) or ()
    )
    return GpuExplanation(
        gpu_type=merged_name(gpu.gpu_type),
        count=gpu.count,
        clock_mhz=gpu.clock_mhz,
        unit=prices.unit,
        price=price,
        stock_price=stock_price,
        replicas=replicas,
        loss=price + stock_price - math.fsum(replica.earns for replica in replicas),
        uses=reader.uses(gpu),
        alternatives=alternatives,
    )


def _price(problem: Problem, gpu: GpuPlan) -> float:
    """USD per hour that the plan pays for one GPU, energy at full load included."""
    energy = problem.energy_price_usd_per_kwh * gpu_power_w(problem, gpu) / _W_PER_KW
    gpu_type = problem.gpu_type(gpu.gpu_type)
    # What is paid for anyway costs the plan nothing.
    return energy if gpu_type.is_owned else gpu_type.price_usd_per_hour + energy


def _earning(problem: Problem, seat: ReplicaRow, prices: Prices) -> Earning:
    replica = seat.replica
    price = prices.of_service(replica.service)
    # As in the formulation, capacity counts up to the service's rate, and to what one loss may take of it.
    service = problem.service(replica.service)
    rate_rps = service.arrival_rate_rps
    useful_rps = min(seat.capacity_rps, service.max_replica_rps or rate_rps, rate_rps)
    return Earning(
        service=replica.service,
        sm_percent=replica.sm_percent,
        batch=replica.batch,
        arrival_rate_rps=replica.arrival_rate_rps,
        capacity_rps=seat.capacity_rps,
        earns=0.0 if price is None else price.per_rps * useful_rps + price.per_replica,
    )
