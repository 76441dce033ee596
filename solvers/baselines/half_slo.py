"""The rule of half the SLO, which `gpulets`, `gslice` and `igniter` plan by instead of the capacity law.

A request that comes while a batch runs waits for its end, and then runs in a batch itself; so a replica is taken to
keep its SLO, and to serve all that it can execute, while

    execution_ms <= slo_ms / 2            rate_rps <= 1000 · batch / execution_ms

Source: gpu-lets (ATC 2022) and iGniter (TPDS 2023); InSS, section 6, says that GSLICE does the same.

Good for reproducing what these systems believe. Limits: arrivals are taken to come evenly. With Poisson arrivals a
queue at full use grows without end, so that a plan that uses a replica to the full breaks the promise of the capacity
law (at an SLO of twice the execution time, percentile 0.98 and batch 16 that is 0.72 of it). What keeps such a plan
alive is the headroom of the rates that it is given.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from solvers.greedy.configure import (
    MAX_REPLICAS,
    MIN_CAPACITY_RPS,
    fitting_rows,
    planning_clock_mhz,
)
from solvers.laws.colocation import ALONE, Neighbours, execution_ms
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType

_MIN_BEND = 0.05
"""A rate curve that lies nowhere higher above its chord than this part of the highest rate counts as straight."""

_GUARD = 1e-7
"""A remainder below this part of a replica's rate is rounding, and needs no further replica."""


RowsByPercent = Mapping[float, tuple[OperatingPoint, ...]]
"""By SM percent, ascending; of each the batches, ascending."""


def half_slo_rps(row: OperatingPoint, execution_ms: float, *, slo_ms: float) -> float:
    """The rate that the rule gives a replica that takes so long for a batch; 0 where that is over half the SLO."""
    # Half the SLO for the batch that runs, half for the own one: see the module.
    return 1000.0 * row.batch / execution_ms if 2.0 * execution_ms <= slo_ms else 0.0


@dataclass(frozen=True, kw_only=True)
class SoloProfile:
    """One service alone on one GPU type, at the clock that this type is planned with."""

    gpu_type: GpuType
    slo_ms: float
    sensitivity: float
    rows: RowsByPercent

    def execution_ms(
        self,
        row: OperatingPoint,
        neighbours: Neighbours = ALONE,
    ) -> float:
        """Milliseconds that a batch takes next to these neighbours."""
        return execution_ms(
            row, neighbours, sensitivity=self.sensitivity, gpu_type=self.gpu_type
        )

    def rate_rps(self, row: OperatingPoint, neighbours: Neighbours = ALONE) -> float:
        """What the rule of half the SLO gives a replica next to these neighbours."""
        return half_slo_rps(row, self.execution_ms(row, neighbours), slo_ms=self.slo_ms)

    def largest_batch(
        self,
        sm_percent: float,
        neighbours: Neighbours = ALONE,
    ) -> OperatingPoint | None:
        """The row with the largest batch that runs within half the SLO; None where none does."""
        rows = reversed(self.rows.get(sm_percent, ()))
        return next(
            (row for row in rows if self.rate_rps(row, neighbours) >= MIN_CAPACITY_RPS),
            None,
        )

    @cached_property
    def rates_rps(self) -> Mapping[float, float]:
        """What a replica serves alone at its largest batch, by SM percent, ascending; without those that cannot."""
        best = (
            (sm_percent, self.largest_batch(sm_percent)) for sm_percent in self.rows
        )
        return {
            sm_percent: self.rate_rps(row)
            for sm_percent, row in best
            if row is not None
        }

    @cached_property
    def highest_rps(self) -> float:
        """What one replica serves at most."""
        return max(self.rates_rps.values())

    def min_percent(self, rate_rps: float) -> float | None:
        """The smallest SM percent that serves the rate; None where none does."""
        return next(
            (percent for percent, rate in self.rates_rps.items() if rate >= rate_rps),
            None,
        )

    @cached_property
    def knee_percent(self) -> float:
        """The SM percent beyond which more brings little: where the rate lies farthest above the chord.

        The chord is what the same part of the widest share would bring if rates grew with shares. A straight curve has
        no knee: the widest share.
        """
        widest = max(self.rates_rps)
        slope = self.rates_rps[widest] / widest
        above = {
            percent: rate - slope * percent for percent, rate in self.rates_rps.items()
        }
        # Of equals the smallest share, since the rest of the GPU is worth something to others.
        knee = max(above, key=lambda percent: (above[percent], -percent))
        return knee if above[knee] > _MIN_BEND * self.highest_rps else widest


def profiles(problem: Problem, gpu_type: GpuType) -> dict[str, SoloProfile]:
    """By service, those that the GPU type can serve within half their SLO."""
    clock_mhz = planning_clock_mhz(problem, gpu_type)
    by_network: dict[str, RowsByPercent] = {}
    found = {}
    for service in problem.services:
        points = problem.points_of(service.network, gpu_type.name)
        if points is None or not service.allows(gpu_type.name):
            continue
        # Services of one network share its rows, of which a large fleet's problem has thousands.
        if service.network not in by_network:
            by_network[service.network] = _by_percent(
                fitting_rows(problem, service, gpu_type, clock_mhz)
            )
        profile = SoloProfile(
            gpu_type=gpu_type,
            slo_ms=service.slo_ms,
            sensitivity=points.sensitivity,
            rows=by_network[service.network],
        )
        if profile.rates_rps:
            found[service.name] = profile
    return found


def replicas_for(left_rps: float, rate_rps: float) -> int:
    """How many replicas of that rate serve what is left; never more than a plan may have."""
    return math.ceil(max(0.0, min(float(MAX_REPLICAS), left_rps / rate_rps - _GUARD)))


def max_replicas(service: ServiceDemand, limit: int) -> int:
    """How many replicas a service may have where a plan has room for `limit`."""
    return limit if service.max_replicas is None else min(limit, service.max_replicas)


def _by_percent(
    rows: Iterable[OperatingPoint],
) -> RowsByPercent:
    grouped: dict[float, list[OperatingPoint]] = {}
    for row in sorted(rows):
        grouped.setdefault(row.sm_percent, []).append(row)
    return {sm_percent: tuple(group) for sm_percent, group in grouped.items()}
