"""What InSS's world reads and answers: its setting, operating rows as arrays, decided batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from solvers.types.problem import OperatingPoint, Problem
from solvers.types.state import GpuType

Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]

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
        # A missing row costs NEVER, so that whatever is asked of it exceeds every limit, and no branch has to ask.
        if demand is None or not demand.allows(gpu_type.name):
            continue
        points = problem.points_of(demand.network, gpu_type.name)
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


def _known_rows(
    rows: Sequence[OperatingPoint],
    clock_mhz: float,
    gpu_type: GpuType,
    percents: Reals,
) -> Iterator[tuple[OperatingPoint, int]]:
    """The rows at that clock that an empty GPU holds, each with its place among the SM percents."""
    watts = gpu_type.power_cap_w - gpu_type.idle_w
    for row in rows:
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
