"""The rules that every plan must keep, checked from the contract's text alone.

Solver proposes, checker disposes: this file shares no code with the solvers, not even the capacity law's
interpolation. It reads a valid Problem; whatever a Plan contains, the answer is a list of violations, never an
exception (so `sum`, not `math.fsum`, which refuses to add infinities).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set

import numpy as np

from solvers.check_base import (
    CLOCK_TOLERANCE_MHZ,
    SM_PERCENT_TOLERANCE,
    broken,
    exceeds,
)
from solvers.check_llm import LlmRows, drawn_by_llm_w, llm_violations
from solvers.check_slices import can_be_cut
from solvers.types.outcome import Violation
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import CapacityLaw, OperatingPoint, Problem, ServiceDemand
from solvers.types.slices import SliceProfile, SliceUse
from solvers.types.state import GpuType

Rows = list[OperatingPoint | None]
"""The row of each replica of one GPU, None where there is none."""


def violations(problem: Problem, plan: Plan) -> tuple[Violation, ...]:
    """Every broken rule of the plan, in the plan's order; empty for a valid plan.

    Where a replica has no row (`point`), its GPU is judged by the rows of the others.
    """
    lookup = RowLookup(problem)
    found: list[Violation] = []
    for index, gpu in enumerate(plan.gpus):
        found.extend(gpu_violations(lookup, gpu, f"gpus[{index}]"))
    found.extend(llm_violations(problem, lookup.llm_rows, plan))
    found.extend(_stock(problem, plan))
    found.extend(_power_budget(lookup, plan))
    found.extend(_unserved_entries(problem, plan))
    found.extend(_service_totals(problem, plan))
    return tuple(found)


class RowLookup:
    """The problem with services and GPU types by name, and rows by batch, gathered once per (network, GPU type)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.services = {service.name: service for service in problem.services}
        self.gpu_types = {gpu_type.name: gpu_type for gpu_type in problem.gpu_types}
        self.llm_rows = LlmRows(problem)
        self._by_batch: dict[tuple[str, str], dict[int, list[OperatingPoint]]] = {}

    def labels(self, service: str) -> Set[str]:
        """The labels that keep a service apart; none of one that the problem lacks."""
        found = self.services.get(service)
        return found.anti_affinity if found else frozenset()

    def row(self, gpu: GpuPlan, replica: ReplicaPlan) -> OperatingPoint | None:
        """The operating row that a replica is planned with; None where the problem has none."""
        service = self.services.get(replica.service)
        if service is None:
            return None
        if replica.slice is not None:
            return self._slice_row(service.network, gpu, replica, replica.slice)
        key = (service.network, gpu.gpu_type)
        if key not in self._by_batch:
            self._by_batch[key] = self._gather(*key)
        for row in self._by_batch[key].get(replica.batch, ()):
            same_sm = abs(row.sm_percent - replica.sm_percent) <= SM_PERCENT_TOLERANCE
            if same_sm and abs(row.clock_mhz - gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ:
                return row
        return None

    def _slice_row(
        self, network: str, gpu: GpuPlan, replica: ReplicaPlan, use: SliceUse
    ) -> OperatingPoint | None:
        """In a slice of its own a replica feels no neighbour: all of its time is that of its row."""
        for row in self.problem.slice_rows(network, gpu.gpu_type, use.profile):
            is_same = row.batch == replica.batch and row.processes == use.processes
            if is_same and abs(row.clock_mhz - gpu.clock_mhz) <= CLOCK_TOLERANCE_MHZ:
                times = (row.execution_ms, 0.0, 0.0, row.memory_mib, row.power_w, 0.0)
                return OperatingPoint(100.0, row.batch, row.clock_mhz, *times)
        return None

    def _gather(self, network: str, gpu_type: str) -> dict[int, list[OperatingPoint]]:
        by_batch: dict[int, list[OperatingPoint]] = {}
        points = self.problem.points_of(network, gpu_type)
        for row in points.rows if points else ():
            by_batch.setdefault(row.batch, []).append(row)
        return by_batch


def gpu_violations(lookup: RowLookup, gpu: GpuPlan, where: str) -> Iterator[Violation]:
    """The rules that one GPU breaks by itself."""
    gpu_type = lookup.gpu_types.get(gpu.gpu_type)
    if gpu_type is None:
        yield broken("gpu_type", where, f"no GPU type is called {gpu.gpu_type!r}")
        return
    rows = [lookup.row(gpu, replica) for replica in gpu.replicas]
    yield from _clock(gpu_type, gpu, where)
    yield from _replica_count(lookup.problem, gpu, where)
    is_sliced = any(replica.slice for replica in gpu.replicas)
    if is_sliced:
        yield from _slices(gpu_type, gpu, rows, where)
    yield from _resources(gpu_type, gpu, rows, where, is_sliced=is_sliced)
    for index in range(len(gpu.replicas)):
        at = f"{where}.{'slices' if is_sliced else 'replicas'}[{index}]"
        yield from _replica_violations(lookup, gpu, index, rows, at)
        # Slices are too small to be kept apart, and their processes share nothing.
        if not is_sliced:
            yield from _anti_affinity(lookup, gpu.replicas[: index + 1], at)


def _anti_affinity(
    lookup: RowLookup, replicas: Sequence[ReplicaPlan], where: str
) -> Iterator[Violation]:
    """Whom the last of these replicas may not share its GPU with."""
    *others, last = (replica.service for replica in replicas)
    for name in sorted(set(others)):
        # One failed GPU must not take two replicas of one service with it.
        if name == last:
            yield broken("anti_affinity", where, f"a second replica of {last!r}")
        elif common := lookup.labels(last) & lookup.labels(name):
            words = f"{last!r} next to {name!r}; both have the label {min(common)!r}"
            yield broken("anti_affinity", where, words)


def _clock(gpu_type: GpuType, gpu: GpuPlan, where: str) -> Iterator[Violation]:
    distances_mhz = (abs(clock - gpu.clock_mhz) for clock in gpu_type.clocks_mhz)
    if not any(distance <= CLOCK_TOLERANCE_MHZ for distance in distances_mhz):
        known = ", ".join(f"{clock:g}" for clock in gpu_type.clocks_mhz)
        yield broken(
            "clock",
            where,
            f"{gpu.clock_mhz:g} MHz is not one of {gpu_type.name}'s clocks, {known}",
        )


def _replica_count(problem: Problem, gpu: GpuPlan, where: str) -> Iterator[Violation]:
    if not gpu.replicas:
        yield broken("replicas", where, "carries no replica; leave the GPU out")
    if len(gpu.replicas) > problem.max_replicas_per_gpu:
        limit = problem.max_replicas_per_gpu
        words = f"{len(gpu.replicas)} replicas on one GPU; at most {limit} may share it"
        yield broken("replicas", where, words)


def _slices(
    gpu_type: GpuType, gpu: GpuPlan, rows: Rows, where: str
) -> Iterator[Violation]:
    """That one GPU can be cut so, and that each slice has the memory of its replica."""
    profiles = {profile.name: profile for profile in gpu_type.slices}
    uses = [replica.slice for replica in gpu.replicas]
    found = [profiles.get(use.profile) if use else None for use in uses]
    for index, (profile, row) in enumerate(zip(found, rows, strict=True)):
        at = f"{where}.slices[{index}]"
        if profile is None:
            yield broken("layout", at, f"{gpu_type.name} has no such slice")
        elif row is not None and exceeds(row.memory_mib, profile.memory_mib):
            words = f"{row.memory_mib:g} MiB are needed; {profile.name} has {profile.memory_mib:g}"
            yield broken("memory", at, words)
    yield from _layout([profile for profile in found if profile is not None], where)


def _layout(wanted: Sequence[SliceProfile], where: str) -> Iterator[Violation]:
    if not can_be_cut(wanted):
        names = ", ".join(profile.name for profile in wanted)
        yield broken("layout", where, f"no GPU can be cut into {names}")


def _resources(
    gpu_type: GpuType, gpu: GpuPlan, rows: Rows, where: str, *, is_sliced: bool
) -> Iterator[Violation]:
    sm_percent = sum(replica.sm_percent for replica in gpu.replicas)
    memory_mib = sum(row.memory_mib for row in rows if row)
    power_w = gpu_type.idle_w + sum(row.power_w for row in rows if row)

    # The tolerance is absolute: SM percents are multiples of a step, so what is summed is off by rounding alone.
    # In slices they are of the slice, which no other replica has.
    has_limits = not is_sliced and gpu_type.overload is None
    if has_limits and not sm_percent <= 100.0 + SM_PERCENT_TOLERANCE:
        yield broken("sm", where, f"{sm_percent:g} % of the SMs are given away")
    if exceeds(memory_mib, gpu_type.memory_mib):
        yield broken(
            "memory",
            where,
            f"{memory_mib:g} MiB are needed; the GPU has {gpu_type.memory_mib:g}",
        )
    if exceeds(power_w, gpu_type.power_cap_w):
        yield broken(
            "power",
            where,
            f"{power_w:g} W at full load; the cap is {gpu_type.power_cap_w:g}",
        )


def _replica_violations(
    lookup: RowLookup, gpu: GpuPlan, index: int, rows: Rows, where: str
) -> Iterator[Violation]:
    replica = gpu.replicas[index]
    row = rows[index]
    service = lookup.services.get(replica.service)
    if service is None:
        yield broken(
            "point",
            where,
            f"no service is called {replica.service!r}, so no row describes it",
        )
        return

    allowed = service.allowed_gpu_types
    if allowed is not None and gpu.gpu_type not in allowed:
        yield broken("gpu_type", where, f"{service.name} may not run on {gpu.gpu_type}")
    if row is None:
        yield broken(
            "point",
            where,
            f"{service.network} on {gpu.gpu_type} has no row for {replica.sm_percent:g} % of the SMs, "
            f"batch {replica.batch}, {gpu.clock_mhz:g} MHz",
        )
        return

    rate_rps = replica.arrival_rate_rps
    capacity_rps = _capacity_rps(lookup, service, gpu, index, rows)
    if not rate_rps >= 0.0 or exceeds(rate_rps, capacity_rps):
        yield broken(
            "capacity",
            where,
            f"{rate_rps:g} rps; {service.name} can take {capacity_rps:g}",
        )


def _capacity_rps(
    lookup: RowLookup, service: ServiceDemand, gpu: GpuPlan, index: int, rows: Rows
) -> float:
    """The contract's laws, term by term; stalls by training tasks shorten what the SLO leaves."""
    problem, row, law = lookup.problem, rows[index], lookup.problem.capacity_law
    if row is None:
        return 0.0
    use = gpu.replicas[index].slice
    if use is not None:
        ratio = service.slo_ms / row.transfer_ms
        utilisation = _utilisation(law, service.percentile, row.batch, ratio)
        return use.processes * 1000.0 * row.batch / row.transfer_ms * utilisation
    points = problem.points_of(service.network, gpu.gpu_type)
    if points is None:
        return 0.0

    pressure, stall_ms = 0.0, 0.0
    for at, other in enumerate(rows):
        if other is not None and at != index:
            pressure += other.pressure
            stall_ms += other.stall_ms
    gpu_type = problem.gpu_type(gpu.gpu_type)
    launch_ms = row.launch_ms * (1.0 + _launch_growth(gpu_type, len(gpu.replicas)))
    slowdown = points.sensitivity * pressure
    # Without SM limits replicas also take turns once their pressure exceeds a whole GPU.
    if gpu_type.overload is not None:
        slowdown += gpu_type.overload * max(0.0, pressure - max(0.0, 1 - row.pressure))
    execution_ms = row.transfer_ms + launch_ms + row.run_ms * (1.0 + slowdown)
    ratio = (service.slo_ms - stall_ms) / execution_ms
    utilisation = _utilisation(law, service.percentile, row.batch, ratio)
    return 1000.0 * row.batch / execution_ms * utilisation


def _launch_growth(gpu_type: GpuType, replicas: int) -> float:
    # A replica alone waits for no other kernel launches: the linear law holds from two replicas on.
    if replicas < 2:
        return 0.0
    return gpu_type.launch_per_neighbour * replicas + gpu_type.launch_base


def _utilisation(
    law: CapacityLaw, percentile: float, batch: int, ratio: float
) -> float:
    """0 where the law says nothing of that percentile or batch: then nothing can be promised."""
    if percentile not in law.percentiles or batch not in law.batches:
        return 0.0

    of_percentile = law.max_utilisation[law.percentiles.index(percentile)]
    column = of_percentile[law.batches.index(batch)]
    # Below the first ratio the law promises nothing; without `left`, numpy would repeat the first figure.
    return float(np.interp(ratio, law.slo_ratios, column, left=0.0))


def _stock(problem: Problem, plan: Plan) -> Iterator[Violation]:
    used: Counter[str] = Counter()
    for index, gpu in enumerate(plan.gpus):
        used[gpu.gpu_type] += gpu.count
        if gpu.count < 1:
            words = f"stands for {gpu.count} GPUs; it must be at least 1"
            yield broken("stock", f"gpus[{index}]", words)
    for replica in plan.llm_replicas:
        used[replica.gpu_type] += replica.gpus
    for gpu_type in problem.gpu_types:
        if gpu_type.count is not None and used[gpu_type.name] > gpu_type.count:
            words = f"{used[gpu_type.name]} GPUs are used; there are {gpu_type.count}"
            yield broken("stock", f"gpu_type {gpu_type.name}", words)


def _power_budget(lookup: RowLookup, plan: Plan) -> Iterator[Violation]:
    budget_w = lookup.problem.power_budget_w
    total_w = sum(
        drawn_w(lookup, plan, gpu_type) for gpu_type in lookup.problem.gpu_types
    )
    if budget_w is not None and exceeds(total_w, budget_w):
        words = f"{total_w:g} W at full load; power_budget_w is {budget_w:g}"
        advice = "raise it, plan with policy joint, or set governor: power_latency"
        yield broken("power", "plan", f"{words}: {advice}")


def drawn_w(lookup: RowLookup, plan: Plan, gpu_type: GpuType) -> float:
    """Watts of all GPUs of one type at full load; replicas without a row count 0 W."""
    watts = drawn_by_llm_w(lookup.llm_rows, gpu_type, plan)
    for gpu in plan.gpus:
        if gpu.gpu_type != gpu_type.name:
            continue
        rows = (lookup.row(gpu, replica) for replica in gpu.replicas)
        watts += gpu.count * (gpu_type.idle_w + sum(row.power_w for row in rows if row))
    return watts


def _unserved_entries(problem: Problem, plan: Plan) -> Iterator[Violation]:
    names = {service.name for service in problem.services}
    names |= {service.name for service in problem.llm_services}
    for index, entry in enumerate(plan.unserved):
        where = f"unserved[{index}]"
        if entry.service not in names:
            yield broken("demand", where, f"no service is called {entry.service!r}")
        if any(other.service == entry.service for other in plan.unserved[:index]):
            yield broken("demand", where, f"a second entry for {entry.service!r}")
        if not 0.0 <= entry.rate_rps < math.inf or entry.replicas_missing < 0:
            words = (
                f"rate {entry.rate_rps:g} rps, {entry.replicas_missing} replicas; "
                f"neither may be negative or infinite"
            )
            yield broken("demand", where, words)


def _service_totals(problem: Problem, plan: Plan) -> Iterator[Violation]:
    replicas: Counter[str] = Counter()
    served_rps: defaultdict[str, float] = defaultdict(float)
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            replicas[replica.service] += gpu.count
            served_rps[replica.service] += gpu.count * replica.arrival_rate_rps

    for service in problem.services:
        unserved = [entry for entry in plan.unserved if entry.service == service.name]
        missing = sum(entry.replicas_missing for entry in unserved)
        unserved_rps = sum(entry.rate_rps for entry in unserved)
        yield from _replica_totals(service, replicas[service.name], missing)
        yield from _demand(service, served_rps[service.name], unserved_rps)


def _replica_totals(
    service: ServiceDemand, replicas: int, missing: int
) -> Iterator[Violation]:
    where = f"service {service.name}"
    if service.max_replicas is not None and replicas > service.max_replicas:
        words = f"{replicas} replicas; at most {service.max_replicas} are allowed"
        yield broken("replicas", where, words)
    if replicas + missing < service.min_replicas:
        words = f"{replicas} replicas and {missing} listed as missing, of at least {service.min_replicas}"
        yield broken("demand", where, words)


def _demand(
    service: ServiceDemand, served_rps: float, unserved_rps: float
) -> Iterator[Violation]:
    if exceeds(service.arrival_rate_rps, served_rps + unserved_rps):
        words = f"{served_rps:g} rps served and {unserved_rps:g} listed as unserved, of {service.arrival_rate_rps:g}"
        yield broken("demand", f"service {service.name}", words)
