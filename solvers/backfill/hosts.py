"""A GPU as a host of tasks: what its replicas leave over, by the contract's laws."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from solvers.laws.colocation import execution_ms, max_execution_ms, neighbours_of
from solvers.laws.operating_rows import OperatingRows
from solvers.types.errors import InvalidInput
from solvers.types.plan import BoundGpu, BoundReplica, BoundTask
from solvers.types.problem import CapacityLaw, OperatingPoint, Problem, ServiceDemand
from solvers.types.state import GpuType

TOLERANCE = 1e-9
"""Relative rounding of sums; a thousandth of what the checker allows."""

AllowedMs = Callable[[float], float]
"""The longest execution with which a replica still carries its rate, where tasks stall its batches by that many ms."""


def any_time(stall_ms: float) -> float:  # noqa: ARG001
    """What a task is allowed: it makes no promise."""
    return math.inf


def promised_ms(
    law: CapacityLaw, service: ServiceDemand, *, batch: int, rate_rps: float
) -> AllowedMs:
    """What a replica of the service is allowed at that batch and rate."""

    # Remembered, since a search asks for the same few stalls thousands of times.
    @cache
    def allowed_ms(stall_ms: float) -> float:
        # A stalled batch answers that much later, so that much of its SLO is gone before it begins.
        slo_ms = service.slo_ms - stall_ms
        if slo_ms <= 0.0:
            return math.inf if rate_rps <= 0.0 else 0.0
        return max_execution_ms(
            law,
            percentile=service.percentile,
            batch=batch,
            slo_ms=slo_ms,
            rate_rps=rate_rps,
        )

    return allowed_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTenant:
    """Who sits on a host: a row with its network's sensitivity, and how long its executions may take."""

    row: OperatingPoint
    sensitivity: float
    allowed_ms: AllowedMs = any_time


@dataclass(slots=True, kw_only=True)
class Host:
    """One GPU that carries replicas, tasks or both, and fills up."""

    gpu: BoundGpu
    """With its replicas, without tasks."""
    gpu_type: GpuType
    replicas: tuple[HostTenant, ...]
    residents: list[tuple[BoundTask, HostTenant]] = field(default_factory=list)
    swapped: list[BoundTask] = field(default_factory=list)

    @property
    def tasks(self) -> tuple[BoundTask, ...]:
        """All of them, residents first."""
        return (*(task for task, _ in self.residents), *self.swapped)

    @property
    def seats(self) -> tuple[HostTenant, ...]:
        """Those of replicas and resident tasks."""
        return (*self.replicas, *(seat for _, seat in self.residents))

    @property
    def free_sm_percent(self) -> float:
        """What is not held of the SMs."""
        max_percent = self.gpu_type.max_sm_percent(len(self.seats) + 1)
        return max_percent - sum(seat.row.sm_percent for seat in self.seats)

    def fits(self, seat: HostTenant) -> bool:
        """Whether one more may sit down: SMs, memory, watts, and every promise as it was."""
        return self._obeys([*self.seats, seat])

    def holds(self) -> bool:
        """Whether those who sit here may stay, by the same limits."""
        return self._obeys(self.seats)

    def iteration_ms(self, seat: HostTenant) -> float:
        """How long an iteration of a newcomer takes next to those that sit here."""
        return self._execution_ms([*self.seats, seat], len(self.seats))

    def pace_ms(self, place: int) -> float:
        """How long an iteration of the resident at that position takes."""
        return self._execution_ms(self.seats, len(self.replicas) + place)

    def _obeys(self, together: Sequence[HostTenant]) -> bool:
        # Sums first: the laws of the replicas' times take far longer.
        sm_percent = sum(each.row.sm_percent for each in together)
        memory_mib = sum(each.row.memory_mib for each in together)
        watts = self.gpu_type.idle_w + sum(each.row.power_w for each in together)
        stalled_ms = stall_ms(together)
        return (
            _within(sm_percent, self.gpu_type.max_sm_percent(len(together)))
            and _within(memory_mib, self.gpu_type.memory_mib)
            and _within(watts, self.gpu_type.power_cap_w)
            and all(
                self._execution_ms(together, at) <= each.allowed_ms(stalled_ms)
                for at, each in enumerate(self.replicas)
            )
        )

    def _execution_ms(self, together: Sequence[HostTenant], at: int) -> float:
        seat = together[at]
        return execution_ms(
            seat.row,
            neighbours_of([each.row for each in together], at),
            sensitivity=seat.sensitivity,
            gpu_type=self.gpu_type,
        )


def stall_ms(tenants: Sequence[HostTenant]) -> float:
    """By how much training among these tenants stalls a replica's batches, at the 99th percentile."""
    return math.fsum(each.row.stall_ms for each in tenants)


def bound_gpus(hosts: Iterable[Host]) -> tuple[BoundGpu, ...]:
    """The GPUs that carry anything, with their tasks, by id."""
    return tuple(
        replace(host.gpu, tasks=host.tasks)
        for host in sorted(hosts, key=lambda host: host.gpu.id)
        if host.gpu.replicas or host.tasks
    )


def make_host(problem: Problem, rows: OperatingRows, gpu: BoundGpu) -> Host:
    """A host with the GPU's replicas and no task. Raises InvalidInput for a replica without a service or row."""
    kind = problem.gpu_type(gpu.gpu_type)
    # Its own cap is less where the cluster's or its node's watts are short.
    gpu_type = replace(kind, power_cap_w=min(kind.power_cap_w, gpu.power_cap_w))
    seats = (_seat(problem, rows, gpu, replica) for replica in gpu.replicas)
    return Host(gpu=gpu, gpu_type=gpu_type, replicas=tuple(seats))


def _seat(
    problem: Problem, rows: OperatingRows, gpu: BoundGpu, replica: BoundReplica
) -> HostTenant:
    points = problem.points_of(replica.network, gpu.gpu_type)
    where = (replica.sm_percent, replica.batch, gpu.clock_mhz)
    row = rows.find(replica.network, gpu.gpu_type, where)
    service = _service(problem, replica)
    if points is None or row is None:
        raise InvalidInput(
            "replicas", f"{replica.id}: its row on {gpu.gpu_type} is no more"
        )
    # A process keeps the memory that it was started with, even where its row needs less by now.
    reserved = row._replace(memory_mib=max(row.memory_mib, replica.memory_mib))
    return HostTenant(
        row=reserved,
        sensitivity=points.sensitivity,
        allowed_ms=promised_ms(
            problem.capacity_law,
            service,
            batch=row.batch,
            rate_rps=replica.arrival_rate_rps,
        ),
    )


def _service(problem: Problem, replica: BoundReplica) -> ServiceDemand:
    # The plan in force may be older than the problem: a service or its measurements may be gone since.
    try:
        return problem.service(replica.service)
    except KeyError:
        raise InvalidInput(
            "replicas",
            f"{replica.id}: no service is called {replica.service!r} any more",
        ) from None


def _within(value: float, limit: float) -> bool:
    return value <= limit * (1.0 + TOLERANCE)
