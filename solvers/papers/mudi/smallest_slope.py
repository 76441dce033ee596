"""Which GPU a task goes to: the one where the predicted slopes of latency over SM share ask the least for its service.

    P(b, Δ, Ψ) = (l0 + k · (Δ − Δ0)) · f(b, Δ, Ψ)        k = k1 up to the breakpoint Δ0, k2 beyond it; by batch b

Breakpoint and slopes are a fit of the service's rows. The neighbours Ψ, the newcomer among them, divide evenly what a
share Δ leaves, and stretch a batch by the factor f, which multiplies both slopes at their share. For networks that were
profiled it comes from their points; for others these are estimated from their layers, cumulated over all neighbours
(`predict.estimate.unprofiled_training`).

    share     the least Δ at which P reaches its limit, over all b
    slope     −dP/dΔ at the least share, relative to the limit: what a percent of the SMs is worth to the service

A task goes where the share is smallest, of equal ones the slope; GPUs with fewer tasks come first, since a curve of the
service says nothing of what tasks take from each other.

Source: Mudi (EuroSys 2025), "Cluster-wide co-location": the GPU that yields the smallest slope. Changed: the slide's
bare slope does not tell services apart whose SLOs and loads differ; here slopes count by where they reach the limit
(`bench/papers/mudi.py` has both).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from solvers.backfill.hosts import Host
from solvers.backfill.residents import Seats
from solvers.laws.colocation import Neighbours, executions_ms
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ
from solvers.predict.data.samples import Reals
from solvers.predict.regression.two_segments import (
    MIN_SHARES,
    TwoSegments,
    fit_two_segments,
)
from solvers.types.problem import (
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Task

Limit = Callable[[ServiceDemand, int, float], float]
"""The longest execution in ms that a service with a batch of that size, at that rate in rps, may have."""


def waiting_requests(service: ServiceDemand, *, batch: int, rate_rps: float) -> float:
    """W: how many requests a replica finds within one SLO; at least a batch."""
    return max(float(batch), rate_rps * service.slo_ms / 1000.0)


class Demanded(NamedTuple):
    """What a service asks for next to some tasks; sorts the least first."""

    share_percent: float
    """100 and more where no share reaches the limit."""
    slope: float
    """Parts of the limit per SM percent."""


_MIN_MS = 1e-9
"""A limit below it is one that nothing keeps."""
NOWHERE = Demanded(float("inf"), float("inf"))
"""No row fits."""


class Stretched(NamedTuple):
    """A latency curve next to neighbours."""

    batch: int
    shares: Reals
    """(N,) ascending."""
    times_ms: Reals
    """(N,) at these shares; linear in between."""

    def demanded(self, limit_ms: float) -> Demanded:
        """Where the curve reaches the limit, and how steep it begins."""
        limit_ms = max(limit_ms, _MIN_MS)
        # k1 of the slide, over the limit: a millisecond means more to a service with a short SLO.
        slope = self._first_slope_ms() / limit_ms
        return Demanded(self._share_percent(limit_ms), slope)

    def _first_slope_ms(self) -> float:
        """Milliseconds that one SM percent more saves at the least share; 0 where there is no other share."""
        if len(self.shares) == 1:
            return 0.0
        fall_ms = self.times_ms[0] - self.times_ms[1]
        return float(fall_ms / (self.shares[1] - self.shares[0]))

    def _share_percent(self, limit_ms: float) -> float:
        """Where the curve reaches the limit."""
        shares = self.shares
        times_ms = self.times_ms
        within = np.flatnonzero(times_ms <= limit_ms)
        if not len(within):
            # No share is enough: by how many times it misses, so that GPUs that miss can be ordered as well.
            return float(100.0 * times_ms.min() / limit_ms)
        at = int(within[0])
        if at == 0:
            return float(shares[0])
        part = (times_ms[at - 1] - limit_ms) / (times_ms[at - 1] - times_ms[at])
        return float(shares[at - 1] + part * (shares[at] - shares[at - 1]))


class Slopes:
    """Predicted curves of hosts; what equal hosts and tasks share is worked out once."""

    def __init__(self, problem: Problem, seats: Seats, limit: Limit) -> None:
        self._problem, self._seats, self._limit = problem, seats, limit
        self._stretched: dict[tuple[object, ...], tuple[Stretched, ...]] = {}
        self._demanded: dict[tuple[object, ...], Demanded] = {}

    def of(self, host: Host, tasks: Sequence[Task]) -> Demanded:
        """What the host's one service asks for next to these tasks; NOWHERE where one of them finds no row there."""
        (replica,) = host.gpu.replicas
        rate_rps = replica.arrival_rate_rps
        key = (replica.service, rate_rps, *_place(host, tasks))
        if key not in self._demanded:
            service = self._problem.service(replica.service)
            demanded = (
                curve.demanded(self._limit(service, curve.batch, rate_rps))
                for curve in self._curves(service.network, host, tasks)
            )
            self._demanded[key] = min(demanded, default=NOWHERE)
        return self._demanded[key]

    def _curves(
        self,
        network: str,
        host: Host,
        tasks: Sequence[Task],
    ) -> tuple[Stretched, ...]:
        # Curves are the network's; what is asked of them depends on the service and its rate as well.
        key = (network, *_place(host, tasks))
        if key not in self._stretched:
            self._stretched[key] = tuple(self._stretch(network, host, tasks))
        return self._stretched[key]

    def _stretch(
        self,
        network: str,
        host: Host,
        tasks: Sequence[Task],
    ) -> Iterator[Stretched]:
        """The network's curves on a host next to these tasks, one for each batch."""
        points = self._problem.points_of(network, host.gpu.gpu_type)
        if points is None or not all(self._seats.on(task, host) for task in tasks):
            return
        for curve in _rows_by_batch(points, host.gpu.clock_mhz):
            shares = np.array([row.sm_percent for row in curve])
            beside_ms = self._beside_ms(curve, points.sensitivity, host, tasks)
            alone_ms = np.array([row.solo_ms for row in curve])
            # The fit is stretched and not the rows, so that one measurement's noise is no slope.
            fitted_ms = _solo_fit(curve).latency_ms(shares)
            yield Stretched(curve[0].batch, shares, fitted_ms * beside_ms / alone_ms)

    def _beside_ms(
        self,
        curve: Sequence[OperatingPoint],
        sensitivity: float,
        host: Host,
        tasks: Sequence[Task],
    ) -> Reals:
        """(N,) execution times of a curve's rows next to tasks that divide evenly what each leaves over."""
        without_ms, with_all_ms = (
            executions_ms(
                curve,
                Neighbours(count=len(tasks), pressure=pressure),
                sensitivity=sensitivity,
                gpu_type=host.gpu_type,
            )
            for pressure in (0.0, 1.0)
        )
        shares = np.array([row.sm_percent for row in curve])
        # Execution times are linear in the pressure, which differs from share to share.
        pressures = self._pressures(host, shares, tasks)
        return without_ms + (with_all_ms - without_ms) * pressures

    def _pressures(self, host: Host, shares: Reals, tasks: Sequence[Task]) -> Reals:
        """(N,) that of tasks that divide evenly what these shares leave over."""
        even_percent = (100.0 - shares) / len(tasks)
        pressures = np.zeros(len(shares))
        for task in tasks:
            seats = self._seats.on(task, host)
            pressures += np.interp(
                even_percent,
                [seat.row.sm_percent for seat in seats],
                [seat.row.pressure for seat in seats],
            )
        return pressures


