"""Samples: what was measured of networks on GPUs, as columns, so that every technique computes on whole arrays.

A *query* says under which conditions; a *sample* is a query with what was measured there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Entry = TypeVar("Entry")


class Group(NamedTuple):
    """One network on one GPU type: what a latency, power or memory fit is about."""

    network: str
    gpu_type: str


class Neighbour(NamedTuple):
    """A replica that shares the GPU."""

    network: str
    batch: float
    sm_percent: float


Company = tuple[Neighbour, ...]
"""The other replicas on the GPU, sorted; empty = alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queries:
    """Conditions (N rows) under which a latency, power or memory is asked for."""

    network: tuple[str, ...]
    gpu_type: tuple[str, ...]
    batch: Reals
    """(N,) requests per batch, >= 1; a mean over served batches need not be whole."""
    sm_percent: Reals
    """(N,) 0 < sm_percent <= 100."""
    clock_mhz: Reals
    """(N,) graphics clock; NaN = the GPU type's own highest, or not known."""
    time_quota_percent: Reals
    """(N,) share of time in which the replica may launch kernels; 100 = always."""
    power_limit_w: Reals
    """(N,) limit set on the board; NaN = its own highest, or not known."""
    neighbours: tuple[Company, ...]

    def __len__(self) -> int:
        return len(self.network)

    def take(self, rows: Indices) -> Self:
        """The queries at these positions, in their order."""
        return type(self)(
            network=_pick(self.network, rows),
            gpu_type=_pick(self.gpu_type, rows),
            batch=self.batch[rows],
            sm_percent=self.sm_percent[rows],
            clock_mhz=self.clock_mhz[rows],
            time_quota_percent=self.time_quota_percent[rows],
            power_limit_w=self.power_limit_w[rows],
            neighbours=_pick(self.neighbours, rows),
        )

    def alone(self) -> Self:
        """The same queries without neighbours."""
        return replace(self, neighbours=((),) * len(self))

    def groups(self) -> Mapping[Group, Indices]:
        """Positions of the rows of every (network, GPU type), groups sorted by name."""
        keys = list(zip(self.network, self.gpu_type, strict=True))
        number = {key: index for index, key in enumerate(sorted(set(keys)))}
        numbers = np.fromiter(map(number.__getitem__, keys), dtype=np.intp, count=len(keys))
        order = np.argsort(numbers, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(numbers, minlength=len(number)))[:-1])
        return {Group(*key): rows for key, rows in zip(number, parts, strict=False)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Measurements (N rows); NaN where a quantity was not measured."""

    at: Queries
    latency_ms: Reals
    """(N,) mean execution time of one whole batch, > 0."""
    power_w: Reals
    """(N,) watts of the GPU while the replica runs, idle power included."""
    memory_mib: Reals
    l2_util_percent: Reals

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Indices) -> Self:
        """The samples at these positions, in their order."""
        return type(self)(
            at=self.at.take(rows),
            latency_ms=self.latency_ms[rows],
            power_w=self.power_w[rows],
            memory_mib=self.memory_mib[rows],
            l2_util_percent=self.l2_util_percent[rows],
        )


def make_queries(
    network: Sequence[str],
    gpu_type: Sequence[str],
    *,
    batch: Sequence[float] | Reals,
    sm_percent: Sequence[float] | Reals,
    clock_mhz: Sequence[float] | Reals | None = None,
    time_quota_percent: Sequence[float] | Reals | None = None,
    power_limit_w: Sequence[float] | Reals | None = None,
    neighbours: Sequence[Company] | None = None,
) -> Queries:
    """Queries from columns; absent ones mean: clock not known, no quota, no limit, alone."""
    size = len(network)
    return Queries(
        network=tuple(network),
        gpu_type=tuple(gpu_type),
        batch=np.asarray(batch, dtype=np.float64),
        sm_percent=np.asarray(sm_percent, dtype=np.float64),
        clock_mhz=_column(clock_mhz, size, np.nan),
        time_quota_percent=_column(time_quota_percent, size, 100.0),
        power_limit_w=_column(power_limit_w, size, np.nan),
        neighbours=((),) * size if neighbours is None else tuple(tuple(sorted(entry)) for entry in neighbours),
    )


def make_samples(
    at: Queries,
    latency_ms: Sequence[float] | Reals,
    *,
    power_w: Sequence[float] | Reals | None = None,
    memory_mib: Sequence[float] | Reals | None = None,
    l2_util_percent: Sequence[float] | Reals | None = None,
) -> Samples:
    """Samples from columns; absent ones were not measured."""
    size = len(at)
    return Samples(
        at=at,
        latency_ms=np.asarray(latency_ms, dtype=np.float64),
        power_w=_column(power_w, size, np.nan),
        memory_mib=_column(memory_mib, size, np.nan),
        l2_util_percent=_column(l2_util_percent, size, np.nan),
    )


def _pick(entries: tuple[Entry, ...], rows: Indices) -> tuple[Entry, ...]:
    return itemgetter(*rows.tolist())(entries) if len(rows) > 1 else tuple(entries[row] for row in rows.tolist())


def _column(values: Sequence[float] | Reals | None, size: int, otherwise: float) -> Reals:
    return np.full(size, otherwise) if values is None else np.asarray(values, dtype=np.float64)
