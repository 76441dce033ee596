"""Which GPU a task goes to: the one whose service has the smallest predicted slope of latency over SM share.

    P(b, Δ) = l0 + k · (Δ − Δ0)      two segments per batch b, k = k1 below the breakpoint Δ0 and k2 beyond it
    slope   = min over b of  W(b) / b · |k1(b)| · f(b, Ψ) / SLO         per SM percent
    W(b)    = max(b, λ · SLO)        requests that are there within one SLO, at the replica's rate λ; at least a batch

f(b, Ψ) is by how much the neighbours Ψ, the newcomer among them, stretch a batch at the smallest share that has a row,
when they divide the rest evenly: the breakpoint stays the solo curve's, both slopes grow by the factor at their share.
For networks that were profiled f comes from their points; for others these are estimated from their layers, cumulated
over all neighbours (`predict.never_profiled`).

Source: Mudi (EuroSys 2025), "Cluster-wide co-location". Changed: the slope is that of W/b · P relative to the SLO, the
left side of Mudi's constraint, so that services with unlike SLOs, loads and batches compare; and GPUs with fewer tasks
come first, since a slope says nothing of what tasks take from each other.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from solvers.fill.hosts import Host, Seat
from solvers.fill.residents import Seats
from solvers.predict.colocation import Neighbours, execution_ms
from solvers.predict.two_segments import LEAST_SHARES, fit_two_segments
from solvers.problem import OperatingPoint, Problem, ServiceDemand
from solvers.rows import CLOCK_TOLERANCE_MHZ
from solvers.state import Task

Stretched = tuple[tuple[int, float], ...]
"""(batch, steepness in ms per SM percent beside the neighbours) of one service."""


def waiting_requests(service: ServiceDemand, *, batch: int, rate_rps: float) -> float:
    """W: how many requests a replica finds within one SLO; at least a batch."""
    return max(float(batch), rate_rps * service.slo_ms / 1000.0)


class Slopes:
    """Predicted slopes of hosts; what equal hosts and tasks share is worked out once."""

    def __init__(self, problem: Problem, seats: Seats) -> None:
        self._problem = problem
        self._seats = seats
        self._stretched: dict[tuple[object, ...], Stretched] = {}

    def of(self, host: Host, tasks: Sequence[Task]) -> float:
        """The slope of the host's one service beside these tasks; infinite where one of them finds no row there."""
        (replica,) = host.gpu.replicas
        service = self._problem.service(replica.service)
        company = tuple(sorted((task.network, task.batch) for task in tasks))
        key = (service.network, host.gpu.gpu_type, host.gpu.clock_mhz, company)
        if key not in self._stretched:
            self._stretched[key] = self._stretch(service.network, host, tasks)
        slopes = (
            waiting_requests(service, batch=batch, rate_rps=replica.arrival_rate_rps) / batch * steepness
            for batch, steepness in self._stretched[key]
        )
        return min(slopes, default=float("inf")) / service.slo_ms

    def _stretch(self, network: str, host: Host, tasks: Sequence[Task]) -> Stretched:
        points = self._problem.points_of(network, host.gpu.gpu_type)
        clock_mhz = host.gpu.clock_mhz
        rows = sorted(
            row for row in (points.rows if points else ()) if abs(row.clock_mhz - clock_mhz) <= CLOCK_TOLERANCE_MHZ
        )
        if points is None or not rows:
            return ()
        company = self._company(host, tasks, least_percent=rows[0].sm_percent)
        if company is None:
            return ()
        neighbours = Neighbours(count=len(company), pressure=sum(seat.row.pressure for seat in company))
        stretched = []
        for batch in sorted({row.batch for row in rows}):
            curve = [row for row in rows if row.batch == batch]
            beside_ms = execution_ms(curve[0], neighbours, sensitivity=points.sensitivity, gpu_type=host.gpu_type)
            stretched.append((batch, _steepness(curve) * beside_ms / curve[0].solo_ms))
        return tuple(stretched)

    def _company(self, host: Host, tasks: Sequence[Task], *, least_percent: float) -> list[Seat] | None:
        """The tasks on even parts of what the smallest share leaves over; None where one has no such row."""
        even_percent = (100.0 - least_percent) / len(tasks)
        company = []
        for task in tasks:
            fitting = [seat for seat in self._seats.on(task, host) if seat.row.sm_percent <= even_percent]
            if not fitting:
                return None
            company.append(fitting[-1])
        return company


def _steepness(curve: Sequence[OperatingPoint]) -> float:
    """−k1 of the two segments through a curve; of fewer rows than determine them, that of a straight line."""
    shares, times_ms = tuple(row.sm_percent for row in curve), tuple(row.solo_ms for row in curve)
    if len(shares) < LEAST_SHARES:
        width = shares[-1] - shares[0]
        return max(0.0, (times_ms[0] - times_ms[-1]) / width) if width else 0.0
    return _first_slope(shares, times_ms)


@lru_cache(maxsize=4096)
def _first_slope(shares: tuple[float, ...], times_ms: tuple[float, ...]) -> float:
    """Kept for the life of the process: a fit takes milliseconds, and profiles seldom change."""
    times = np.array(times_ms)
    return -fit_two_segments(np.array(shares), times, weight=1.0 / times).slope_before
