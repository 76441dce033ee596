"""One GPU with one replica and up to three tasks: the replica's batch and SM percent, and the tasks' shares.

Sets         B batches of the service with rows at the GPU's clock; D SM percents with rows; Ψ the n tasks.
Parameters   P(b, Δ, Ψ) ms of a batch by the laws; λ rps; SLO ms; W(b) = max(b, λ · SLO) requests within one SLO.
Variables    b ∈ B and Δ ∈ D of the replica; δ ∈ D, the share of every task.
Objective    minimise Σ over tasks of iteration time, each over its own on a whole GPU.
Constraints  W / b · P(b, Δ, Ψ) ≤ SLO; the capacity law, so that the SLO's percentile is promised and not the mean;
             both with the SLO less what the tasks stall a batch; Δ + n · δ ≤ 100; memory; watts. What rounding to
             rows leaves over goes to single tasks, row by row.

Batches are searched by GP-LCB (`solvers.papers.mudi.gp_lcb`). For each, δ is the largest even part of the rest that
some Δ bears, and Δ the smallest share with it by a scan of the rows; what is chosen in the end is solved in CVXPY, on
convex pieces (`solvers.sharing`, which checks one against the other).

Source: Mudi (EuroSys 2025), "Device-level multiplexing". W is not defined there. Changed: the capacity law, which is
stricter than the constraint of the slide; limits hold at ROOM times the rate, so that not every breath of load retunes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from solvers.backfill.hosts import Host, HostTenant, stall_ms
from solvers.backfill.residents import Seats, bound_task
from solvers.laws.colocation import max_execution_ms, neighbours_with
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ, SM_PERCENT_TOLERANCE
from solvers.papers.mudi.gp_lcb import LcbSearch, search_batch
from solvers.papers.mudi.iterations import Iterations
from solvers.papers.mudi.smallest_slope import waiting_requests
from solvers.sharing.problem import LimitedCurve, SharingProblem, make_curve
from solvers.sharing.row_scan import smallest_row
from solvers.sharing.solve import solve as solve_sharing
from solvers.types.outcome import Budget
from solvers.types.plan import BoundReplica
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Task

ROOM = 1.25
"""Times the rate that a replica is tuned for; where that is too much, the rate itself."""
SAME = 0.05
"""By so much a tuning must be better than one that restarts no replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A host as it was tuned."""

    row: OperatingPoint
    """The replica's row."""
    seats: tuple[HostTenant, ...]
    """The tasks' rows, in their order."""
    slowness: float
    """The objective."""
    speed: float
    """Summed over the tasks; 1 is one of them alone on the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """Tunes hosts of one problem."""

    problem: Problem
    seats: Seats
    iterations: Iterations
    searches: list[LcbSearch] = field(default_factory=list)
    """What was tried, host by host."""

    def tune(
        self,
        host: Host,
        tasks: Sequence[Task],
        *,
        room: float = ROOM,
    ) -> Tuned | None:
        """The best tuning of a host for these tasks, whatever they have now; None where they cannot all sit there.

        The host has one replica. Raises InvalidInput for points that are not finite.
        """
        # With head-room if that is possible: limits at the bare rate would be broken, and tuned again, at the next
        # rise.
        for factor in sorted({room, 1.0}, reverse=True):
            found = self._tune(_Bench(self, host, tuple(tasks), factor))
            if found is not None:
                return found
        return None

    def rebatched(self, host: Host, tasks: Sequence[Task]) -> OperatingPoint | None:
        """The row with another batch at which the replica, as it runs, bears the residents as they run; or None."""
        (replica,) = host.gpu.replicas
        bench = _Bench(self, host, tuple(tasks), 1.0)
        seats = tuple(seat for _, seat in host.residents)
        rows = [
            row
            for row in bench.rows
            if _is_share(row, replica.sm_percent)
            and row.memory_mib <= replica.memory_mib
        ]
        found = [
            (sum(each), row)
            for row in rows
            if (each := bench.slownesses(row, seats)) is not None
        ]
        return min(found, default=(0.0, None))[1]

    def spare_percent(self, host: Host, tasks: Sequence[Task], *, room: float) -> float:
        """The SM percent that the replica could spare at its batch next to the residents as they run."""
        (replica,) = host.gpu.replicas
        bench = _Bench(self, host, tuple(tasks), room)
        seats = [seat for _, seat in host.residents]
        min_percent = smallest_row(bench.limited(replica.batch, seats))
        if min_percent is None:
            return 0.0
        return max(0.0, replica.sm_percent - min_percent)

    def _tune(self, bench: "_Bench") -> Tuned | None:
        best = self._searched(bench)
        if best is None:
            return None
        best = bench.confirmed(best)
        (replica,) = bench.host.gpu.replicas
        staying = bench.staying(replica)
        # Another share costs a shadow instance, which must be worth SAME.
        if staying is not None and staying.slowness <= best.slowness * (1.0 + SAME):
            return staying
        return best

    def _searched(self, bench: "_Bench") -> Tuned | None:
        """The best of the batches that the search tries; None where none keeps its limits."""
        tunings: dict[int, Tuned | None] = {}

        def value_of(batch: int) -> float | None:
            tunings[batch] = tuned = bench.at_batch(batch)
            return None if tuned is None else tuned.slowness

        (replica,) = bench.host.gpu.replicas
        batches = [row.batch for row in bench.rows]
        search = search_batch(batches, value_of, first=replica.batch)
        self.searches.append(search)
        return tunings[search.best] if search.best is not None else None


class _Bench:
    """One host on which tunings are tried."""

    def __init__(
        self,
        tuner: Tuner,
        host: Host,
        tasks: tuple[Task, ...],
        room: float,
    ) -> None:
        (replica,) = host.gpu.replicas
        problem = tuner.problem
        self.host, self._tasks, self._tuner = host, tasks, tuner
        self._service: ServiceDemand = problem.service(replica.service)
        self._points = problem.points_of(
            replica.network, host.gpu.gpu_type
        ) or OperatingPoints(
            network=replica.network,
            gpu_type=host.gpu.gpu_type,
            sensitivity=0.0,
            rows=(),
        )
        # The clock is the plan's, which Mudi does not tune.
        self.rows = [
            row
            for row in self._points.rows
            if abs(row.clock_mhz - host.gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ
        ]
        self._rate_rps = room * replica.arrival_rate_rps

    def at_batch(self, batch: int) -> Tuned | None:
        """The largest even shares for the tasks, and the smallest for the replica next to them."""
        # "Evenly distribute the unassigned resource partitions" (the slide on more tasks): the largest even shares
        # come first.
        for seats in self._even_seats():
            sm_percent = smallest_row(self.limited(batch, seats))
            tuned = (
                None if sm_percent is None else self._tuned(batch, sm_percent, seats)
            )
            if tuned is not None:
                return self._with_rest(tuned)
        return None

    def confirmed(self, tuned: Tuned) -> Tuned:
        """The same with the replica's share as the linear programme finds it, which is checked against the scan."""
        problem = SharingProblem(replicas=(self.limited(tuned.row.batch, tuned.seats),))
        # The slide's way is CVXPY, which is too slow for every trial: the scan goes first and is checked at the end.
        solution, _ = solve_sharing(problem, Budget())
        return (
            self._tuned(tuned.row.batch, solution.sm_percent[0], tuned.seats) or tuned
        )

    def staying(self, replica: BoundReplica) -> Tuned | None:
        """The best with the replica's batch and share as they are."""
        tunings = (
            self._tuned(replica.batch, replica.sm_percent, seats)
            for seats in self._even_seats()
        )
        tuned = next((tuned for tuned in tunings if tuned is not None), None)
        return None if tuned is None else self._with_rest(tuned)

    def slownesses(
        self,
        row: OperatingPoint,
        seats: Sequence[HostTenant],
    ) -> list[float] | None:
        """The slowness of each task with these seats taken; None where that breaks a limit."""
        replica = HostTenant(
            row=row,
            sensitivity=self._points.sensitivity,
            allowed_ms=partial(self._longest_ms, row.batch),
        )
        residents = [
            (bound_task(task, seat), seat)
            for task, seat in zip(self._tasks, seats, strict=True)
        ]
        host = Host(
            gpu=self.host.gpu,
            gpu_type=self.host.gpu_type,
            replicas=(replica,),
            residents=residents,
        )
        if not host.holds():
            return None
        return [
            self._tuner.iterations.slowness(task, host, at)
            for at, task in enumerate(self._tasks)
        ]

    def _tuned(
        self,
        batch: int,
        sm_percent: float | None,
        seats: tuple[HostTenant, ...],
    ) -> Tuned | None:
        rows = (
            row
            for row in self.rows
            if row.batch == batch and _is_share(row, sm_percent)
        )
        row = next(rows, None)
        return None if row is None else self._at_row(row, seats)

    def _at_row(
        self,
        row: OperatingPoint,
        seats: tuple[HostTenant, ...],
    ) -> Tuned | None:
        found = self.slownesses(row, seats)
        if found is None:
            return None
        return Tuned(
            row=row,
            seats=seats,
            slowness=sum(found),
            speed=sum(1.0 / each for each in found),
        )

    def _with_rest(self, tuned: Tuned) -> Tuned:
        """The same with what even shares leave over given out, a step to each task in turn."""
        best = tuned
        for at, task in enumerate(self._tasks):
            own = best.seats[at].row
            on_host = self._tuner.seats.on(task, self.host)
            wider = next((seat for seat in on_host if seat.row > own), None)
            if wider is None:
                continue
            seats = (*best.seats[:at], wider, *best.seats[at + 1 :])
            grown = self._at_row(best.row, seats)
            # Its pressure grows with its share, so that the others may lose more than it gains.
            if grown is not None and grown.slowness < best.slowness:
                best = grown
        return best

    def _longest_ms(self, batch: int, stalled_ms: float) -> float:
        return longest_ms(
            self._tuner.problem.capacity_law,
            replace(self._service, slo_ms=self._service.slo_ms - stalled_ms),
            batch,
            self._rate_rps,
        )

    def limited(self, batch: int, seats: Sequence[HostTenant]) -> LimitedCurve:
        """The replica's curve next to these seats, and what it must keep."""
        curve = make_curve(
            self._points,
            batch=batch,
            clock_mhz=self.host.gpu.clock_mhz,
            gpu_type=self.host.gpu_type,
            neighbours=neighbours_with(seat.row for seat in seats),
        )
        return LimitedCurve(
            name=self._service.name,
            curve=curve,
            limit_ms=self._longest_ms(batch, stall_ms(seats)),
            max_sm_percent=100.0
            - sum(seat.row.sm_percent for seat in seats)
            + SM_PERCENT_TOLERANCE,
        )

    def _even_seats(self) -> list[tuple[HostTenant, ...]]:
        """Seats of one share for all tasks, largest first, as far as some share is left for the replica."""
        min_percent = min((row.sm_percent for row in self.rows), default=100.0)
        max_percent = (100.0 - min_percent) / max(
            1, len(self._tasks)
        ) + SM_PERCENT_TOLERANCE
        by_share = [
            {
                seat.row.sm_percent: seat
                for seat in self._tuner.seats.on(task, self.host)
            }
            for task in self._tasks
        ]
        common = set.intersection(*map(set, by_share)) if by_share else set()
        shares = sorted(
            (share for share in common if share <= max_percent), reverse=True
        )
        return [tuple(seats[share] for seats in by_share) for share in shares]


def longest_ms(
    law: CapacityLaw,
    service: ServiceDemand,
    batch: int,
    rate_rps: float,
) -> float:
    """The longest execution that both Mudi's constraint and the capacity law allow; 0 where stalls leave no SLO."""
    if service.slo_ms <= 0.0:
        return 0.0
    waiting = waiting_requests(service, batch=batch, rate_rps=rate_rps)
    by_law_ms = max_execution_ms(
        law,
        percentile=service.percentile,
        batch=batch,
        slo_ms=service.slo_ms,
        rate_rps=rate_rps,
    )
    # The slide's W/b · P ≤ SLO, solved for P.
    return min(by_law_ms, service.slo_ms * batch / waiting)


def tuning_limit_ms(
    law: CapacityLaw,
    service: ServiceDemand,
    batch: int,
    rate_rps: float,
) -> float:
    """The same at ROOM times the rate."""
    return longest_ms(law, service, batch, ROOM * rate_rps)


def _is_share(row: OperatingPoint, sm_percent: float | None) -> bool:
    return (
        sm_percent is not None
        and abs(row.sm_percent - sm_percent) <= SM_PERCENT_TOLERANCE
    )
