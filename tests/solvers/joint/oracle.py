"""The best plan of a tiny problem by trying all of them, with the checker's laws and nothing of the solver's."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour, gpu_power_w
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import Problem
from solvers.types.slices import SliceUse
from tests.solvers.instances import gpu_plan, replica_on
from tests.solvers.small_plans import capacity_rps

Reals = npt.NDArray[np.float64]


class Fleets(NamedTuple):
    """F ways to use the GPUs at hand."""

    capacity: Reals
    """(F, S) rps."""
    replicas: Reals
    """(F, S)"""
    cost: Reals
    """(F,) USD per hour."""
    watts: Reals
    """(F,)"""


class Best(NamedTuple):
    """The lexicographic optimum: most weight, then fewest replicas missing, then least cost."""

    weight: float
    missing: float
    cost: float


def best_plan(problem: Problem) -> Best:
    """The optimum over every lawful combination of GPUs; stocks must be finite."""
    services = problem.services
    fleets = Fleets(
        np.zeros((1, len(services))),
        np.zeros((1, len(services))),
        np.zeros(1),
        np.zeros(1),
    )
    for gpu_type in problem.gpu_types:
        fleets = _both(
            fleets,
            _of_type(problem, gpu_type.name, gpu_type.count or 0),
        )
    most = np.array(
        [np.inf if one.max_replicas is None else one.max_replicas for one in services]
    )
    allowed = (fleets.replicas <= most).all(axis=1)
    if problem.power_budget_w is not None:
        allowed &= fleets.watts <= problem.power_budget_w
    rates, priorities = (
        np.array([[one.arrival_rate_rps, one.priority] for one in services])
        .reshape(-1, 2)
        .T
    )
    weight = np.round(np.minimum(fleets.capacity, rates) @ priorities, 6)[allowed]
    fewest = np.array([one.min_replicas for one in services])
    missing = np.maximum(fewest - fleets.replicas, 0.0).sum(axis=1)[allowed]
    best = np.lexsort((fleets.cost[allowed], missing, -weight))[0]
    return Best(
        float(weight[best]), float(missing[best]), float(fleets.cost[allowed][best])
    )


def _of_type(problem: Problem, gpu_type: str, count: int) -> Fleets:
    """Every multiset of at most `count` patterns."""
    each = _each(problem, gpu_type)
    capacity, replicas, cost, watts = _needed(each)
    chosen = np.array(
        list(itertools.combinations_with_replacement(range(len(cost)), count)),
        dtype=int,
    )
    chosen = chosen.reshape(-1, count)
    return Fleets(
        *(values[chosen].sum(axis=1) for values in (capacity, replicas, cost, watts))
    )


def _each(problem: Problem, gpu_type: str) -> Fleets:
    """One GPU with each lawful pattern; the last entry stands for a GPU that is not used."""
    names = [service.name for service in problem.services]
    gpus = itertools.chain(_gpus(problem, gpu_type), _cut_gpus(problem, gpu_type))
    patterns = [gpu for gpu in gpus if _is_lawful(problem, gpu)]
    capacity, replicas = np.zeros((2, len(patterns) + 1, len(names)))
    cost, watts = np.zeros((2, len(patterns) + 1))
    for number, gpu in enumerate(patterns):
        for index, replica in enumerate(gpu.replicas):
            capacity[number, names.index(replica.service)] += capacity_rps(
                problem, gpu, index
            )
            replicas[number, names.index(replica.service)] += 1.0
        cost[number] = cost_usd_per_hour(problem, Plan(policy="oracle", gpus=(gpu,)))
        watts[number] = gpu_power_w(problem, gpu)
    return Fleets(capacity, replicas, cost, watts)


def _needed(each: Fleets) -> Fleets:
    """Those that no other with the same services beats or, coming first, equals in every capacity, watts and cost."""
    kept: list[int] = []
    for at in np.lexsort((-each.capacity.sum(axis=1), each.cost)):
        same = [
            other for other in kept if (each.replicas[other] == each.replicas[at]).all()
        ]
        frugal = [other for other in same if each.watts[other] <= each.watts[at]]
        if not any(
            (each.capacity[other] >= each.capacity[at]).all() for other in frugal
        ):
            kept.append(int(at))
    return Fleets(
        each.capacity[kept], each.replicas[kept], each.cost[kept], each.watts[kept]
    )


def _both(first: Fleets, second: Fleets) -> Fleets:
    pairs = [
        (one[:, None] + other[None]).reshape(-1, *one.shape[1:])
        for one, other in zip(first, second, strict=True)
    ]
    return Fleets(*pairs)


def _gpus(problem: Problem, gpu_type: str) -> Iterator[GpuPlan]:
    for clock_mhz in problem.gpu_type(gpu_type).clocks_mhz:
        choices: list[list[ReplicaPlan | None]] = []
        for service in problem.services:
            points = problem.points_of(service.network, gpu_type)
            rows = (
                [row for row in points.rows if row.clock_mhz == clock_mhz]
                if points
                else []
            )
            choices.append(
                [
                    None,
                    *(
                        _replica(service.name, row.sm_percent, row.batch)
                        for row in rows
                    ),
                ]
            )
        for mix in itertools.product(*choices):
            replicas = tuple(each for each in mix if each is not None)
            if replicas:
                yield gpu_plan(*replicas, gpu_type=gpu_type, clock_mhz=clock_mhz)


def _cut_gpus(problem: Problem, gpu_type: str) -> Iterator[GpuPlan]:
    """Each slice that there may be used or unused; what no GPU can be cut into is not lawful."""
    kind = problem.gpu_type(gpu_type)
    for clock_mhz in kind.clocks_mhz:
        choices = [
            ReplicaPlan(
                service=service.name,
                sm_percent=100.0,
                batch=row.batch,
                arrival_rate_rps=0.0,
                slice=SliceUse(profile=profile.name, processes=row.processes),
            )
            for service in problem.services
            for profile in kind.slices
            for row in problem.slice_rows(service.network, gpu_type, profile.name)
            if row.clock_mhz == clock_mhz
        ]
        for number in range(1, problem.max_replicas_per_gpu + 1):
            for replicas in itertools.combinations_with_replacement(choices, number):
                yield gpu_plan(*replicas, gpu_type=gpu_type, clock_mhz=clock_mhz)


def _replica(service: str, sm_percent: float, batch: int) -> ReplicaPlan:
    return replica_on(service, sm_percent, batch=batch)


def _is_lawful(problem: Problem, gpu: GpuPlan) -> bool:
    broken = violations(problem, Plan(policy="oracle", gpus=(gpu,)))
    return all(entry.rule in ("demand", "stock") for entry in broken)
