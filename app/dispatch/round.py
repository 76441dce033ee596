"""One round of job dispatch: a snapshot and what is remembered in, the next target out; a function next to `plan`.

Of the tasks that are dispatched each that has no place in the target is a job of `solvers.types.jobs`; each that has
one is a resident of its GPU. Replicas, training and other tasks stay as they are; what they leave of a GPU is what jobs
may use, as far as the checker allows.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from app.dispatch.check import (
    Attempt,
    JobFleet,
    RefusedJob,
    job_names,
    refused_jobs,
    schedule_checked,
)
from app.dispatch.jobs import (
    MAX_PER_GPU,
    DispatchMemory,
    job_scheduler,
    note_refused,
    queues_of,
    variants_of,
)
from app.loop.fill import is_dispatched, is_used, task_places
from app.loop.make_problem import cordoned_gpus, make_problem
from app.loop.observe import usable_state
from app.loop.planning.power_caps import is_limited
from app.loop.planning.task_points import points_of_tasks
from app.store.store import Snapshot
from solvers.predict.data.samples import LayerCounts
from solvers.types.jobs import DispatchRules, DispatchState, JobBatch, JobGpu, Resident
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    BoundTask,
    idle_gpu,
    planned_rates_rps,
)
from solvers.types.problem import OperatingPoints, Problem
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
    refused: tuple[RefusedJob, ...] = ()
    """Those of them that the checker refuses on every GPU that might take them."""


class _Inputs(NamedTuple):
    """What one round starts from."""

    snapshot: Snapshot
    state: ClusterState
    """Without the GPUs of silent nodes, and of those whose draining is overdue."""
    target: BoundPlan
    placed: Collection[str]
    """Names of the tasks that have a place on a GPU that answers."""
    jobs: Sequence[Task]
    """The tasks that are dispatched."""
    waiting: Sequence[Task]
    """Jobs without a place, the longest wait first."""
    layers: Sequence[LayerCounts]


def dispatch(
    snapshot: Snapshot,
    memory: DispatchMemory,
    kernel_ratios: Mapping[str, float],
    layers: Sequence[LayerCounts] = (),
) -> Dispatched:
    """One round. Jobs that the checker refuses on a GPU are not deployed there, and keep no other job from it.

    `layers`: of training networks, by which training that was never profiled is judged.
    """
    inputs = _inputs(snapshot, layers)
    if inputs is None or not inputs.jobs:
        return Dispatched(state=memory.state)
    points = _points(inputs, memory)
    memory.foresight.observe(inputs.jobs, inputs.target, points)
    if not inputs.waiting:
        return Dispatched(state=memory.state)
    attempt = _attempt(inputs, points, memory, kernel_ratios)
    decided = schedule_checked(attempt, memory.refusals)
    refused = refused_jobs(attempt, memory.refusals)
    note_refused(memory, [job.task for job in refused])
    return Dispatched(
        bound=_following(inputs.target, attempt.standing, decided.batches),
        problem=attempt.standing.problem,
        batches=decided.batches,
        state=decided.state,
        held_until_s=decided.held_until_s,
        waiting=tuple(task.name for task in inputs.waiting),
        refused=refused,
    )


def _inputs(snapshot: Snapshot, layers: Sequence[LayerCounts]) -> _Inputs | None:
    """None where no policy dispatches jobs, and as long as no target says what services leave over."""
    if snapshot.target is None or not is_used(snapshot.settings):
        return None
    # Jobs on draining nodes stay until the deadline; such nodes are cordoned and take no others.
    state = usable_state(snapshot, is_patient=True)
    placed = _alive_places(snapshot.target, state)
    jobs = [task for task in state.tasks if is_dispatched(task, snapshot.settings)]
    # What runs keeps its GPU: only jobs without a place are offered.
    waiting = sorted(
        (task for task in jobs if task.name not in placed),
        key=lambda task: (-task.waiting_s, task.name),
    )
    return _Inputs(snapshot, state, snapshot.target, placed, jobs, waiting, layers)


def _alive_places(target: BoundPlan, state: ClusterState) -> set[str]:
    """Tasks on GPUs that answer: on any other one a job is lost, and begins again elsewhere."""
    alive = {gpu.id for gpu in state.gpus if gpu.healthy}
    return {name for name, place in task_places(target).items() if place[0] in alive}


def _attempt(
    inputs: _Inputs,
    points: tuple[OperatingPoints, ...],
    memory: DispatchMemory,
    kernel_ratios: Mapping[str, float],
) -> Attempt:
    """What the scheduler is asked, and the fleet by which the checker judges its answer; the queues are remembered."""
    snapshot = inputs.snapshot
    state = inputs.state
    target = inputs.target
    # The target's own rates, not the demand of now: services are planned again by the tick alone.
    demands = tuple(
        Demand(service=name, arrival_rate_rps=rate)
        for name, rate in planned_rates_rps(target).items()
    )
    # The tick's own problem, so that the checker lets through only what the next tick will let stand.
    problem = make_problem(state, points, demands, snapshot.settings, target=target)
    views = _views(inputs, may_open=not is_limited(problem, state.nodes))
    queues = queues_of(snapshot, memory, inputs.waiting, points, views)
    memory.state = replace(memory.state, queues=queues)
    scheduler = job_scheduler(snapshot.settings)
    sensitivities = {entry.network: entry.sensitivity for entry in points}
    return Attempt(
        scheduler=scheduler,
        state=memory.state,
        views=views,
        now_s=snapshot.at.timestamp(),
        rules=DispatchRules(
            ratios=scheduler.ratios_of(kernel_ratios, sensitivities),
            max_jobs=MAX_PER_GPU,
            prices_usd_per_hour={
                each.name: each.price_usd_per_hour for each in state.gpu_types
            },
        ),
        standing=_fleet(inputs, problem, points, views),
    )


def _points(inputs: _Inputs, memory: DispatchMemory) -> tuple[OperatingPoints, ...]:
    """The snapshot's points, with planned times for every network that runs or could."""
    networks = {
        variant.network for task in inputs.jobs for variant in variants_of(task)
    }
    networks |= {service.network for service in inputs.state.services}
    return memory.planned_points.of(inputs.snapshot, networks)


