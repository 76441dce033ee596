"""Fill: what a decision leaves over is given to training and offline tasks. A pure function next to `plan`.

Services are planned as if there were no tasks; then tasks take what is left, or give it back. Solver proposes, checker
disposes here too: what `fill` proposes is dropped, loudly, when the independent check finds a broken rule.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from app.loop.make_problem import cordoned_gpus
from app.loop.observe import draining_gpus
from app.loop.plan import Decision, same_state
from app.loop.planning.check_fill import Severities, checker, retuned, sound
from app.loop.planning.draining import staying_gpus
from app.loop.planning.power_caps import is_limited
from app.loop.planning.reschedule import avoided_by, without_avoided
from app.loop.planning.task_points import points_of_tasks
from app.store.store import PolicySettings, Snapshot
from solvers.backfill.problem import FillProblem
from solvers.policies.registry import Fill, dispatches_jobs, fill_of
from solvers.predict.data.samples import LayerCounts
from solvers.tick.bind import named
from solvers.types.errors import InvalidInput
from solvers.types.plan import (
    BoundGpu,
    BoundPlan,
    BoundReplica,
    BoundTask,
    planned_rates_rps,
)
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import ClusterState, GpuId, Task

log = structlog.get_logger(__name__)


def tasks_to_fill(snapshot: Snapshot, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks that the tick's fill may move: jobs that have a place, as they run; those that wait are left out."""
    if not is_used(snapshot.settings):
        return tuple(tasks)
    placed = task_places(snapshot.target)
    movable = []
    for task in tasks:
        if not is_dispatched(task, snapshot.settings):
            movable.append(task)
        elif task.name in placed:
            movable.append(_as_placed(task, placed[task.name][1]))
    return tuple(movable)


def _as_placed(task: Task, placed: BoundTask) -> Task:
    """The job as the dispatcher placed it: with another network or batch than it states its iterations differ, too."""
    done = task.done_iterations * task.batch / placed.batch
    return replace(
        task,
        network=placed.network,
        batch=placed.batch,
        iterations=placed.iterations,
        done_iterations=min(done, float(placed.iterations)),
    )


def task_places(target: BoundPlan | None) -> dict[str, tuple[GpuId, BoundTask]]:
    """Each task of a plan with the GPU on which it has its place, by name."""
    return {
        task.name: (gpu.id, task)
        for gpu in (target.gpus if target else ())
        for task in gpu.tasks
    }


def is_dispatched(task: Task, settings: PolicySettings) -> bool:
    """Whether the task is a job of the dispatcher. Groups that ask for labels have services only."""
    # The dispatcher knows kinds of settings, not single jobs: one that avoids GPUs is placed by the fill meanwhile.
    if task.avoided_gpus:
        return False
    # The first group that fits wins, as for services.
    groups = (each for each in settings.groups if not each.labels)
    chosen = next(
        (each for each in groups if not each.projects or task.project in each.projects),
        None,
    )
    return task.kind == "offline" and dispatches_jobs(
        settings.policy if chosen is None else chosen.policy
    )


def is_used(settings: PolicySettings) -> bool:
    """Whether any task can be a job of the dispatcher."""
    return dispatches_jobs(settings.policy) or any(
        dispatches_jobs(group.policy) for group in settings.groups
    )


def with_tasks(
    decision: Decision,
    problem: Problem,
    state: ClusterState,
    *,
    fill: Fill,
    points: tuple[OperatingPoints, ...],
    target: BoundPlan | None,
    layers: Sequence[LayerCounts] = (),
    draining: Collection[GpuId] = (),
    promises_may_break: bool = False,
) -> Decision:
    """The decision with tasks on what it leaves over; a new proposal where nothing but tasks changes.

    `fill` is the policy's technique, which may retune replicas for their tasks' sake; `points`: all that the store has;
    `layers`: of training networks, by which training that was never profiled is judged.
    `draining`: GPUs that take nothing new, though tasks that run there stay.
    A refused plan stays refused. `promises_may_break`: as in plans, for baselines in simulation.
    """
    bound = decision.bound or (target if decision.state == "kept" else None)
    if (
        bound is None
        or decision.state not in ("proposed", "kept")
        or not (state.tasks or tasks_of(target))
    ):
        return decision

    kept = without_avoided(target, avoided_by(state.tasks))
    staying = staying_gpus(bound, problem, state, target=kept, draining=draining)
    offer = _offer(bound, problem, state, points=points, target=kept, layers=layers)
    refused: Severities = (
        ("physical",) if promises_may_break else ("physical", "promise")
    )
    left_out: dict[str, str] = {}
    check = checker(offer, refused, left_out)
    try:
        # No technique sees what stays: it would move it for a better pace or a lower rent.
        proposed = (*fill(_without(offer, staying)), *staying)
        filled = {gpu.id: gpu for gpu in map(check, proposed)}
    except InvalidInput as error:
        # Only a plan that is kept, though its service or rows have gone, is unknown to the problem.
        log.warning(
            "no task is started or swapped: the problem does not know what is running",
            reason=str(error),
        )
        return decision

    decision = replace(decision, refused_tasks=tuple(sorted(left_out.items())))
    # A plan that is kept becomes a new one, with the next number, if its tasks change.
    generation = bound.generation + (decision.bound is None)
    gpus = named(_merged(bound, sound(filled, bound, problem, refused)), generation)
    return _with_gpus(decision, gpus, generation, target)


