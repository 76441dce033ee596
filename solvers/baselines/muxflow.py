"""Policy `muxflow`: each inference service on GPUs of its own, and one offline task next to it in its idle SMs.

    1. one_per_gpu    as many GPUs as each rate needs by the rule of half the SLO; what runs stays, with its share
    2. fill.matching  after `bind`: tasks are matched with GPUs by speed, under shares that the services' load sets

Source: MuxFlow (arXiv 2303.13803), as Mudi (EuroSys 2025) compares itself with it. It says nothing of how many GPUs a
service has; counting them by half the SLO is what the other baselines do (`half_slo`), and ours for this one.

Good as a baseline in simulations. Limits: it knows no SLO when it sets shares, and no queue (see `half_slo`), so that
its plans may break promises; one task per GPU.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from solvers.backfill.hosts import Host, HostTenant
from solvers.backfill.problem import FillLimits, FillProblem
from solvers.backfill.residents import urgency
from solvers.baselines.half_slo import half_slo_rps
from solvers.baselines.leftover_fill import LeftOver, widest
from solvers.baselines.one_per_gpu import OnePerGpu
from solvers.laws.colocation import execution_ms
from solvers.laws.operating_rows import CLOCK_TOLERANCE_MHZ, SM_PERCENT_TOLERANCE
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import BoundGpu, Plan
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Json, Observed, ReplicaId, Task

__all__ = ["NAME", "fill", "make_plan"]

NAME = "muxflow"


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The services' plan, its report, and since when each service has needed fewer GPUs than it has."""
    return _POLICY.make_plan(problem, observed, memory, budget)


def _half_slo(problem: Problem, service: ServiceDemand, row: OperatingPoint) -> float:
    del problem
    return half_slo_rps(row, row.solo_ms, slo_ms=service.slo_ms)


_POLICY = OnePerGpu(name=NAME, carries=_half_slo)

_FORBIDDEN = -1.0
"""Less than any speed: such a pair is only matched where a task has no other, and then undone."""


def fill(wanted: FillProblem, limits: FillLimits | None = None) -> tuple[BoundGpu, ...]:
    """The bound plan's GPUs with at most one task each, replicas narrowed for it; and idle ones for who waited long.

    The order of the items changes nothing. Raises InvalidInput for a replica without a service or row.
    """
    left = LeftOver(wanted, limits or FillLimits())
    online = [host for host in left.free() if len(host.replicas) == 1]
    offline = sorted(left.waiting(), key=urgency)[: len(online)]
    if online and offline:
        _match(wanted.problem, left, online, offline)
    for task in sorted(left.waiting(), key=urgency):
        if task.waiting_s >= (limits or FillLimits()).wait_s:
            left.place(task, widest)
    return left.gpus()


def idle_percent(problem: Problem, host: Host) -> float:
    """The SMs that a GPU's one replica leaves idle on average, alone at its row and rate; 0 to 100."""
    (seat,), (replica,) = host.replicas, host.gpu.replicas
    busy_ms = execution_ms(
        seat.row,
        sensitivity=seat.sensitivity,
        gpu_type=problem.gpu_type(host.gpu.gpu_type),
    )
    # Utilisation by the batch: the replica is busy for one execution in every batch's worth of arrivals.
    part = min(1.0, replica.arrival_rate_rps * busy_ms / (1000.0 * replica.batch))
    return 100.0 - part * replica.sm_percent


def _match(
    problem: Problem, left: LeftOver, online: list[Host], offline: list[Task]
) -> None:
    pairs = [[_pair(problem, left, host, task) for task in offline] for host in online]
    speeds = [[pair.speed if pair else _FORBIDDEN for pair in row] for row in pairs]
    # A maximum matching, as in the paper: greedy pairs would leave the last tasks the worst GPUs.
    matched = linear_sum_assignment(np.array(speeds), maximize=True)
    for o, f in zip(*matched, strict=True):
        pair = pairs[o][f]
        if pair is not None:
            host = left.put(_at_row(online[o].gpu, pair.row))
            left.take(offline[f], host, pair.seat)


class _Pair(NamedTuple):
    """A replica and a task on one GPU."""

    row: OperatingPoint
    """The replica's."""
    seat: HostTenant
    """The task's."""
    speed: float
    """The task's, as a part of that in its widest seat."""


def _pair(problem: Problem, left: LeftOver, host: Host, task: Task) -> _Pair | None:
    """How a host's replica and a task share its GPU; None where they cannot."""
    max_percent = idle_percent(problem, host) + SM_PERCENT_TOLERANCE
    seats = left.seats(task, host)
    # Widest first: the task takes what the service leaves idle on average, and the service the rest.
    for seat in reversed(seats):
        if seat.row.sm_percent > max_percent:
            continue
        row = _widest_row(problem, host, 100.0 - seat.row.sm_percent)
        if row is None:
            continue
        replica = replace(host.replicas[0], row=row)
        beside = Host(gpu=host.gpu, gpu_type=host.gpu_type, replicas=(replica,))
        if beside.fits(seat):
            speed = seats[-1].row.solo_ms / beside.iteration_ms(seat)
            return _Pair(row, seat, speed)
    return None


def _widest_row(
    problem: Problem,
    host: Host,
    max_percent: float,
) -> OperatingPoint | None:
    """The replica's row with the largest share up to that, at its batch and clock."""
    (replica,) = host.gpu.replicas
    points = problem.points_of(replica.network, host.gpu.gpu_type)
    rows = [
        row
        for row in (points.rows if points else ())
        if row.batch == replica.batch
        and abs(row.clock_mhz - host.gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ
        and row.sm_percent <= max_percent + SM_PERCENT_TOLERANCE
    ]
    return max(rows, default=None)


def _at_row(gpu: BoundGpu, row: OperatingPoint) -> BoundGpu:
    (replica,) = gpu.replicas
    # Another share is another process: without an id the replica is started again, and gets one then.
    if abs(replica.sm_percent - row.sm_percent) <= SM_PERCENT_TOLERANCE:
        return gpu
    return replace(
        gpu, replicas=(replace(replica, id=ReplicaId(""), sm_percent=row.sm_percent),)
    )