def _fleet(
    inputs: _Inputs,
    problem: Problem,
    points: tuple[OperatingPoints, ...],
    views: Sequence[JobGpu],
) -> JobFleet:
    training = [
        task
        for task in inputs.state.tasks
        if task.layers and task.name in inputs.placed
    ]
    estimated = points_of_tasks(
        training, inputs.snapshot.points, problem, inputs.layers
    )
    return JobFleet(
        gpus=_standing(inputs, views),
        tasks={task.name: task for task in inputs.state.tasks},
        jobs={job.name for job in inputs.jobs},
        problem=problem,
        # The later ones count: what was profiled meanwhile, and not its estimate.
        points=(*estimated, *points),
    )


def _views(inputs: _Inputs, *, may_open: bool) -> list[JobGpu]:
    """The GPUs that may take jobs, with what replicas and other tasks leave of them.

    `may_open`: whether idle GPUs may; under a limit on watts all of them are given away.
    """
    cordoned = cordoned_gpus(inputs.state)
    bound = {gpu.id: gpu for gpu in inputs.target.gpus}
    types = {gpu_type.name: gpu_type for gpu_type in inputs.state.gpu_types}
    jobs = {job.name: job for job in inputs.jobs}
    present = {task.name for task in inputs.state.tasks}
    views = []
    for gpu in inputs.state.gpus:
        own = bound.get(gpu.id)
        gpu_type = types.get(gpu.gpu_type)
        is_usable = gpu.healthy and gpu.id not in cordoned
        is_usable = is_usable and not (own and own.is_models_own)
        if not is_usable or gpu_type is None or (own is None and not may_open):
            continue
        # Jobs have settings at the highest clock alone; a GPU that a plan slows down for its replicas takes none.
        if own is None or own.clock_mhz == gpu_type.clocks_mhz[-1]:
            views.append(_view(gpu, gpu_type, own, jobs, present))
    return views


def _view(
    gpu: Gpu,
    gpu_type: GpuType,
    own: BoundGpu | None,
    jobs: Mapping[str, Task],
    present: Set[str],
) -> JobGpu:
    bound = own.tasks if own else ()
    # A task that was swapped out holds nothing of the GPU, and one that is done has left it.
    tasks = [task for task in bound if task.is_resident and task.name in present]
    others: list[BoundReplica | BoundTask] = [*(own.replicas if own else ())]
    others += [task for task in tasks if task.name not in jobs]
    residents = [
        _resident(task, jobs[task.name]) for task in tasks if task.name in jobs
    ]
    is_ending = any(
        task.kind == "offline" and task.name not in present for task in bound
    )
    return JobGpu(
        id=gpu.id,
        gpu_type=gpu.gpu_type,
        memory_mib=gpu_type.memory_mib - sum(each.memory_mib for each in others),
        sm_percent=100.0 - sum(each.sm_percent for each in others),
        residents=tuple(residents),
        has_early_end=is_ending,
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


def _standing(inputs: _Inputs, views: Sequence[JobGpu]) -> dict[GpuId, BoundGpu]:
    """The GPUs of the views as they stand, without tasks that are done."""
    present = {task.name for task in inputs.state.tasks}
    bound = {gpu.id: gpu for gpu in inputs.target.gpus}
    types = {gpu_type.name: gpu_type for gpu_type in inputs.state.gpu_types}
    gpus = {gpu.id: gpu for gpu in inputs.state.gpus}
    found = {}
    for view in views:
        own = bound.get(view.id) or idle_gpu(gpus[view.id], types[view.gpu_type])
        found[view.id] = _with_tasks_of(own, present)
    return found


def _with_tasks_of(gpu: BoundGpu, names: Set[str]) -> BoundGpu:
    return replace(gpu, tasks=tuple(task for task in gpu.tasks if task.name in names))


def _following(
    target: BoundPlan, standing: JobFleet, batches: Sequence[JobBatch]
) -> BoundPlan | None:
    """The next target: with the batches, and without tasks that are done; None where there is nothing to start."""
    if not batches:
        return None
    left = standing.tasks.keys() - job_names(batches)
    gpus = {gpu.id: _with_tasks_of(gpu, left) for gpu in target.gpus}
    for batch in batches:
        gpus[batch.gpu] = standing.with_members(standing.gpus[batch.gpu], batch.members)
    return replace(
        target,
        generation=target.generation + 1,
        parent=target.generation,
        # A GPU with nothing on it has no place in a plan: it is idle, and is not paid for.
        gpus=tuple(gpu for _, gpu in sorted(gpus.items()) if not gpu.is_empty),
    )
