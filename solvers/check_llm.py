"""The rules of language models' replicas, checked from the contract's text alone.

Like `solvers.check`, it shares no code with the solvers: who packs replicas into nodes, and how, it does not know.
"""

from collections import Counter
from collections.abc import Iterator

from solvers.check_base import CLOCK_TOLERANCE_MHZ, broken, exceeds
from solvers.types.llm import LlmDemand, LlmReplicaPlan, LlmRow
from solvers.types.outcome import Violation
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import GpuType


class LlmRows:
    """A problem's rows by what a plan names them by."""

    def __init__(self, problem: Problem) -> None:
        self._rows: dict[tuple[str, str, int, int, int], list[LlmRow]] = {}
        for points in problem.llm_points:
            for row in points.rows:
                key = (points.service, points.gpu_type, *row[:3])
                self._rows.setdefault(key, []).append(row)

    def find(self, replica: LlmReplicaPlan) -> LlmRow | None:
        """The row that a replica is planned with; None where the problem has none."""
        key = (
            replica.service,
            replica.gpu_type,
            replica.tp,
            replica.max_num_batched_tokens,
            replica.max_num_seqs,
        )
        for row in self._rows.get(key, ()):
            if abs(row.clock_mhz - replica.clock_mhz) <= CLOCK_TOLERANCE_MHZ:
                return row
        return None


def llm_violations(problem: Problem, rows: LlmRows, plan: Plan) -> Iterator[Violation]:
    """Every broken rule of a plan's `llm_replicas`, in their order, then of GPU types and of services.

    What all GPUs of a type add up to is judged with those of other services, by `solvers.check`.
    """
    services = {service.name: service for service in problem.llm_services}
    types = {gpu_type.name: gpu_type for gpu_type in problem.gpu_types}
    for index, replica in enumerate(plan.llm_replicas):
        service, gpu_type = services.get(replica.service), types.get(replica.gpu_type)
        yield from _replica(rows, service, gpu_type, replica, f"llm_replicas[{index}]")
    for gpu_type in problem.gpu_types:
        yield from _slots(gpu_type, plan)
    for service in problem.llm_services:
        yield from _totals(service, plan)


def _replica(
    rows: LlmRows,
    service: LlmDemand | None,
    gpu_type: GpuType | None,
    replica: LlmReplicaPlan,
    where: str,
) -> Iterator[Violation]:
    if gpu_type is None:
        message = f"no GPU type is called {replica.gpu_type!r}"
        yield broken("gpu_type", where, message)
    elif service is None:
        message = f"no service of kind llm is called {replica.service!r}"
        yield broken("point", where, message)
    else:
        yield from _place(service, gpu_type, replica, where)
        yield from _load(rows, gpu_type, replica, where)


def _place(
    service: LlmDemand, gpu_type: GpuType, replica: LlmReplicaPlan, where: str
) -> Iterator[Violation]:
    """Whether the replica may be on GPUs of that type at all."""
    allowed = service.allowed_gpu_types
    if allowed is not None and gpu_type.name not in allowed:
        message = f"{service.name} may not run on {gpu_type.name}"
        yield broken("gpu_type", where, message)
    if replica.count < 1:
        message = f"stands for {replica.count} replicas; it must be at least 1"
        yield broken("stock", where, message)
    # Any other number would leave gaps in nodes that the rule of slots does not see.
    is_power = replica.tp > 0 and replica.tp & (replica.tp - 1) == 0
    if not is_power or gpu_type.gpus_per_node % replica.tp:
        message = f"{replica.tp} GPUs per replica; a node of {gpu_type.name} has {gpu_type.gpus_per_node}"
        yield broken("tp", where, message)


