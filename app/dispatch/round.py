"""One round of job dispatch: a snapshot and what is remembered in, the next target out; a function beside `plan`.

Of the tasks that are dispatched each that has no place in the target is a job of `solvers.types.jobs`; each that has
one is a resident of its GPU. Replicas, training and other tasks stay as they are; what they leave of a GPU is what jobs
may use, as far as the checker allows.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from app.dispatch.check import Attempt, JobFleet, refused_jobs, schedule_checked
from app.dispatch.jobs import (
    MAX_PER_GPU,
    DispatchMemory,
    job_scheduler,
    note_refused,
    queues_of,
    variants_of,
)
from app.loop.observe import silent_nodes, without_silent_nodes
from app.loop.planning.power_caps import is_limited
from app.loop.planning.task_points import points_of_tasks
from app.loop.predict import cordoned_gpus, make_problem
from app.loop.tasks import _places, is_dispatched, is_used
from app.store.store import Snapshot
from solvers.predict.data.samples import LayerCounts
from solvers.types.jobs import DispatchRules, DispatchState, JobBatch, JobGpu, Resident
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    BoundTask,
    planned_rates_rps,
)
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, Gpu, GpuId, GpuType, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """What a round decided."""

    bound: BoundPlan | None = None
    """The next target; None = nothing changes."""
    problem: Problem | None = None
    """By which it was checked."""
    batches: tuple[JobBatch, ...] = ()
    state: DispatchState
    """After it; to be taken only where the target was pushed."""
    held_until_s: float | None = None
    """When the first batch that is held open goes at the latest."""
    waiting: tuple[str, ...] = ()
    """Jobs that had no place before the round."""
    refused: tuple[tuple[str, str], ...] = ()
    """Of these, those that the checker refuses on every GPU that might take them, each with the rule."""


def dispatch(
    snapshot: Snapshot,
    memory: DispatchMemory,
    kernel_ratios: Mapping[str, float],
    layers: Sequence[LayerCounts] = (),
) -> Dispatched:
    """One round. Jobs that the checker refuses on a GPU are not deployed there, and keep nobody else from it.

    `layers`: of training networks, by which training that was never profiled is judged.
    """
    state = without_silent_nodes(snapshot.state, silent_nodes(snapshot))
    target = snapshot.target
    nothing = Dispatched(state=memory.state)
    if target is None or not is_used(snapshot.settings):
        return nothing
    placed = _alive_places(target, state)
    jobs = [task for task in state.tasks if is_dispatched(task, snapshot.settings)]
    waiting = sorted(
        (task for task in jobs if task.name not in placed),
        key=lambda task: (-task.waiting_s, task.name),
    )
    if not waiting:
        return nothing
    networks = {variant.network for task in waiting for variant in variants_of(task)}
    points = memory.planned_points.of(
        snapshot, networks | {service.network for service in state.services}
    )
    demands = tuple(
        Demand(service=name, arrival_rate_rps=rate)
        for name, rate in planned_rates_rps(target).items()
    )
    problem = make_problem(state, points, demands, snapshot.settings, target=target)
    views = _views(state, target, jobs, may_open=not is_limited(problem, state.nodes))
    memory.state = replace(
        memory.state, queues=queues_of(snapshot, memory, waiting, points, views)
    )
    newcomers = [task for task in state.tasks if task.layers and task.name in placed]
    standing = JobFleet(
        gpus=_standing(state, target, views),
        tasks={task.name: task for task in state.tasks},
        jobs={job.name for job in jobs},
        problem=problem,
        # The later ones count: what was profiled meanwhile, and not its estimate.
        points=(*points_of_tasks(newcomers, snapshot.points, problem, layers), *points),
    )
    scheduler = job_scheduler(snapshot.settings)
    rules = DispatchRules(
        ratios=scheduler.ratios_of(
            kernel_ratios, {entry.network: entry.sensitivity for entry in points}
        ),
        max_jobs=MAX_PER_GPU,
    )
    attempt = Attempt(
        scheduler=scheduler,
        state=memory.state,
        views=views,
        now_s=snapshot.at.timestamp(),
        rules=rules,
        standing=standing,
    )
    decided = schedule_checked(attempt, memory.refusals)
    refused = refused_jobs(attempt, memory.refusals)
    note_refused(memory, [name for name, _ in refused])
    return Dispatched(
        bound=_following(target, standing, decided.batches)
        if decided.batches
        else None,
        problem=problem,
        batches=decided.batches,
        state=decided.state,
        held_until_s=decided.held_until_s,
        waiting=tuple(task.name for task in waiting),
        refused=refused,
    )


def _alive_places(
    target: BoundPlan, state: ClusterState
) -> dict[str, tuple[GpuId, BoundTask]]:
    """Of GPUs that answer: on any other one a job is lost, and begins anew elsewhere."""
    alive = {gpu.id for gpu in state.gpus if gpu.healthy}
    return {name: place for name, place in _places(target).items() if place[0] in alive}


def _views(
    state: ClusterState, target: BoundPlan, jobs: Sequence[Task], *, may_open: bool
) -> list[JobGpu]:
    """The GPUs that may take jobs, with what replicas and other tasks leave of them.

    `may_open`: whether idle GPUs may; under a limit on watts all of them are given away.
    """
    cordoned, bound = cordoned_gpus(state), {gpu.id: gpu for gpu in target.gpus}
    types = {gpu_type.name: gpu_type for gpu_type in state.gpu_types}
    own_jobs, present = (
        {job.name: job for job in jobs},
        {task.name for task in state.tasks},
    )
    views = []
    for gpu in state.gpus:
        own = bound.get(gpu.id)
        if (
            not gpu.healthy
            or gpu.id in cordoned
            or gpu.gpu_type not in types
            or (own is None and not may_open)
        ):
            continue
        if own is None or own.clock_mhz == types[gpu.gpu_type].clocks_mhz[-1]:
            views.append(_view(gpu, types[gpu.gpu_type], own, own_jobs, present))
    return views


def _view(
    gpu: Gpu,
    gpu_type: GpuType,
    own: BoundGpu | None,
    jobs: Mapping[str, Task],
    present: Set[str],
) -> JobGpu:
    tasks = [
        task
        for task in (own.tasks if own else ())
        if task.is_resident and task.name in present
    ]
    others: list[BoundReplica | BoundTask] = [*(own.replicas if own else ())]
    others += [task for task in tasks if task.name not in jobs]
    return JobGpu(
        id=gpu.id,
        gpu_type=gpu.gpu_type,
        memory_mib=gpu_type.memory_mib - sum(each.memory_mib for each in others),
        sm_percent=100.0 - sum(each.sm_percent for each in others),
        residents=tuple(
            _resident(task, jobs[task.name]) for task in tasks if task.name in jobs
        ),
        has_early_end=any(
            task.kind == "offline" and task.name not in present
            for task in (own.tasks if own else ())
        ),
    )


def _resident(bound: BoundTask, task: Task) -> Resident:
    return Resident(
        name=bound.name,
        sm_percent=bound.sm_percent,
        memory_mib=bound.memory_mib,
        done_share=task.done_iterations / task.iterations,
        is_latency_critical=task.weight > 0.5,
        network=bound.network,
    )


def _standing(
    state: ClusterState, target: BoundPlan, views: Sequence[JobGpu]
) -> dict[GpuId, BoundGpu]:
    """The GPUs of the views as they stand, without tasks that are done."""
    present, bound = (
        {task.name for task in state.tasks},
        {gpu.id: gpu for gpu in target.gpus},
    )
    types, gpus = (
        {gpu_type.name: gpu_type for gpu_type in state.gpu_types},
        {gpu.id: gpu for gpu in state.gpus},
    )
    found = {}
    for view in views:
        own = bound.get(view.id) or _empty(gpus[view.id], types[view.gpu_type])
        found[view.id] = replace(
            own, tasks=tuple(task for task in own.tasks if task.name in present)
        )
    return found


def _following(
    target: BoundPlan, standing: JobFleet, batches: Sequence[JobBatch]
) -> BoundPlan:
    """The next target: with the batches, and without tasks that are done."""
    started = {member.job.name for batch in batches for member in batch.members}
    left = standing.tasks.keys() - started
    gpus = {
        gpu.id: replace(
            gpu, tasks=tuple(task for task in gpu.tasks if task.name in left)
        )
        for gpu in target.gpus
    }
    for batch in batches:
        gpus[batch.gpu] = standing.with_members(standing.gpus[batch.gpu], batch.members)
    return replace(
        target,
        generation=target.generation + 1,
        parent=target.generation,
        gpus=tuple(gpu for _, gpu in sorted(gpus.items()) if gpu.replicas or gpu.tasks),
    )


def _empty(gpu: Gpu, gpu_type: GpuType) -> BoundGpu:
    return BoundGpu(
        id=gpu.id,
        node=gpu.node,
        gpu_type=gpu.gpu_type,
        clock_mhz=gpu_type.clocks_mhz[-1],
        power_cap_w=gpu_type.power_cap_w,
        replicas=(),
    )
