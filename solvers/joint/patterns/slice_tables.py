"""Tables with modes whose GPUs are cut into slices, beside those in which replicas share a GPU.

A sliced mode is a GPU type at one clock in MIG mode. Its candidates take one slice each; times are those measured on
the slice, and no neighbour changes them. It draws on the same stock as the type's other modes, so that the master
problem decides for every GPU whether to cut it, and how. Idle watts and the power cap are the GPU's, cut or not.

The contract's version 1 has no place for slices: offers come beside the Problem.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.types import GpuMode, Numbers, Reals
from solvers.joint.patterns.slice_layouts import (
    MEMORY_SLICES,
    SliceProfile,
    Slicing,
    make_layouts,
)
from solvers.joint.patterns.tables import Tables
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType

_W_PER_KW = 1000.0


class SliceRow(NamedTuple):
    """One way to run a network on a slice; the time is that of one whole batch."""

    profile: str
    batch: int
    clock_mhz: float
    execution_ms: float
    memory_mib: float
    power_w: float
    """Watts that the replica adds to the GPU's idle watts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOffer:
    """How GPUs of one type may be cut, and what runs how fast on their slices."""

    gpu_type: str
    profiles: tuple[SliceProfile, ...]
    rows: tuple[tuple[str, tuple[SliceRow, ...]], ...]
    """By network."""

    def rows_of(self, network: str) -> tuple[SliceRow, ...]:
        """Of one network; empty where it cannot run on slices."""
        return next((rows for name, rows in self.rows if name == network), ())


class _Candidate(NamedTuple):
    number: int
    """Of the service."""
    service: ServiceDemand
    profile: int
    at: int
    """Position of the row among the network's."""
    row: SliceRow


def with_slices(
    problem: Problem, tables: Tables, offers: Sequence[SliceOffer]
) -> Tables:
    """The problem's tables and one more mode for every offered type and clock. Raises KeyError for an unknown type."""
    made = [
        _mode(problem, offer, gpu_type, clock_mhz)
        for offer in offers
        for gpu_type in (problem.gpu_type(offer.gpu_type),)
        for clock_mhz in gpu_type.clocks_mhz
    ]
    made = [(mode, slicing) for mode, slicing in made if len(mode.service)]
    return tables._replace(
        modes=(*tables.modes, *(mode for mode, _ in made)),
        slicing=(*(None for _ in tables.modes), *(slicing for _, slicing in made)),
    )


def _mode(
    problem: Problem, offer: SliceOffer, gpu_type: GpuType, clock_mhz: float
) -> tuple[GpuMode, Slicing]:
    candidates = list(_candidates(problem, offer, gpu_type, clock_mhz))
    law, nothing = problem.capacity_law, np.zeros(len(candidates))
    most, watt_price = (
        min(problem.max_replicas_per_gpu, MEMORY_SLICES),
        problem.energy_price_usd_per_kwh / _W_PER_KW,
    )
    mode = GpuMode(
        gpu_type=problem.gpu_types.index(gpu_type),
        clock_mhz=float(clock_mhz),
        steps=MEMORY_SLICES,
        max_replicas=most,
        memory_mib=float(gpu_type.memory_mib),
        power_w=float(gpu_type.power_cap_w - gpu_type.idle_w),
        price=float(gpu_type.price_usd_per_hour + watt_price * gpu_type.idle_w),
        watt_price=watt_price,
        launch_factor=np.ones(most + 1),
        service=_numbers(one.number for one in candidates),
        row=_numbers(one.at for one in candidates),
        width=_numbers(offer.profiles[one.profile].memory_slices for one in candidates),
        batch=_reals(one.row.batch for one in candidates),
        memory=_reals(one.row.memory_mib for one in candidates),
        power=_reals(one.row.power_w for one in candidates),
        pressure=nothing,
        alone_ms=_reals(one.row.execution_ms for one in candidates),
        launch_ms=nothing,
        growth_ms=nothing,
        law=_numbers(
            law.percentiles.index(one.service.percentile) * len(law.batches)
            + law.batches.index(one.row.batch)
            for one in candidates
        ),
        slo_ms=_reals(one.service.slo_ms for one in candidates),
        may_idle=np.array(
            [one.service.min_replicas > 0 for one in candidates], dtype=np.bool_
        ),
    )
    return mode, Slicing(
        make_layouts(offer.profiles, most), _numbers(one.profile for one in candidates)
    )


def _numbers(values: Iterable[int]) -> Numbers:
    return np.array(list(values), dtype=np.int32)


def _reals(values: Iterable[float]) -> Reals:
    return np.array(list(values), dtype=np.float64)


def _candidates(
    problem: Problem, offer: SliceOffer, gpu_type: GpuType, clock_mhz: float
) -> Iterator[_Candidate]:
    """By service, profile, batch: all that may run at the clock, fit their slice, and meet their SLO there."""
    room_w = gpu_type.power_cap_w - gpu_type.idle_w
    for number, service in enumerate(problem.services):
        if not service.allows(gpu_type.name) or service.max_replicas == 0:
            continue
        rows = sorted(
            enumerate(offer.rows_of(service.network)), key=lambda entry: entry[1].batch
        )
        for at, profile in enumerate(offer.profiles):
            for position, row in rows:
                is_at_hand = (
                    row.profile == profile.name
                    and abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
                )
                # Where some number of replicas must be, even one that carries nothing counts.
                counts = (
                    service.min_replicas > 0
                    or _utilisation(problem, service, row) > 0.0
                )
                if (
                    is_at_hand
                    and counts
                    and row.memory_mib <= profile.memory_mib
                    and row.power_w <= room_w
                ):
                    yield _Candidate(number, service, at, position, row)


def _utilisation(problem: Problem, service: ServiceDemand, row: SliceRow) -> float:
    return problem.capacity_law.utilisation(
        service.percentile, row.batch, service.slo_ms / row.execution_ms
    )
