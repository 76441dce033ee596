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


NeighbourSet = tuple[Neighbour, ...]
"""The other replicas on the GPU, sorted; empty = alone."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queries:
    """Conditions (N rows) under which a latency, power or memory is asked for."""

    network: tuple[str, ...]
    gpu_type: tuple[str, ...]
    batch: Reals
    """(N,) requests per batch, >= 1; a mean over served batches need not be an integer."""
    sm_percent: Reals
    """(N,) 0 < sm_percent <= 100."""
    clock_mhz: Reals
    """(N,) graphics clock; NaN = the GPU type's own highest, or not known."""
    time_quota_percent: Reals
    """(N,) share of time in which the replica may launch kernels; 100 = always."""
    power_limit_w: Reals
    """(N,) limit set on the board; NaN = its own highest, or not known."""
    neighbours: tuple[NeighbourSet, ...]

    def __len__(self) -> int:
        return len(self.network)

    def take(self, rows: Indices) -> Self:
        """The queries at these positions, in their order."""
        numbers = rows.tolist()
        return type(self)(
            network=_pick(self.network, numbers),
            gpu_type=_pick(self.gpu_type, numbers),
            batch=self.batch[rows],
            sm_percent=self.sm_percent[rows],
            clock_mhz=self.clock_mhz[rows],
            time_quota_percent=self.time_quota_percent[rows],
            power_limit_w=self.power_limit_w[rows],
            neighbours=_pick(self.neighbours, numbers),
        )

    def alone(self) -> Self:
        """The same queries without neighbours."""
        return replace(self, neighbours=((),) * len(self))

    def power_limit_or(self, otherwise: Reals | float) -> Reals:
        """(N,) watts; `otherwise` where no limit is known."""
        return np.where(np.isnan(self.power_limit_w), otherwise, self.power_limit_w)

    def conditions(self, *, unknown: float) -> Reals:
        """(N, 5) batch, SM percent, clock, time quota and power limit; `unknown` stands for what is not known."""
        columns = (
            self.batch,
            self.sm_percent,
            self.clock_mhz,
            self.time_quota_percent,
            self.power_limit_w,
        )
        # NaN differs from itself: rows that lack the same facts would not count as alike.
        rows: Reals = np.nan_to_num(np.column_stack(columns), nan=unknown)
        return rows

    def groups(self) -> Mapping[Group, Indices]:
        """Positions of the rows of every (network, GPU type), groups sorted by name."""
        networks, network = _number(self.network)
        gpu_types, gpu_type = _number(self.gpu_type)
        number = network * len(gpu_types) + gpu_type
        # 16 bits are sorted in linear time.
        is_few = len(networks) * len(gpu_types) <= np.iinfo(np.uint16).max
        keys = number.astype(np.uint16) if is_few else number
        order = np.argsort(keys, kind="stable")
        sizes = np.bincount(number)
        present = np.flatnonzero(sizes)
        pairs = (divmod(each, len(gpu_types)) for each in present.tolist())
        names = [Group(networks[row], gpu_types[column]) for row, column in pairs]
        parts = np.split(order, np.cumsum(sizes[present])[:-1])
        # Of no rows at all `split` still makes one part, without a name.
        return dict(zip(names, parts, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Measurements (N rows); NaN where a quantity was not measured."""

    at: Queries
    latency_ms: Reals
    """(N,) mean execution time of one full batch, > 0."""
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
    neighbours: Sequence[NeighbourSet] | None = None,
) -> Queries:
    """Queries from columns; absent ones mean: clock not known, no quota, no limit, alone."""
    size = len(network)
    neighbours = ((),) * size if neighbours is None else neighbours
    return Queries(
        network=tuple(network),
        gpu_type=tuple(gpu_type),
        batch=np.asarray(batch, dtype=np.float64),
        sm_percent=np.asarray(sm_percent, dtype=np.float64),
        clock_mhz=_column(clock_mhz, size, np.nan),
        time_quota_percent=_column(time_quota_percent, size, 100.0),
        power_limit_w=_column(power_limit_w, size, np.nan),
        # Sorted, so that equal sets of neighbours compare equal.
        neighbours=tuple(tuple(sorted(entry)) for entry in neighbours),
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


def _pick(entries: tuple[Entry, ...], rows: list[int]) -> tuple[Entry, ...]:
    # Of one row `itemgetter` gives the bare entry instead of a tuple.
    if len(rows) > 1:
        return tuple(itemgetter(*rows)(entries))
    return tuple(entries[row] for row in rows)


def _number(names: tuple[str, ...]) -> tuple[list[str], Indices]:
    """The distinct names, sorted, and (N,) the position of each name among them."""
    distinct = sorted(set(names))
    if len(distinct) <= 1:
        return distinct, np.zeros(len(names), dtype=np.intp)
    position = {name: index for index, name in enumerate(distinct)}
    numbers = map(position.__getitem__, names)
    return distinct, np.fromiter(numbers, dtype=np.intp, count=len(names))


def _column(
    values: Sequence[float] | Reals | None, size: int, otherwise: float
) -> Reals:
    if values is None:
        return np.full(size, otherwise)
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """How many layers of each kind one network has, and its size."""

    network: str
    counts: Mapping[str, int]
    """Layer kind (e.g. `conv`, `linear`, `norm`) → number of such layers, ≥ 0; a kind that is absent counts 0."""
    parameters_millions: float
    gmacs: float | None = None
    """Billions of multiply-adds of one forward pass at batch 1; None = not known."""


def even_choice(count: int, *, max_rows: int) -> Indices:
    """Positions of at most `max_rows` of `count` rows, ascending, evenly spread, both ends among them."""
    positions = np.linspace(0, count - 1, min(count, max_rows)).round()
    return np.asarray(positions.astype(np.intp))
