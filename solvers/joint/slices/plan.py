"""From a solution of the program to a Plan: each slice and each whole GPU with its part of its services' rates."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from solvers.joint.kernels.types import Reals
from solvers.joint.patterns.decode import gpu_plan, shares_of
from solvers.joint.slices.program import GpuCut, SliceChoice, SliceProgram, uncut_types
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved, replica_order
from solvers.types.slices import SliceUse

_SERVED_TOLERANCE = 1e-6
"""As the contract's: less than this part of a rate is rounding, not shortage."""
_Key = tuple[str, float, str]
"""GPU type, clock and profile of slices that are alike."""


def plan_of(program: SliceProgram, numbers: Reals) -> Plan:
    """The plan of a solution in whole numbers."""
    problem = program.problem
    capacity = np.array([_carried(own, numbers) for own in program.carriers])
    rates = np.array([each.arrival_rate_rps for each in problem.services])
    shares = shares_of(rates, capacity)
    # Alike GPUs are one entry of the plan, as those of a pattern are.
    gpus = Counter(_cut_gpus(program, numbers, shares))
    plans = [replace(gpu, count=count) for gpu, count in gpus.items()]
    plans += _uncut_gpus(program, numbers, shares)
    return Plan(
        policy="joint",
        gpus=tuple(plans),
        unserved=tuple(_unserved(program, numbers, rates - capacity)),
    )


def _carried(own: list[tuple[int, float]], numbers: Reals) -> float:
    return sum(float(numbers[at]) * rps for at, rps in own)


def _cut_gpus(
    program: SliceProgram, numbers: Reals, shares: Reals
) -> Iterator[GpuPlan]:
    waiting = _replicas(program, numbers, shares)
    for at, cut in enumerate(program.cuts):
        for _ in range(int(numbers[at])):
            # What is left for the last GPUs may be nothing: the layouts are the largest, and need not be filled.
            gpu = _filled(cut, waiting)
            if gpu.replicas:
                yield gpu


def _replicas(
    program: SliceProgram, numbers: Reals, shares: Reals
) -> defaultdict[_Key, list[ReplicaPlan]]:
    """The replicas that slices are cut for."""
    index = {each.name: at for at, each in enumerate(program.problem.services)}
    waiting: defaultdict[_Key, list[ReplicaPlan]] = defaultdict(list)
    for at, choice in enumerate(program.choices, start=len(program.cuts)):
        replica = _replica(choice, shares[index[choice.service.name]])
        key = (choice.gpu_type.name, choice.row.clock_mhz, choice.profile.name)
        waiting[key].extend([replica] * int(numbers[at]))
    return waiting


def _replica(choice: SliceChoice, share: float) -> ReplicaPlan:
    return ReplicaPlan(
        service=choice.service.name,
        sm_percent=100.0,
        batch=choice.row.batch,
        arrival_rate_rps=float(share * choice.capacity_rps),
        slice=SliceUse(profile=choice.profile.name, processes=choice.row.processes),
    )


def _filled(cut: GpuCut, waiting: defaultdict[_Key, list[ReplicaPlan]]) -> GpuPlan:
    """One GPU with what waits for its slices; those that nothing waits for stay empty."""
    replicas: list[ReplicaPlan] = []
    for profile, number in cut.layout.items():
        queue = waiting[cut.gpu_type.name, cut.clock_mhz, profile]
        replicas += [queue.pop() for _ in range(min(number, len(queue)))]
    return GpuPlan(
        gpu_type=cut.gpu_type.name,
        clock_mhz=cut.clock_mhz,
        replicas=tuple(sorted(replicas, key=replica_order)),
    )


def _uncut_gpus(
    program: SliceProgram, numbers: Reals, shares: Reals
) -> Iterator[GpuPlan]:
    if program.tables is None:
        return
    problem = replace(program.problem, gpu_types=uncut_types(program.problem))
    for at, column in enumerate(program.columns, start=program.columns_at):
        # Most patterns were only made for the relaxation.
        if numbers[at] > 0.0:
            count = int(numbers[at])
            yield gpu_plan(problem, program.tables, column, count, shares)


def _unserved(
    program: SliceProgram, numbers: Reals, short_rps: Reals
) -> Iterator[Unserved]:
    for index, service in enumerate(program.problem.services):
        own = [at for at, _ in program.carriers[index]]
        replicas = int(numbers[own].sum())
        missing = max(0, service.min_replicas - replicas)
        is_short = short_rps[index] > _SERVED_TOLERANCE * service.arrival_rate_rps
        if not (is_short or missing):
            continue
        # The reason that no GPU could change comes first.
        is_full = service.max_replicas is not None and replicas >= service.max_replicas
        yield Unserved(
            service=service.name,
            rate_rps=float(short_rps[index]) if is_short else 0.0,
            reason="slo" if not own else "replicas" if is_full else "stock",
            replicas_missing=missing,
        )
