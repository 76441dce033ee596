"""Tasks: what a decision leaves over is filled with training and offline work. A pure function beside `plan`.

Services are planned as if there were no tasks; then tasks take what is left, or give it back. Solver proposes, checker
disposes here too: what `fill` proposes is dropped, loudly, when the independent check finds a broken rule.
"""

from dataclasses import replace

import structlog

from app.control.plan import Decision
from app.control.predict import cordoned_gpus
from solvers.check import task_violations
from solvers.errors import InvalidInput
from solvers.fill.greedy import fill
from solvers.fill.problem import FillProblem
from solvers.plan import BoundGpu, BoundPlan, BoundTask
from solvers.problem import OperatingPoints, Problem
from solvers.state import ClusterState

log = structlog.get_logger(__name__)


def with_tasks(
    decision: Decision,
    problem: Problem,
    state: ClusterState,
    *,
    points: tuple[OperatingPoints, ...],
    target: BoundPlan | None,
) -> Decision:
    """The decision with tasks on what it leaves over; a new proposal where nothing but tasks changes.

    `points`: all that the store has. A refused plan stays refused.
    """
    bound = decision.bound or (target if decision.state == "kept" else None)
    if bound is None or decision.state not in ("proposed", "kept") or not (state.tasks or tasks_of(target)):
        return decision
    networks = {task.network for task in state.tasks}
    of_tasks = tuple(entry for entry in points if entry.network in networks)
    wanted = FillProblem(
        problem=problem,
        bound=bound,
        tasks=state.tasks,
        points=of_tasks,
        gpus=[gpu for gpu in state.gpus if gpu.healthy],
        cordoned=cordoned_gpus(state),
        running=target,
    )
    try:
        filled = fill(wanted)
    except InvalidInput as error:  # a plan that is kept though its service or rows have gone
        log.warning("tasks stay as they are", reason=str(error))
        return decision
    broken = task_violations(problem, filled.gpus, of_tasks)
    if broken:
        log.error("tasks are left out: the checker refused them", where=broken[0].where, detail=broken[0].detail)
        filled = replace(filled, gpus=tuple(replace(gpu, tasks=()) for gpu in filled.gpus if gpu.replicas))
    if decision.bound is not None:
        return replace(decision, bound=replace(decision.bound, gpus=filled.gpus))
    if target is None or _tasks(filled.gpus) == tasks_of(target):
        return decision
    following = replace(target, generation=target.generation + 1, parent=target.generation, gpus=filled.gpus)
    return replace(decision, state="proposed", bound=following, reason="tasks take or leave what services leave over")


def tasks_of(plan: BoundPlan | None) -> frozenset[tuple[str, BoundTask]]:
    """(GPU, task) of a plan."""
    return _tasks(plan.gpus) if plan is not None else frozenset()


def _tasks(gpus: tuple[BoundGpu, ...]) -> frozenset[tuple[str, BoundTask]]:
    return frozenset((gpu.id, task) for gpu in gpus for task in gpu.tasks)
