"""GPUs that may take spares, and what is left of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from solvers.laws.operating_rows import OperatingRows
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, idle_gpu
from solvers.types.problem import OperatingPoint, Problem, ServiceDemand
from solvers.types.state import Gpu, GpuId, Node

_ROUNDING = 1e-9
"""Relative: what sums may exceed a limit by."""


@dataclass(slots=True, kw_only=True)
class SparePlace:
    """A GPU that may take spares, with what is left of it."""

    gpu: BoundGpu
    sm_percent: float
    memory_mib: float
    watts: float
    replicas: int
    """Further ones that it may hold."""
    spares: list[BoundReplica] = field(default_factory=list)

    def may_take(self, problem: Problem, service: ServiceDemand) -> bool:
        """Whether nobody is there who may not share a GPU with the service, no replica or spare of it either."""
        there = [each.service for each in (*self.gpu.replicas, *self.spares)]
        return service.name not in there and problem.may_share([*there, service.name])

    @property
    def room(self) -> tuple[float, float, float, float]:
        """SM percent, MiB, watts and replicas that further spares may take."""
        return (
            self.sm_percent + _ROUNDING * 100.0,
            self.memory_mib * (1.0 + _ROUNDING),
            self.watts * (1.0 + _ROUNDING),
            float(self.replicas),
        )

    def fits(self, row: OperatingPoint, memory_mib: float) -> bool:
        """Whether a spare of that row fits."""
        sm_percent, room_mib, watts, replicas = self.room
        return (
            row.sm_percent <= sm_percent
            and memory_mib <= room_mib
            and row.power_w <= watts
            and replicas >= 1.0
        )

    def take(self, spare: BoundReplica, row: OperatingPoint) -> None:
        """Give it to a spare."""
        self.spares.append(spare)
        self.sm_percent -= row.sm_percent
        self.memory_mib -= spare.memory_mib
        self.watts -= row.power_w
        self.replicas -= 1

    def with_spares(self) -> BoundGpu:
        """The GPU of the plan."""
        by_service = sorted(self.spares, key=lambda spare: spare.service)
        return replace(self.gpu, spares=tuple(by_service))


def spare_places(
    problem: Problem,
    bound: BoundPlan,
    gpus: Sequence[Gpu],
    nodes: Sequence[Node],
    *,
    may_open: bool,
) -> list[SparePlace]:
    """The GPUs that may take spares, by id."""
    usable = _usable(gpus, nodes)
    used = {gpu.id: gpu for gpu in bound.gpus}
    opened = _idle_paid(problem, usable, used) if may_open else ()
    types = {gpu.id: gpu.gpu_type for gpu in usable}
    rows = OperatingRows(problem)
    found = [
        _place(problem, rows, gpu)
        for gpu in (*used.values(), *opened)
        # An id may stand for another GPU by now.
        if types.get(gpu.id) == gpu.gpu_type and not _has_tasks(gpu)
    ]
    return sorted(found, key=lambda place: place.gpu.id)


def _has_tasks(gpu: BoundGpu) -> bool:
    return any(task.is_resident for task in gpu.tasks)


def _usable(gpus: Sequence[Gpu], nodes: Sequence[Node]) -> list[Gpu]:
    """The GPUs that may start something, by id."""
    cordoned = {node.id for node in nodes if node.cordoned}
    return [
        gpu
        for gpu in sorted(gpus, key=lambda gpu: gpu.id)
        if gpu.healthy and not gpu.cordoned and gpu.node not in cordoned
    ]


def _idle_paid(
    problem: Problem, usable: Sequence[Gpu], used: Mapping[GpuId, BoundGpu]
) -> Iterator[BoundGpu]:
    """The first idle GPU of each node, as far as so many more of its type are paid for than are in use."""
    for gpu_type in problem.gpu_types:
        of_type = [gpu for gpu in usable if gpu.gpu_type == gpu_type.name]
        # What runs on a cordoned GPU takes one of those that are paid for, too.
        taken = sum(gpu.gpu_type == gpu_type.name for gpu in used.values())
        first = {gpu.node: gpu for gpu in reversed(of_type) if gpu.id not in used}
        for _, gpu in sorted(first.items())[: max(0, gpu_type.paid_count - taken)]:
            yield idle_gpu(gpu, gpu_type)


def _place(problem: Problem, rows: OperatingRows, gpu: BoundGpu) -> SparePlace:
    gpu_type = problem.gpu_type(gpu.gpu_type)
    planned = [
        rows.find(
            each.network, gpu.gpu_type, (each.sm_percent, each.batch, gpu.clock_mhz)
        )
        for each in gpu.replicas
    ]
    cap_w = min(gpu_type.power_cap_w, gpu.power_cap_w)
    drawn_w = gpu_type.idle_w + sum(row.power_w for row in planned if row)
    return SparePlace(
        gpu=gpu,
        sm_percent=gpu_type.max_sm_percent(len(gpu.replicas) + 1)
        - sum(each.sm_percent for each in gpu.replicas),
        memory_mib=gpu_type.memory_mib - sum(each.memory_mib for each in gpu.replicas),
        # What a replica without a row draws is not known: then nothing is left.
        watts=cap_w - drawn_w if None not in planned else 0.0,
        replicas=problem.max_replicas_per_gpu - len(gpu.replicas),
    )
