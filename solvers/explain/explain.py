"""Explain: why the GPUs of a plan, whoever made it, run what they run, at the prices of the linear relaxation.

The price of a request is what one more of it per second costs when everything else may adjust, in fractions of GPUs. At
those prices every GPU earns about what it costs, where the relaxation would choose it; what earns less is there because
whole GPUs do not divide as fractions do.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from solvers.explain.neighbours import NeighbourReader, ReplicaRow
from solvers.explain.types import Alternative, Earning, GpuExplanation
from solvers.laws.cost import gpu_power_w
from solvers.types.outcome import Prices
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem

_W_PER_KW = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExplanations:
    """Why the GPUs of a plan run what they run."""

    kinds: tuple[GpuExplanation, ...] = ()
    """Those that cost most first."""
    left_out: int = 0
    """Kinds beyond those."""


NO_GPUS = GpuExplanations()


def _none(gpu: GpuPlan) -> tuple[Alternative, ...]:  # noqa: ARG001
    """Nobody looked for alternatives."""
    return ()


def explain_gpus(
    reader: NeighbourReader,
    plan: Plan,
    prices: Prices,
    *,
    most: int,
    alternatives: Callable[[GpuPlan], tuple[Alternative, ...]] = _none,
) -> GpuExplanations:
    """What the GPUs of a plan cost and earn, at most so many kinds of them.

    GPUs with a replica that the problem has no row for (of a plan that was made for another one) are left out.
    """
    kinds = _sorted_kinds(reader, plan)
    told = tuple(
        _explain_gpu(reader, gpu, prices, alternatives(gpu)) for gpu in kinds[:most]
    )
    return GpuExplanations(kinds=told, left_out=len(kinds) - len(told))


def _sorted_kinds(reader: NeighbourReader, plan: Plan) -> list[GpuPlan]:
    """The GPUs that the problem has rows for, alike ones together, those that cost most first."""
    counts: dict[GpuPlan, int] = {}
    for gpu in plan.gpus:
        one = GpuPlan(
            gpu_type=gpu.gpu_type, clock_mhz=gpu.clock_mhz, replicas=gpu.replicas
        )
        counts[one] = counts.get(one, 0) + gpu.count
    kinds = [
        GpuPlan(
            gpu_type=one.gpu_type,
            count=count,
            clock_mhz=one.clock_mhz,
            replicas=one.replicas,
        )
        for one, count in counts.items()
        if reader.seats(one) is not None
    ]
    return sorted(
        kinds,
        key=lambda gpu: (
            -gpu.count * reader.problem.gpu_type(gpu.gpu_type).price_usd_per_hour
        ),
    )


def _explain_gpu(
    reader: NeighbourReader,
    gpu: GpuPlan,
    prices: Prices,
    alternatives: tuple[Alternative, ...],
) -> GpuExplanation:
    problem = reader.problem
    gpu_type = problem.gpu_type(gpu.gpu_type)
    energy = problem.energy_price_usd_per_kwh * gpu_power_w(problem, gpu) / _W_PER_KW
    price = (
        gpu_type.price_usd_per_hour + energy if prices.unit == "usd_per_hour" else 0.0
    )
    stock_price = prices.of_gpu_type(gpu.gpu_type)
    replicas = tuple(
        _earning(problem, seat, prices) for seat in reader.seats(gpu) or ()
    )
    return GpuExplanation(
        gpu_type=gpu.gpu_type,
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


def _earning(problem: Problem, seat: ReplicaRow, prices: Prices) -> Earning:
    replica = seat.replica
    price = prices.of_service(replica.service)
    useful_rps = min(
        seat.capacity_rps, problem.service(replica.service).arrival_rate_rps
    )
    return Earning(
        service=replica.service,
        sm_percent=replica.sm_percent,
        batch=replica.batch,
        arrival_rate_rps=replica.arrival_rate_rps,
        capacity_rps=seat.capacity_rps,
        earns=0.0 if price is None else price.per_rps * useful_rps + price.per_replica,
    )
