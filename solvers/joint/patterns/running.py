"""Candidates by what a plan says of them, a running plan as patterns, and the kinds of replicas that it runs.

A *kind* of replica is (service, GPU type, SM percent): a replica of a kind that runs already costs no migration,
whatever its batch, clock and neighbours are (contract, `migration_cost_usd_per_hour`). Kinds are packed into one number
each, so that arrays of them can be compared.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.types import GpuMode, Reals
from solvers.joint.patterns.columns import Columns, Pattern, by_shape
from solvers.joint.patterns.tables import Tables
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ
from solvers.types.plan import Plan
from solvers.types.problem import Problem

Kinds = npt.NDArray[np.int64]

_PER_PERCENT = 10_000
_PERCENTS = 1 << 20
"""More than 100 percent in steps of 1 / _PER_PERCENT."""
NO_KIND = -1
"""Where a column has no more replicas."""


class RunningKinds(NamedTuple):
    """The replicas that run now, by kind."""

    kinds: Kinds
    """(K,) ascending."""
    counts: Reals
    """(K,) > 0."""


class Candidates:
    """The candidates of the tables of one problem; nothing here depends on rates, stock or the running plan."""

    def __init__(self, problem: Problem, tables: Tables) -> None:
        self._types = {
            gpu_type.name: number for number, gpu_type in enumerate(problem.gpu_types)
        }
        self._services = {
            service.name: number for number, service in enumerate(problem.services)
        }
        self._modes = tables.modes
        self.sm_percent = _sm_percents(problem, tables)
        """By mode (C,)."""

    @cached_property
    def kinds(self) -> tuple[Kinds, ...]:
        """By mode (C,) the kind of each candidate."""
        return tuple(
            self._packed(mode.gpu_type, mode.service.astype(np.int64), percent)
            for mode, percent in zip(self._modes, self.sm_percent, strict=True)
        )

    @cached_property
    def _items(self) -> tuple[dict[tuple[int, int], int], ...]:
        """By mode the candidate of each (kind, batch)."""
        batches = (mode.batch.astype(np.int64).tolist() for mode in self._modes)
        return tuple(
            {
                key: item
                for item, key in enumerate(zip(kinds.tolist(), batch, strict=True))
            }
            for kinds, batch in zip(self.kinds, batches, strict=True)
        )

    def running(self, plan: Plan | None) -> RunningKinds:
        """The replicas of a plan, those left out that the problem has no service or GPU type for."""
        counts: Counter[int] = Counter()
        replicas = (
            (gpu, replica)
            for gpu in (plan.gpus if plan is not None else ())
            for replica in gpu.replicas
            if gpu.gpu_type in self._types and replica.service in self._services
        )
        for gpu, replica in replicas:
            kind = self._kind(gpu.gpu_type, replica.service, replica.sm_percent)
            counts[kind] += gpu.count
        # Ascending, since kinds are looked up by bisection.
        ordered = sorted(counts)
        return RunningKinds(
            np.array(ordered, np.int64),
            np.array([float(counts[kind]) for kind in ordered]),
        )

    def patterns_of(self, plan: Plan) -> Counter[Pattern]:
        """GPUs by pattern, of a plan; those are left out that run anything that is no candidate (any more)."""
        # A plan names each GPU of a large fleet by itself, but they run few patterns: each is looked up once.
        alike: Counter[_Load] = Counter()
        for gpu in plan.gpus:
            replicas = tuple(
                (replica.service, replica.sm_percent, replica.batch)
                for replica in gpu.replicas
            )
            alike[_Load(gpu.gpu_type, gpu.clock_mhz, replicas)] += gpu.count
        found: Counter[Pattern] = Counter()
        for load, count in alike.items():
            pattern = self._pattern(load)
            if pattern is not None:
                found[pattern] += count
        return found

    def _pattern(self, load: "_Load") -> Pattern | None:
        """The pattern that a GPU runs; None when it breaks a rule or a row is no candidate."""
        number = self._mode(load)
        if number is None:
            return None
        items = [
            self._items[number].get(
                (self._kind(load.gpu_type, service, percent), batch),
            )
            for service, percent, batch in load.replicas
            if service in self._services
        ]
        known = [item for item in items if item is not None]
        is_lawful = _is_lawful(self._modes[number], known, len(load.replicas))
        return Pattern(number, tuple(sorted(known))) if is_lawful else None

    def _mode(self, load: "_Load") -> int | None:
        gpu_type = self._types.get(load.gpu_type)
        for number, mode in enumerate(self._modes):
            is_near = abs(mode.clock_mhz - load.clock_mhz) <= CLOCK_TOLERANCE_MHZ
            if mode.gpu_type == gpu_type and is_near:
                return number
        return None

    def _kind(self, gpu_type: str, service: str, sm_percent: float) -> int:
        number = self._types[gpu_type] * len(self._services) + self._services[service]
        return number * _PERCENTS + round(sm_percent * _PER_PERCENT)

    def _packed(self, gpu_type: int, service: Kinds, sm_percent: Reals) -> Kinds:
        packed: Kinds = (gpu_type * len(self._services) + service) * _PERCENTS
        return packed + np.rint(sm_percent * _PER_PERCENT).astype(np.int64)


class _Load(NamedTuple):
    """What a GPU runs."""

    gpu_type: str
    clock_mhz: float
    replicas: tuple[tuple[str, float, int], ...]
    """(service, SM percent, batch) of each."""


class ColumnKinds:
    """(C, N) the kind of every replica of every column, NO_KIND where there are no more; grows with the columns."""

    def __init__(self, candidates: Candidates, tables: Tables) -> None:
        self._of_modes: tuple[Kinds, ...] = candidates.kinds
        self._kinds = np.zeros(
            (0, max((mode.max_replicas for mode in tables.modes), default=1)),
            np.int64,
        )

    def taken(self, numbers: Sequence[int]) -> "ColumnKinds":
        """Those of some columns, in that order, to grow on their own."""
        some = copy(self)
        some._kinds = self._kinds[np.array(numbers, np.int64)]
        return some

    def of(self, columns: Columns) -> Kinds:
        """Those of all columns as they are now."""
        if len(self._kinds) < len(columns):
            self._kinds = np.concatenate((self._kinds, self._new(columns)))
        return self._kinds

    def _new(self, columns: Columns) -> Kinds:
        """Those of the columns that were made since."""
        filled = len(self._kinds)
        new = np.full((len(columns) - filled, self._kinds.shape[1]), NO_KIND)
        patterns = [columns[number].pattern for number in range(filled, len(columns))]
        for (mode, size), positions in by_shape(patterns).items():
            alike = np.array([patterns[at].items for at in positions], np.int64)
            new[np.array(positions), :size] = self._of_modes[mode][alike]
        return new


def positions(running: RunningKinds, kinds: Kinds) -> Kinds:
    """Position of each kind among those that run; NO_KIND for the others."""
    if not len(running.kinds):
        return np.full(kinds.shape, NO_KIND)
    # What is above all kinds that run would be found one past the end.
    at = np.minimum(np.searchsorted(running.kinds, kinds), len(running.kinds) - 1)
    return np.where(running.kinds[at] == kinds, at, NO_KIND)


def _sm_percents(problem: Problem, tables: Tables) -> tuple[Reals, ...]:
    rows = {
        (points.network, points.gpu_type): np.array(
            [row.sm_percent for row in points.rows]
        )
        for points in problem.points
    }
    return tuple(_sm_percent(problem, mode, rows) for mode in tables.modes)


def _sm_percent(
    problem: Problem,
    mode: GpuMode,
    rows: dict[tuple[str, str], Reals],
) -> Reals:
    percent = np.zeros(len(mode.service))
    gpu_type = problem.gpu_types[mode.gpu_type].name
    first = np.searchsorted(mode.service, np.arange(len(problem.services) + 1))
    for number in np.unique(mode.service):
        own = slice(first[number], first[number + 1])
        percent[own] = rows[problem.services[number].network, gpu_type][mode.row[own]]
    return percent


def _breaks_anti_affinity(mode: GpuMode, items: Sequence[int]) -> bool:
    """Whether any two of the candidates are of services that may not share a GPU."""
    services = mode.service[list(items)].tolist()
    return any(
        mode.shares_label[one, other] for one, other in combinations(services, 2)
    )


def _is_lawful(mode: GpuMode, items: Sequence[int], replicas: int) -> bool:
    """Whether all replicas are candidates, of services that may share a GPU, that fit it together."""
    own = list(items)
    return (
        0 < len(own) == replicas <= mode.max_replicas
        and not (mode.shares_label.size and _breaks_anti_affinity(mode, own))
        and len(set(mode.service[own].tolist())) == replicas
        and mode.width[own].sum() <= mode.steps
        and mode.memory[own].sum() <= mode.memory_mib
        and mode.power[own].sum() <= mode.power_w
    )