def _rows_by_batch(
    points: OperatingPoints, clock_mhz: float
) -> Iterator[list[OperatingPoint]]:
    """The rows at that clock of one batch after the other, each by SM percent."""
    rows = sorted(
        row
        for row in points.rows
        if abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
    )
    # SM percent is the first field of a row, so that each list ascends by it.
    for batch in sorted({row.batch for row in rows}):
        yield [row for row in rows if row.batch == batch]


def _place(host: Host, tasks: Sequence[Task]) -> tuple[object, ...]:
    """What curves depend on besides the network."""
    neighbours = tuple(sorted((task.network, task.batch) for task in tasks))
    return host.gpu.gpu_type, host.gpu.clock_mhz, neighbours


def _solo_fit(curve: Sequence[OperatingPoint]) -> TwoSegments:
    """The two segments of a curve; of fewer rows than determine them a straight line that ends at the breakpoint."""
    shares = tuple(row.sm_percent for row in curve)
    times_ms = tuple(row.solo_ms for row in curve)
    if len(shares) >= MIN_SHARES:
        return _fitted(shares, times_ms)
    slope = 0.0
    if len(shares) > 1:
        slope = (times_ms[-1] - times_ms[0]) / (shares[-1] - shares[0])
    return TwoSegments(
        breakpoint_percent=shares[-1],
        latency_ms_at_breakpoint=times_ms[-1],
        slope_before=slope,
        slope_after=0.0,
    )


@lru_cache(maxsize=4096)
def _fitted(shares: tuple[float, ...], times_ms: tuple[float, ...]) -> TwoSegments:
    """Kept for the life of the process: a fit takes milliseconds, and profiles seldom change."""
    times = np.array(times_ms)
    # Weighted so that a part of a time counts alike on the steep segment and on the flat one.
    return fit_two_segments(np.array(shares), times, weight=1.0 / times)
