"""Jobs of the dispatcher: which tasks they are, and with which settings they queue.

Who is dispatched: offline tasks whose policy, that of their project's group or the cluster's, is `oltunes`. A job's
settings are found when it comes, from the operating points in force, and anew when these change.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.control.predict import PlannedPoints
from app.control.store import PolicySettings, Snapshot
from solvers.dispatch.job import GpuView, Job, Setting, fleet_load
from solvers.dispatch.queues import Queues, enqueue
from solvers.dispatch.schedule import DispatchState
from solvers.dispatch.tuning_score import Board, Option, Wish, best_types, mean_latency_s, tune
from solvers.policies.oltunes import NAME
from solvers.problem import OperatingPoints
from solvers.state import GpuType, Task, Variant

MOST_PER_GPU = 3
"""Jobs of a GPU: what `solvers.fill` lets stand there at the next tick."""
SOLE = 1.0
"""Accuracy of a network without variants: compared with nothing."""


@dataclass(slots=True, kw_only=True)
class DispatchMemory:
    """What the dispatcher remembers between rounds; a new leader begins without."""

    state: DispatchState = field(default_factory=lambda: DispatchState(most_jobs=MOST_PER_GPU))
    """Without queues: who waits is in the store."""
    failures: dict[str, int] = field(default_factory=dict)
    """Deployments that failed, by job."""
    planned_points: PlannedPoints = field(default_factory=PlannedPoints)
    settings: dict[str, tuple[Setting, ...]] = field(default_factory=dict)
    """Of waiting jobs, by name, as they were found when the job came."""
    made_from: tuple[OperatingPoints, ...] = ()
    """The points that they follow from."""


def is_dispatched(task: Task, settings: PolicySettings) -> bool:
    """Whether the task is a job of the dispatcher. Groups that ask for labels have services only."""
    groups = (each for each in settings.groups if not each.labels)
    chosen = next((each for each in groups if not each.projects or task.project in each.projects), None)
    return task.kind == "offline" and (settings.policy if chosen is None else chosen.policy) == NAME


def is_used(settings: PolicySettings) -> bool:
    """Whether any task can be a job of the dispatcher."""
    return NAME in (settings.policy, *(group.policy for group in settings.groups))


def variants_of(task: Task) -> tuple[Variant, ...]:
    """Networks that may do the task and are accurate enough."""
    if not task.variants:
        return (Variant(network=task.network, accuracy=SOLE),)
    return tuple(variant for variant in task.variants if variant.accuracy >= task.accuracy_floor)


def queues_of(
    snapshot: Snapshot,
    memory: DispatchMemory,
    waiting: Sequence[Task],
    points: tuple[OperatingPoints, ...],
    views: Sequence[GpuView],
) -> Queues:
    """The waiting tasks as jobs; those that no GPU type of the fleet can run wait outside."""
    if len(points) != len(memory.made_from) or any(a is not b for a, b in zip(points, memory.made_from, strict=True)):
        memory.settings, memory.made_from = {}, points
    types = {gpu_type.name: gpu_type for gpu_type in snapshot.state.gpu_types}
    fleet = {gpu.gpu_type for gpu in snapshot.state.gpus}
    boards = {name: Board(types[name].memory_mib, types[name].power_cap_w) for name in sorted(fleet & types.keys())}
    known = {task.name for task in waiting}
    memory.settings = {name: own for name, own in memory.settings.items() if name in known}
    memory.failures = {name: count for name, count in memory.failures.items() if name in known}
    load = fleet_load(views, len(waiting))
    jobs = []
    for task in waiting:
        if task.name not in memory.settings:
            left_s = math.inf if task.due_in_s is None else task.due_in_s
            wish = Wish(weight=task.weight, inputs=_inputs(task), left_s=left_s, load=load)
            memory.settings[task.name] = tune(list(_options(task, points, types)), boards, wish)
        if memory.settings[task.name]:
            jobs.append(_job(task, memory, snapshot.at.timestamp()))
    return enqueue(Queues(), jobs)


def _job(task: Task, memory: DispatchMemory, now_s: float) -> Job:
    settings = memory.settings[task.name]
    types = best_types(settings)
    return Job(
        name=task.name,
        weight=task.weight,
        inputs=_inputs(task),
        queued_s=now_s - task.waiting_s,
        deadline_s=math.inf if task.due_in_s is None else now_s + task.due_in_s,
        variants=task.variants,
        settings=settings,
        best_types=types,
        mean_latency_s=mean_latency_s(settings, types),
        failures=memory.failures.get(task.name, 0),
    )


def _inputs(task: Task) -> int:
    """That are still to be done."""
    return max(1, math.ceil(task.batch * (task.iterations - task.done_iterations)))


def _options(task: Task, points: Sequence[OperatingPoints], types: Mapping[str, GpuType]) -> Iterator[Option]:
    """Operating points of its variants at the highest clocks: at any other one nobody dispatches."""
    accuracy = {variant.network: variant.accuracy for variant in variants_of(task)}
    for entry in points:
        if entry.network not in accuracy or entry.gpu_type not in types:
            continue
        for row in entry.rows:
            if row.clock_mhz == types[entry.gpu_type].clocks_mhz[-1]:
                yield Option(
                    network=entry.network,
                    accuracy=accuracy[entry.network],
                    gpu_type=entry.gpu_type,
                    sm_percent=row.sm_percent,
                    batch=row.batch,
                    clock_mhz=row.clock_mhz,
                    memory_mib=row.memory_mib,
                    iteration_ms=row.solo_ms,
                )
