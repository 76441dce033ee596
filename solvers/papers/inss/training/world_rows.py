"""What InSS's world reads and answers: its setting, operating rows as arrays, rooms of GPUs, decided batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType

Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Places: TypeAlias = tuple[Indices, Indices, Indices]
"""Slot, GPU type and place of the SM percent, which index the operating arrays as (N, J)."""

NEVER = 1e12  # Milliseconds, MiB and watts of an operating row that is not there: more than any SLO and GPU has.
TOLERANCE = 1e-6
"""Rounding, in SM percents, and in memory and watts as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetting:
    """What an actor is trained for, and what its numbers mean."""

    gpus: tuple[str, ...]
    """GPU type of each GPU, sorted."""
    services: tuple[str, ...]
    """In the order in which they choose. One that the Problem lacks is always nowhere."""
    slots: int = 1
    """Replicas that each service may have."""
    sm_percents: tuple[float, ...]
    """Ascending."""
    knows_neighbours: bool = True
    """False: execution times are taken as if every replica were alone (the paper's InSS-ni)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatingArrays:
    """Operating rows by slot, GPU type, SM percent and batch, (J, G, P, B); `NEVER` where there is none."""

    transfer_ms: Reals
    launch_ms: Reals
    run_ms: Reals
    memory_mib: Reals
    power_w: Reals
    min_mib: Reals
    """(J, G, P): over the batches, as are the next two."""
    min_w: Reals
    worst_pressure: Reals
    sensitivity: Reals
    """(J, G)."""

    def beyond_smallest(self, at: Places) -> "BatchNeeds":
        """What batches take from the room that the smallest ones leave."""
        return BatchNeeds(
            memory_mib=self.memory_mib[at] - self.min_mib[at][:, :, None],
            power_w=self.power_w[at] - self.min_w[at][:, :, None],
        )


_FIGURES = ("transfer_ms", "launch_ms", "run_ms", "memory_mib", "power_w")


def read_rows(
    problem: Problem,
    setting: ActorSetting,
    *,
    service_of: Indices,
    batches: Indices,
    clocks_mhz: Sequence[float],
) -> OperatingArrays:
    """The rows at each GPU type's clock; `service_of`: (J,) places among the setting's services."""
    types = problem.gpu_types
    shape = (len(service_of), len(types), len(setting.sm_percents), len(batches))
    figures = {name: np.full(shape, NEVER) for name in _FIGURES}
    pressure = np.zeros(shape)
    sensitivity = np.zeros(shape[:2])
    percents = np.array(setting.sm_percents)
    known = {service.name: service for service in problem.services}
    demands = [known.get(setting.services[service]) for service in service_of]
    for (slot, demand), (kind, gpu_type) in product(
        enumerate(demands), enumerate(types)
    ):
        # Where there is no row the arrays stay at NEVER, which exceeds every limit.
        points = _points_of(problem, demand, gpu_type.name)
        if points is None:
            continue
        sensitivity[slot, kind] = points.sensitivity
        for row, at in _known_rows(points.rows, clocks_mhz[kind], gpu_type, percents):
            place = (slot, kind, at, int(np.searchsorted(batches, row.batch)))
            for name, values in figures.items():
                values[place] = getattr(row, name)
            pressure[place] = row.pressure
    return OperatingArrays(
        **figures,
        min_mib=figures["memory_mib"].min(axis=3),
        min_w=figures["power_w"].min(axis=3),
        # The most over the batches: neighbours' batches are decided later, and none may unsettle another.
        worst_pressure=pressure.max(axis=3),
        sensitivity=sensitivity,
    )


def _points_of(
    problem: Problem, demand: ServiceDemand | None, gpu_type: str
) -> OperatingPoints | None:
    """A service's points on a GPU type; None where it is absent, not allowed there or not profiled."""
    if demand is None or not demand.allows(gpu_type):
        return None
    return problem.points_of(demand.network, gpu_type)


def _known_rows(
    rows: Sequence[OperatingPoint],
    clock_mhz: float,
    gpu_type: GpuType,
    percents: Reals,
) -> Iterator[tuple[OperatingPoint, int]]:
    """The rows at that clock that an empty GPU holds, each with its place among the SM percents."""
    watts = gpu_type.power_cap_w - gpu_type.idle_w
    for row in rows:
        # An actor's percents were profiled when it was trained; a row that came since has no option.
        near = np.flatnonzero(np.abs(percents - row.sm_percent) <= TOLERANCE)
        if (
            len(near)
            and row.clock_mhz == clock_mhz
            and row.memory_mib <= gpu_type.memory_mib
            and row.power_w <= watts
        ):
            yield row, int(near[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecidedBatches:
    """What N provisions carry: (N, J) each."""

    batch: Indices
    """Place among the world's batches; −1 where the slot is nowhere, or has no batch."""
    carried_rps: Reals
    memory_mib: Reals


class BatchNeeds(NamedTuple):
    """What batches need beyond the smallest one, (N, J, B)."""

    memory_mib: Reals
    power_w: Reals


class GpuRooms(NamedTuple):
    """What is left of GPUs, (N, K)."""

    sm_percent: Reals
    memory_mib: Reals
    power_w: Reals
    replicas: Indices
    """How many there are."""


def take_batches(
    gpu: Indices,
    carried: Reals,
    more: BatchNeeds,
    room: GpuRooms,
) -> Indices:
    """(N, J) each slot's best batch, in turn; takes from the room what it needs beyond the smallest; −1 = none."""
    batch = np.full(gpu.shape, -1, dtype=np.intp)
    rows = np.arange(len(gpu))
    for slot in range(gpu.shape[1]):
        on = gpu[:, slot]
        fits = np.ones(carried[:, slot].shape, dtype=bool)
        for needs, left in zip(more, (room.memory_mib, room.power_w), strict=True):
            fits &= needs[:, slot] <= left[rows, on][:, None]
        options = np.where(fits, carried[:, slot], 0.0)
        best = options.argmax(axis=1)
        has = options[rows, best] > 0.0
        for needs, left in zip(more, (room.memory_mib, room.power_w), strict=True):
            left[rows, on] -= np.where(has, needs[rows, slot, best], 0.0)
        batch[:, slot] = np.where(has, best, -1)
    return batch


def at_batch(figures: Reals, batch: Indices) -> Reals:
    """(N, J) the figures (N, J, B) at each slot's batch; without a batch, at the first."""
    place = np.maximum(batch, 0)[:, :, None]
    return np.asarray(np.take_along_axis(figures, place, axis=2)[:, :, 0])


def batches_of(problem: Problem, services: Iterable[ServiceDemand | None]) -> Indices:
    """All batches that were profiled of some service, ascending."""
    networks = {service.network for service in services if service}
    used = [points for points in problem.points if points.network in networks]
    batches = {row.batch for points in used for row in points.rows}
    return np.array(sorted(batches), dtype=np.intp)
