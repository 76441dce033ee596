"""Feasible: whether any operating point can keep a service's SLO at all, and the least SLO that one could keep.

At a vanishing rate a replica that is alone on its GPU needs `ratio · solo_ms`, where `ratio` is the least one at which
the capacity law lets anything through. An SLO below that for every point is impossible, however many GPUs there are.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from solvers.laws.capacity_law import max_utilisation
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuType, Service

RATIOS = (1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0, 8.0, 16.0)
"""Ratios that are tried for the least one; at ratio 1 the law lets (1 - percentile) / batch through, which it rounds
down to 0 only for batches in the hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinSlo:
    """The least latency that a network can promise, and where."""

    latency_ms: float
    gpu_type: str
    sm_percent: float
    batch: int


def infeasibility(
    service: Service,
    gpu_types: Sequence[GpuType],
    points: Sequence[OperatingPoints],
    *,
    present: Collection[str] = (),
) -> str | None:
    """Why no operating point meets the service's SLO on any GPU type that it may use; None when one does.

    The reason speaks of the types that are `present` in the fleet, where the service may use one of those.
    """
    allowed = [gpu_type for gpu_type in gpu_types if may_use(service, gpu_type.name)]
    if not allowed:
        return "no GPU type is left: each one is excluded or not allowed"
    lowest = min_slo(service, allowed, points)
    if lowest is not None and lowest.latency_ms <= service.slo.latency_ms:
        return None
    # The service may use types that are not owned; the message is about what is there, if any of it may be used.
    shown = [gpu_type for gpu_type in allowed if gpu_type.name in present] or allowed
    names = ", ".join(gpu_type.name for gpu_type in shown)
    lowest = min_slo(service, shown, points)
    if lowest is None:
        return f"network {service.network!r} has no operating point on {names}; apply a Profile first"
    return (
        f"{service.slo.latency_ms:g} ms at percentile {service.slo.percentile:g} is impossible on {names}; "
        f"the shortest possible SLO is {lowest.latency_ms:g} ms "
        f"({lowest.gpu_type}, {lowest.sm_percent:g} % of its SMs, batch {lowest.batch})"
    )


def may_use(service: Service, gpu_type: str) -> bool:
    """Whether the service's team lets it run on that GPU type."""
    allowed = service.allowed_gpu_types is None or gpu_type in service.allowed_gpu_types
    return allowed and gpu_type not in service.excluded_gpu_types


def min_slo(
    service: Service, gpu_types: Sequence[GpuType], points: Sequence[OperatingPoints]
) -> MinSlo | None:
    """The least latency, rounded up to 1 µs, that the service's percentile can get on these GPU types; None: no row."""
    candidates = [
        MinSlo(
            latency_ms=_round_up(ratio * row.solo_ms),
            gpu_type=gpu_type,
            sm_percent=row.sm_percent,
            batch=row.batch,
        )
        for gpu_type, row in _usable_rows(service.network, gpu_types, points)
        if (ratio := _min_ratio(row.batch, service.slo.percentile)) is not None
    ]
    return min(
        candidates,
        key=lambda entry: (entry.latency_ms, entry.gpu_type, entry.sm_percent),
        default=None,
    )


def _usable_rows(
    network: str, gpu_types: Sequence[GpuType], points: Sequence[OperatingPoints]
) -> Iterator[tuple[str, OperatingPoint]]:
    """Rows of the network that an empty GPU of their type can carry."""
    types = {gpu_type.name: gpu_type for gpu_type in gpu_types}
    for entry in points:
        gpu_type = types.get(entry.gpu_type)
        if entry.network != network or gpu_type is None:
            continue
        for row in entry.rows:
            if (
                # Alone on the GPU: what does not fit then fits nowhere.
                row.memory_mib <= gpu_type.memory_mib
                and gpu_type.idle_w + row.power_w <= gpu_type.power_cap_w
            ):
                yield gpu_type.name, row


# Batches and percentiles repeat in every row of every profile; the capacity law does not change.
@lru_cache(maxsize=4096)
def _min_ratio(batch: int, percentile: float) -> float | None:
    return next(
        (
            r
            for r in RATIOS
            if max_utilisation(batch, percentile=percentile, slo_ratio=r) > 0.0
        ),
        None,
    )


def _round_up(latency_ms: float) -> float:
    """To whole microseconds, so that the figure in a message can be typed in and holds."""
    # Rounding down would name an SLO that is refused again.
    rounded = round(latency_ms, 3)
    return rounded if rounded >= latency_ms else round(rounded + 0.001, 3)
