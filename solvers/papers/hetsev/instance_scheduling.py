"""Resource-efficient instance scheduling: which replicas share a GPU, in the order of the fair queues.

Source: HetSev, section 4.2 and Algorithm 1. Changed, unless the parameter `placement` says otherwise: the worst fit of
its lines 5 to 14 is one start of a placement that may be proven (`solvers.placement`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from solvers.greedy.arrange import Key
from solvers.greedy.routing import ArrangedReplica, Carrier
from solvers.papers.hetsev.fair_queues import WaitingReplica, fair_order
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.placement.problem import (
    GpuStock,
    PendingReplica,
    PlacementProblem,
    PlacementSolution,
)
from solvers.placement.solve import solve as solve_placement
from solvers.types.outcome import Budget, SolveReport
from solvers.types.plan import UnservedReason
from solvers.types.problem import OperatingPoint, Problem


class SchedulingState(NamedTuple):
    """What is known besides the problem: what has waited for GPUs since earlier plans, and how long launches take."""

    running: Mapping[Key, int]
    """Replicas that run; those beyond them wait."""
    waited_s: Mapping[str, float]
    """By service; others wait from now on."""
    launch_s: Mapping[str, float]
    """By GPU type, where a launch was seen."""


def schedule_instances(
    problem: Problem,
    counts: Mapping[Key, int],
    rows: Mapping[Key, OperatingPoint],
    state: SchedulingState,
    budget: Budget,
) -> tuple[list[Carrier], Sequence[tuple[Key, UnservedReason]], SolveReport]:
    """Carriers for all replicas, key and reason of each one that found no place, and how it was found."""
    parameters = budget.parameters_as(HetsevParameters)
    names = _named(counts)
    pending = [_pending(problem, name, key, rows[key]) for name, key in names.items()]
    solution, report = solve_placement(
        PlacementProblem(
            replicas=tuple(pending),
            gpus=_stock(problem),
            order=fair_order(
                _waiting_replicas(problem, names, rows, state),
                queues=parameters.queues,
                per_round=parameters.picks_per_round,
            ),
            is_worst_fit=parameters.placement == "as printed",
        ),
        budget,
    )
    left_out = [(names[entry.replica], entry.reason) for entry in solution.unplaced]
    return _carriers(solution, names, rows), left_out, report


def _named(counts: Mapping[Key, int]) -> dict[str, Key]:
    """A name for each replica."""
    waiting = [key for key, count in sorted(counts.items()) for _ in range(count)]
    # Zero-padded, so that names sort as numbers do.
    return {f"{number:06d}": key for number, key in enumerate(waiting)}


def _carriers(
    solution: PlacementSolution,
    names: Mapping[str, Key],
    rows: Mapping[Key, OperatingPoint],
) -> list[Carrier]:
    seats = {
        name: ArrangedReplica(service=key[0], row=rows[key])
        for name, key in names.items()
    }
    return [
        Carrier(
            gpu_type=gpu.gpu_type,
            seats=tuple(seats[name] for name in gpu.replicas),
        )
        for gpu in solution.gpus
    ]


def _waiting_replicas(
    problem: Problem,
    names: Mapping[str, Key],
    rows: Mapping[Key, OperatingPoint],
    state: SchedulingState,
) -> list[WaitingReplica]:
    """All replicas: those that run have not waited, nor have those that were not asked for before."""
    left = Counter(state.running)
    replicas = []
    for name, key in names.items():
        left[key] -= 1
        waited_s = state.waited_s.get(key[0], 0.0) if left[key] < 0 else 0.0
        replicas.append(
            WaitingReplica(
                name=name,
                network=problem.service(key[0]).network,
                memory_mib=rows[key].memory_mib,
                waiting_s=waited_s,
            )
        )
    return replicas


def _stock(problem: Problem) -> tuple[GpuStock, ...]:
    return tuple(
        GpuStock(
            gpu_type=gpu_type.name,
            count=gpu_type.count,
            price_usd_per_hour=gpu_type.price_usd_per_hour,
            sm_percent=gpu_type.max_sm_percent(problem.max_replicas_per_gpu),
            memory_mib=gpu_type.memory_mib,
            # Rows hold the watts above idle: what is left of the cap is theirs.
            power_w=gpu_type.power_cap_w - gpu_type.idle_w,
            max_replicas=problem.max_replicas_per_gpu,
        )
        for gpu_type in problem.gpu_types
    )


def _pending(
    problem: Problem,
    name: str,
    key: Key,
    row: OperatingPoint,
) -> PendingReplica:
    return PendingReplica(
        name=name,
        gpu_type=key[1],
        sm_percent=row.sm_percent,
        memory_mib=row.memory_mib,
        power_w=row.power_w,
        value=problem.service(key[0]).priority,
        # The anti-affinity labels of section 4.2, the model among them (`with_network_labels`).
        labels=tuple(sorted(problem.service(key[0]).anti_affinity)),
    )
