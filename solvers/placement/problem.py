"""Placement: which replicas share a GPU.

Sets         I replicas, each bound to one GPU type; J GPUs, `count` identical ones of each type; D what a GPU has of
             everything: SM percent, memory, watts, places (replicas); L labels.
Parameters   size_id, what replica i takes of d; room_jd, what an empty GPU j has of d; value_i > 0; price_j;
             I_l, the replicas that carry label l.
Variables    x_ij = 1 when replica i is put on GPU j of its type; y_j = 1 when GPU j carries a replica.
Objective    lexicographic: most placed value Σ value_i x_ij; then least price Σ price_j y_j; then, among those, the
             most even: per GPU type the least peak SM percent of a GPU.
Constraints  Σ_j x_ij ≤ 1: a replica is put once, or left out; Σ_i size_id x_ij ≤ room_jd y_j: nothing is exceeded;
             Σ_{i in I_l} x_ij ≤ 1: anti-affinity, no two replicas with a common label on a GPU.

Every type is a problem of its own, since a replica names its type. Sizes and rooms are compared as whole millionths,
so that 3 × 33.333333 % fits and every method agrees on what fits.

Source: HetSev §4.2, Algorithm 1 (capacity check, anti-affinity labels, worst fit). Changed: SM percent and watts are
checked as well, and CPU cores and CPU memory are not, which the contract does not know; an open GPU is preferred to
an empty one, which costs money here; and there is an exact method.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from solvers.types.errors import InvalidInput

MILLIONTHS = 1_000_000
"""Whole units per SM percent, MiB and watt."""

Reason = Literal["sm", "memory", "power", "replicas", "stock"]
_DIMENSIONS: tuple[Reason, ...] = ("sm", "memory", "power", "replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplica:
    """One replica to put on a GPU."""

    name: str
    gpu_type: str
    sm_percent: float
    memory_mib: float
    power_w: float
    """Watts that it adds to the GPU's idle watts."""
    value: float = 1.0
    """> 0; what is lost when it is left out, e.g. priority · rate."""
    labels: tuple[str, ...]
    """No two replicas with a common label share a GPU; by the contract at least the service's name."""

    def sizes(self) -> tuple[int, ...]:
        """What it takes of SM percent, memory and watts in whole millionths, and of places."""
        return (*map(_millionths, (self.sm_percent, self.memory_mib, self.power_w)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStock:
    """The GPUs of one type, all empty and alike."""

    gpu_type: str
    count: int | None
    """None = as many as wanted."""
    price_usd_per_hour: float
    sm_percent: float = 100.0
    memory_mib: float
    power_w: float
    """Watts for the replicas: the power cap less the idle watts; below 0 nothing fits."""
    max_replicas: int

    def rooms(self) -> tuple[int, ...]:
        """What one GPU has of SM percent, memory and watts in whole millionths, and of places."""
        return (
            *map(_millionths, (self.sm_percent, self.memory_mib, self.power_w)),
            self.max_replicas,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Replicas, GPUs, and in which order the greedy takes the replicas. Raises InvalidInput on senseless values."""

    replicas: tuple[PendingReplica, ...]
    gpus: tuple[GpuStock, ...]
    """At most one entry per type; a replica of another type is left out."""
    order: tuple[str, ...] = ()
    """Names of replicas, first come first placed, e.g. by HetSev's fair queues; those missing follow by name."""
    is_worst_fit: bool = False
    """Whether each is to go to the GPU with most room, in that order, unused ones too, whatever that costs."""

    def __post_init__(self) -> None:
        _refuse_repeats("replicas", [replica.name for replica in self.replicas])
        _refuse_repeats("gpus", [stock.gpu_type for stock in self.gpus])
        _refuse_repeats("order", self.order)
        for replica in self.replicas:
            sizes = (replica.sm_percent, replica.memory_mib, replica.power_w)
            if (
                not all(0.0 <= size < math.inf for size in sizes)
                or not 0.0 < replica.value < math.inf
            ):
                raise InvalidInput(
                    f"replicas.{replica.name}",
                    "sizes must be at least 0, the value above 0, all finite",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGpu:
    """One used GPU."""

    gpu_type: str
    replicas: tuple[str, ...]
    """Names, ascending; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A replica that was left out."""

    replica: str
    reason: Reason
    """What an empty GPU of its type lacks for it; `stock` when it would fit, but no GPU is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSolution:
    """Who shares a GPU with whom."""

    gpus: tuple[PackedGpu, ...]
    unplaced: tuple[Unplaced, ...]
    placed_value: float
    placed_value_bound: float
    """No placement places more."""
    price_usd_per_hour: float
    price_bound_usd_per_hour: float
    """No placement of at least this `placed_value` is cheaper."""


def broken_rules(
    problem: PlacementProblem,
    gpus: Sequence[PackedGpu],
) -> tuple[str, ...]:
    """What is wrong with a placement, in words; empty when it obeys every constraint."""
    replicas = {replica.name: replica for replica in problem.replicas}
    stocks = {stock.gpu_type: stock for stock in problem.gpus}
    wrong = [
        f"{name} stands on {times} GPUs"
        for name, times in _repeats([n for gpu in gpus for n in gpu.replicas])
    ]
    wrong += _broken_stocks(stocks, gpus)
    for index, gpu in enumerate(gpus):
        wrong += [
            f"gpus[{index}]: {message}"
            for message in _broken_on_gpu(
                stocks[gpu.gpu_type], [replicas[name] for name in gpu.replicas]
            )
        ]
    return tuple(wrong)


def _broken_stocks(
    stocks: Mapping[str, GpuStock], gpus: Iterable[PackedGpu]
) -> Iterator[str]:
    for gpu_type, used in Counter(gpu.gpu_type for gpu in gpus).items():
        # An independent check, by sums over the answer and not by the formulation's own variables.
        count = stocks[gpu_type].count
        if count is not None and used > count:
            yield f"{used} GPUs of type {gpu_type} are used, {count} exist"


def _broken_on_gpu(stock: GpuStock, replicas: Sequence[PendingReplica]) -> list[str]:
    wrong = [
        f"{replica.name} is for {replica.gpu_type}"
        for replica in replicas
        if replica.gpu_type != stock.gpu_type
    ]
    wrong += [
        f"label {label}: {times} replicas"
        for label, times in _repeats([x for r in replicas for x in r.labels])
    ]
    # The same integers as the methods compare, so that a placement which they let through is not refused for
    # rounding.
    sums = [
        sum(sizes)
        for sizes in zip(*(replica.sizes() for replica in replicas), strict=True)
    ]
    wrong += [
        f"{dimension}: {taken} of {room}"
        for dimension, taken, room in zip(
            _DIMENSIONS, sums, stock.rooms(), strict=False
        )
        if taken > room
    ]
    return wrong


def why_left_out(replica: PendingReplica, stock: GpuStock | None) -> Reason:
    """The first thing of which even an empty GPU has too little for the replica, else `stock`."""
    if stock is None:
        return "stock"
    lacking = (
        dimension
        for dimension, size, room in zip(
            _DIMENSIONS, replica.sizes(), stock.rooms(), strict=True
        )
        if size > room
    )
    return next(lacking, "stock")


def _millionths(quantity: float) -> int:
    return round(quantity * MILLIONTHS)


def _repeats(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, times) for name, times in Counter(names).items() if times > 1]


def _refuse_repeats(field: str, names: Sequence[str]) -> None:
    for name, times in _repeats(names):
        raise InvalidInput(
            field, f"{name!r} appears {times} times; names must be unique"
        )