def _offer(
    bound: BoundPlan,
    problem: Problem,
    state: ClusterState,
    *,
    points: tuple[OperatingPoints, ...],
    target: BoundPlan | None,
    layers: Sequence[LayerCounts],
) -> FillProblem:
    """What tasks may use: the GPUs of the plan, and the others that it leaves idle."""
    used = {gpu.id for gpu in bound.gpus}
    # Under a limit on watts all of them are given away: no GPU is opened for tasks alone.
    may_open = not is_limited(problem, state.nodes)
    return FillProblem(
        problem=problem,
        bound=_at_demand(bound, problem),
        tasks=state.tasks,
        points=points_of_tasks(state.tasks, points, problem, layers),
        gpus=[
            gpu for gpu in state.gpus if gpu.healthy and (gpu.id in used or may_open)
        ],
        cordoned=cordoned_gpus(state),
        running=target,
    )


def _without(offer: FillProblem, staying: Sequence[BoundGpu]) -> FillProblem:
    """The offer without GPUs whose tasks stay as they are."""
    names = {task.name for gpu in staying for task in gpu.tasks}
    gpus = {gpu.id for gpu in staying}
    return replace(
        offer,
        tasks=[task for task in offer.tasks if task.name not in names],
        gpus=[gpu for gpu in offer.gpus if gpu.id not in gpus],
    )


def _with_gpus(
    decision: Decision,
    gpus: tuple[BoundGpu, ...],
    generation: int,
    target: BoundPlan | None,
) -> Decision:
    """The decision with these GPUs: in its own plan, or in a new one where it keeps a target that they change."""
    if decision.bound is not None:
        return replace(decision, bound=replace(decision.bound, gpus=gpus))

    # Nothing is proposed that would change nothing: every target costs each node a command.
    if target is None or (
        _tasks(gpus) == tasks_of(target) and not retuned(gpus, target)
    ):
        return decision
    following = replace(
        target, generation=generation, parent=target.generation, gpus=gpus
    )
    return replace(
        decision,
        state="proposed",
        bound=following,
        reason="tasks take or leave what services leave over",
    )


def with_tasks_of(
    snapshot: Snapshot,
    decision: Decision,
    problem: Problem,
    state: ClusterState,
    *,
    layers: Sequence[LayerCounts],
    promises_may_break: bool,
) -> Decision:
    """The decision with the tasks of a snapshot, by the technique of its policy. `state`: the GPUs that may be used."""
    policy, parameters = snapshot.settings.policy, snapshot.settings.parameters
    return with_tasks(
        decision,
        problem,
        replace(state, tasks=tasks_to_fill(snapshot, state.tasks)),
        fill=fill_of(policy, parameters.get(policy, {})),
        points=snapshot.points,
        target=snapshot.target,
        layers=layers,
        draining=draining_gpus(snapshot),
        promises_may_break=promises_may_break,
    )


def _at_demand(bound: BoundPlan, problem: Problem) -> BoundPlan:
    """The plan with rates at which it serves the demand of now: one that is kept may have been made for less."""
    planned = planned_rates_rps(bound)
    factors = {
        service.name: max(1.0, service.arrival_rate_rps / planned[service.name])
        for service in problem.services
        if planned[service.name] > 0.0
    }

    def at_demand(replica: BoundReplica) -> BoundReplica:
        return replace(
            replica,
            arrival_rate_rps=replica.arrival_rate_rps
            * factors.get(replica.service, 1.0),
        )

    return replace(
        bound,
        gpus=tuple(
            replace(gpu, replicas=tuple(map(at_demand, gpu.replicas)))
            for gpu in bound.gpus
        ),
    )


def _merged(bound: BoundPlan, filled: Mapping[GpuId, BoundGpu]) -> tuple[BoundGpu, ...]:
    """The plan's own GPUs with their tasks, and those on which tasks run alone, by id.

    Rates are the plan's; so are replicas, where `filled` has not retuned them.
    """
    own = {
        gpu.id: _with_own_rates(filled.get(gpu.id, gpu), gpu)
        for gpu in bound.gpus
        if gpu.replicas
    }
    alone = {gpu.id: gpu for gpu in filled.values() if gpu.id not in own and gpu.tasks}
    return tuple(gpu for _, gpu in sorted((own | alone).items()))


def _with_own_rates(filled: BoundGpu, planned: BoundGpu) -> BoundGpu:
    replicas = (
        replace(each, arrival_rate_rps=own.arrival_rate_rps)
        for each, own in zip(filled.replicas, planned.replicas, strict=True)
    )
    return replace(
        planned,
        clock_mhz=filled.clock_mhz,
        replicas=tuple(replicas),
        tasks=filled.tasks,
    )


def wants_same(new: BoundPlan, old: BoundPlan) -> bool:
    """Whether both plans want the same of services and tasks."""
    return same_state(new, old) and tasks_of(new) == tasks_of(old)


def tasks_of(plan: BoundPlan | None) -> frozenset[tuple[str, BoundTask]]:
    """(GPU, task) of a plan."""
    return _tasks(plan.gpus) if plan is not None else frozenset()


def _tasks(gpus: tuple[BoundGpu, ...]) -> frozenset[tuple[str, BoundTask]]:
    return frozenset((gpu.id, task) for gpu in gpus for task in gpu.tasks)
