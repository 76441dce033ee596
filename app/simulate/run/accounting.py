"""What a simulated run cost, from its targets: the same three accountings as the SQL views, for stores in memory."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime

from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica
from solvers.types.state import GpuType

Targets = Sequence[tuple[datetime, BoundPlan]]
"""Each with the time from which it was in force, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """USD by service, in the accountings of `report.cost_by_service_hour`."""

    whole_gpu_usd: Mapping[str, float]
    """Every used GPU's price, divided over its services by SM percent; adds up to what the GPUs cost."""
    memory_usd: Mapping[str, float]
    """HetSev's accounting for shared GPUs: the price of the part of the memory that the replicas occupy."""
    gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """By GPU type."""
    tasks_usd: Mapping[str, float] = field(default_factory=dict)
    """By task: the price of GPUs on which only tasks run, divided by SM percent. Next to replicas they are free."""

    @property
    def total_usd(self) -> float:
        """What the used GPUs cost."""
        return sum(self.whole_gpu_usd.values()) + sum(self.tasks_usd.values())


def make_bill(pushed: Targets, gpu_types: Iterable[GpuType], until: datetime) -> Bill:
    """The bill of targets, each in force from its time to the next one's, the last one until `until`."""
    types = {gpu_type.name: gpu_type for gpu_type in gpu_types}
    entire: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = defaultdict(float)
    tasks: dict[str, float] = defaultdict(float)
    gpu_hours: dict[str, float] = defaultdict(float)
    ends = [*(at for at, _ in pushed), until][1:]
    for (begin, plan), end in zip(pushed, ends, strict=True):
        hours = (end - begin).total_seconds() / 3600.0
        known = {each.id: each for gpu in plan.gpus for each in gpu.replicas}
        for gpu in plan.gpus:
            gpu_hours[gpu.gpu_type] += hours
            replicas = gpu.replicas
            # Who spans a GPU pays for it, wherever it stands itself.
            if gpu.held_by in known:
                replicas = (known[gpu.held_by],)
            _charge(replicas, types[gpu.gpu_type], hours, entire, memory)
            # Tasks next to replicas use what is paid for already.
            if not replicas:
                _charge_tasks(gpu, types[gpu.gpu_type], hours, tasks)
    return Bill(
        whole_gpu_usd=dict(entire),
        memory_usd=dict(memory),
        gpu_hours=dict(gpu_hours),
        tasks_usd=dict(tasks),
    )


def sum_bills(bills: Sequence[Bill]) -> Bill:
    """One bill of all."""
    names = [each.name for each in fields(Bill)]
    return Bill(**{name: _sum(getattr(bill, name) for bill in bills) for name in names})


def within(pushed: Targets, begin: datetime, until: datetime) -> Targets:
    """The targets in force at some time in [begin, until), the first one from `begin` on."""
    # The target that was pushed last before `begin` is in force then.
    first = max(0, bisect_right(pushed, begin, key=lambda entry: entry[0]) - 1)
    last = bisect_left(pushed, until, key=lambda entry: entry[0])
    return [(max(at, begin), plan) for at, plan in pushed[first:last]]


def _sum(parts: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, amount in part.items():
            total[name] += amount
    return dict(total)


def _charge(
    replicas: Sequence[BoundReplica],
    gpu_type: GpuType,
    hours: float,
    entire: dict[str, float],
    memory: dict[str, float],
) -> None:
    price_usd = gpu_type.price_usd_per_hour * hours
    used_percent = sum(replica.sm_percent for replica in replicas)
    for replica in replicas:
        # By the part of what is used, so that the services together pay for all of the GPU.
        entire[replica.service] += price_usd * replica.sm_percent / used_percent
        memory[replica.service] += price_usd * replica.memory_mib / gpu_type.memory_mib


def _charge_tasks(
    gpu: BoundGpu,
    gpu_type: GpuType,
    hours: float,
    tasks: dict[str, float],
) -> None:
    """Swapped out tasks count as well: it is for them that the GPU is kept."""
    total_percent = sum(task.sm_percent for task in gpu.tasks)
    for task in gpu.tasks:
        tasks[task.name] += (
            gpu_type.price_usd_per_hour * hours * task.sm_percent / total_percent
        )


def hourly_cost_usd(plan: BoundPlan | None, gpu_types: Iterable[GpuType]) -> float:
    """Price of the used GPUs of one target, USD per hour."""
    prices = {gpu_type.name: gpu_type.price_usd_per_hour for gpu_type in gpu_types}
    return sum(prices[gpu.gpu_type] for gpu in plan.gpus) if plan else 0.0