def _load(
    rows: LlmRows, gpu_type: GpuType, replica: LlmReplicaPlan, where: str
) -> Iterator[Violation]:
    """Whether the replica is one of the problem's rows, within its limits and those of the GPU."""
    name, rate_rps = replica.service, replica.arrival_rate_rps
    row = rows.find(replica)
    if row is None:
        kind = f"tp {replica.tp}, {replica.max_num_batched_tokens} tokens per step"
        message = f"{name} on {gpu_type.name} has no row for {kind}"
        yield broken("point", where, message)
        return
    yield from _limits(gpu_type, row, where)
    # Written so that NaN is a violation, too.
    if not rate_rps >= 0.0 or exceeds(rate_rps, row.capacity_rps):
        message = f"{rate_rps:g} rps; {name} can take {row.capacity_rps:g}"
        yield broken("capacity", where, message)


def _limits(gpu_type: GpuType, row: LlmRow, where: str) -> Iterator[Violation]:
    if all(
        abs(clock - row.clock_mhz) > CLOCK_TOLERANCE_MHZ
        for clock in gpu_type.clocks_mhz
    ):
        message = f"{row.clock_mhz:g} MHz is not one of {gpu_type.name}'s clocks"
        yield broken("clock", where, message)
    if exceeds(row.memory_mib_per_gpu, gpu_type.memory_mib):
        message = f"{row.memory_mib_per_gpu:g} MiB are needed; the GPU has {gpu_type.memory_mib:g}"
        yield broken("memory", where, message)
    power_w = gpu_type.idle_w + row.power_w_per_gpu
    if exceeds(power_w, gpu_type.power_cap_w):
        message = f"{power_w:g} W at full load; the cap is {gpu_type.power_cap_w:g}"
        yield broken("power", where, message)


def _slots(gpu_type: GpuType, plan: Plan) -> Iterator[Violation]:
    """That replicas which span GPUs find enough sets of free GPUs of one node.

    Sizes that divide each other fit into nodes exactly when, for each size, those at least as large take no more sets
    of it than there are: the largest are placed first, and leave the rest of their nodes whole.
    """
    spans = Counter[int]()
    for replica in plan.llm_replicas:
        if replica.gpu_type == gpu_type.name:
            spans[replica.tp] += replica.count
    stated = dict(gpu_type.free_slots)
    size = 2
    while size <= gpu_type.gpus_per_node:
        free = stated.get(size)
        if free is None and gpu_type.count is not None:
            free = gpu_type.count // size
        used = sum(tp // size * count for tp, count in spans.items() if tp >= size)
        if free is not None and used > free:
            message = (
                f"{used} sets of {size} GPUs of one node are used; there are {free}"
            )
            yield broken("slots", f"gpu_type {gpu_type.name}", message)
        size *= 2


def _totals(service: LlmDemand, plan: Plan) -> Iterator[Violation]:
    where = f"service {service.name}"
    own = [each for each in plan.llm_replicas if each.service == service.name]
    unserved = [each for each in plan.unserved if each.service == service.name]
    replicas = sum(each.count for each in own)
    missing = sum(each.replicas_missing for each in unserved)
    if service.max_replicas is not None and replicas > service.max_replicas:
        message = f"{replicas} replicas; at most {service.max_replicas} are allowed"
        yield broken("replicas", where, message)
    if replicas + missing < service.min_replicas:
        message = f"{replicas} replicas and {missing} listed as missing, of at least {service.min_replicas}"
        yield broken("demand", where, message)
    served_rps = sum(each.count * each.arrival_rate_rps for each in own)
    left_rps = sum(each.rate_rps for each in unserved)
    if exceeds(service.arrival_rate_rps, served_rps + left_rps):
        message = f"{served_rps:g} rps served and {left_rps:g} listed as unserved, of {service.arrival_rate_rps:g}"
        yield broken("demand", where, message)


def drawn_by_llm_w(rows: LlmRows, gpu_type: GpuType, plan: Plan) -> float:
    """Watts of one type's GPUs that language models have, at full load; replicas without a row draw nothing."""
    watts = 0.0
    for replica in plan.llm_replicas:
        row = rows.find(replica)
        if row is not None and replica.gpu_type == gpu_type.name:
            watts += replica.gpus * (gpu_type.idle_w + row.power_w_per_gpu)
    return watts
