"""Tasks after a decision: what is pushed, what is kept, and what is dropped."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.loop.fill import tasks_of, with_tasks
from app.loop.plan import Decision
from app.loop.planning.draining import staying_gpus
from solvers.backfill.greedy import fill
from solvers.policies.registry import Fill
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask, anonymous
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import ClusterState, GpuId, Node, NodeId, ReplicaId, Task
from tests.solvers.factories import (
    POINTS,
    PROBLEM,
    a_gpu,
    a_plan,
    a_task,
    bound_gpu,
    bound_task,
    web_points,
)

GPU, OTHER = a_gpu(0), a_gpu(1)
TARGET = a_plan(bound_gpu(GPU, rate_rps=60.0))


def a_state(*tasks: Task, is_cordoned: bool = False) -> ClusterState:
    return ClusterState(
        gpu_types=PROBLEM.gpu_types,
        nodes=(Node(id=NodeId("n1"), cordoned=is_cordoned),),
        gpus=(GPU, OTHER),
        services=(),
        tasks=tasks,
        catalogue_revision=1,
    )


def decided(bound: BoundPlan | None, state: str = "proposed") -> Decision:
    return Decision(
        state=state,  # type: ignore[arg-type]
        plan=anonymous(TARGET),
        report=PlanReport(status="greedy", cost_usd_per_hour=1.0),
        bound=bound,
        reason="nothing would change" if state == "kept" else "",
    )


def filled(
    decision: Decision,
    state: ClusterState | None = None,
    *,
    problem: Problem = PROBLEM,
    filler: Fill = fill,
    points: Sequence[OperatingPoints] = POINTS,
    target: BoundPlan | None = TARGET,
) -> Decision:
    """With the tasks of the state, where one waits unless told otherwise."""
    state = state or a_state(a_task())
    return with_tasks(
        decision, problem, state, fill=filler, points=points, target=target
    )


def test_a_new_plan_carries_tasks() -> None:
    new = replace(TARGET, generation=2, parent=1)
    decision = filled(decided(new))
    assert decision.bound is not None
    assert tasks_of(decision.bound) == {(GPU.id, bound_task(sm_percent=50.0))}
    assert (decision.bound.generation, decision.state) == (2, "proposed")


def test_a_new_task_alone_makes_a_new_target() -> None:
    decision = filled(decided(None, "kept"))
    assert decision.bound is not None
    assert (decision.state, decision.bound.generation, decision.bound.parent) == (
        "proposed",
        2,
        1,
    )
    assert anonymous(decision.bound) == anonymous(TARGET)
    again = filled(decided(None, "kept"), target=decision.bound)
    assert (again.state, again.bound) == ("kept", None)


def test_a_finished_task_leaves() -> None:
    target = a_plan(
        bound_gpu(GPU, bound_task(), rate_rps=60.0),
        bound_gpu(OTHER, bound_task("other")),
    )
    decision = filled(decided(None, "kept"), a_state(), target=target)
    assert decision.bound is not None
    assert decision.bound.gpus == TARGET.gpus


@pytest.mark.parametrize("state", ["refused", "lost"])
def test_a_plan_that_is_not_to_be_pushed_gets_no_tasks(state: str) -> None:
    decision = decided(None, state)
    assert filled(decision) is decision


def test_without_tasks_and_before_the_first_target_nothing_changes() -> None:
    for decision, target in (
        (decided(TARGET), None),
        (decided(None, "kept"), TARGET),
        (decided(None, "kept"), None),
    ):
        assert filled(decision, a_state(), target=target) is decision
    kept = decided(None, "kept")
    assert filled(kept, target=None) is kept


def test_a_kept_plan_of_services_that_are_gone_keeps_its_tasks() -> None:
    decision = decided(None, "kept")
    gone = replace(PROBLEM, services=())
    assert filled(decision, problem=gone) is decision


def test_nothing_starts_on_a_cordoned_node() -> None:
    state = a_state(a_task(waiting_s=1e6), is_cordoned=True)
    decision = filled(decided(TARGET), state, target=None)
    assert tasks_of(decision.bound) == frozenset()


def test_of_a_network_without_points_nothing_is_started() -> None:
    decision = filled(decided(TARGET), points=(), target=None)
    assert tasks_of(decision.bound) == frozenset()


def test_a_kept_plan_is_filled_for_the_demand_of_now() -> None:
    # Made for 60 rps it is asked for 74: the replica may take 13.5 ms then, so 30 % of training next to its 10 ms.
    asked = replace(
        PROBLEM, services=(replace(PROBLEM.services[0], arrival_rate_rps=74.0),)
    )
    decision = filled(decided(None, "kept"), problem=asked)
    assert decision.bound is not None
    assert tasks_of(decision.bound) == {(GPU.id, bound_task(sm_percent=30.0))}
    assert decision.bound.gpus[0].replicas == TARGET.gpus[0].replicas


def test_what_breaks_a_rule_is_left_out_and_nothing_else() -> None:
    broken = bound_gpu(OTHER, bound_task("wide", sm_percent=100.0), rate_rps=60.0)
    sound = bound_gpu(GPU, bound_task(), rate_rps=60.0)
    new = a_plan(bound_gpu(GPU, rate_rps=60.0), bound_gpu(OTHER, rate_rps=60.0))
    decision = filled(decided(new), filler=lambda _: (sound, broken), target=None)
    assert tasks_of(decision.bound) == {(GPU.id, bound_task())}
    ((name, rule),) = decision.refused_tasks
    assert (name, rule.partition(":")[0]) == ("wide", f"sm at {OTHER.id}")


def retuned(sm_percent: float) -> BoundGpu:
    """The target's GPU where the replica has another share, and so no id yet."""
    gpu = bound_gpu(GPU, bound_task(), rate_rps=60.0)
    return replace(
        gpu,
        replicas=(replace(gpu.replicas[0], id=ReplicaId(""), sm_percent=sm_percent),),
    )


def test_a_retuned_replica_is_a_new_one_with_the_planned_rate() -> None:
    problem = replace(PROBLEM, points=(narrow_points(),))
    decision = filled(
        decided(None, "kept"), problem=problem, filler=lambda _: (retuned(40.0),)
    )
    assert decision.bound is not None
    (replica,) = decision.bound.gpus[0].replicas
    assert (replica.id, replica.sm_percent, replica.arrival_rate_rps) == (
        "web-g2-2",
        40.0,
        60.0,
    )
    assert (decision.state, decision.bound.generation) == ("proposed", 2)


def test_a_replica_that_was_retuned_to_a_share_without_a_row_stays_as_planned() -> None:
    decision = filled(decided(None, "kept"), filler=lambda _: (retuned(40.0),))
    assert (decision.state, decision.bound) == ("kept", None)


def narrow_points() -> OperatingPoints:
    """`web` has rows at 40 and at 50 percent."""
    points = web_points("cheap")
    return replace(
        points, rows=(points.rows[0]._replace(sm_percent=40.0), *points.rows)
    )


def shares_of(plan: BoundPlan, state: ClusterState) -> dict[str, float]:
    """SM percent of the task by GPU."""
    decision = filled(decided(plan), state, target=None)
    assert decision.bound is not None
    return {
        gpu.id: task.sm_percent for gpu in decision.bound.gpus for task in gpu.tasks
    }


@pytest.mark.parametrize(
    ("cap_w", "shares"), [(300.0, {GPU.id: 50.0}), (180.0, {GPU.id: 30.0}), (150.0, {})]
)
def test_a_task_keeps_to_its_gpus_share_of_the_clusters_watts(
    cap_w: float, shares: dict[str, float]
) -> None:
    # Idle power and `web` take 150 W; a task draws 1 W per percent.
    capped = a_plan(replace(TARGET.gpus[0], power_cap_w=cap_w))
    state = a_state(a_task())
    limited = replace(
        state, nodes=tuple(replace(node, power_cap_w=1e4) for node in state.nodes)
    )
    assert shares_of(capped, limited) == shares


def test_under_a_limit_on_watts_no_gpu_is_opened_for_a_task_alone() -> None:
    # At 99 of its 100 rps `web` bears none next to it; in 150 s the task is done only on a GPU of its own.
    full, state = a_plan(bound_gpu(GPU, rate_rps=99.0)), a_state(a_task(due_in_s=150.0))
    assert shares_of(full, state) == {OTHER.id: 100.0}
    limited = replace(
        state, nodes=tuple(replace(node, power_cap_w=1e4) for node in state.nodes)
    )
    assert shares_of(full, limited) == {}


def alone(*tasks: BoundTask) -> BoundPlan:
    """What is in force: the replica and tasks on one GPU, which drains."""
    return a_plan(bound_gpu(GPU, *tasks, rate_rps=60.0))


def drained(*tasks: Task, target: BoundPlan, draining: frozenset[GpuId]) -> BoundPlan:
    """The services have moved to the other GPU; where its draining GPU leaves the tasks."""
    moved = replace(
        target, generation=2, parent=1, gpus=(bound_gpu(OTHER, rate_rps=60.0),)
    )
    state = a_state(*tasks, is_cordoned=False)
    gone = tuple(replace(gpu, healthy=gpu.id != GPU.id) for gpu in state.gpus)
    decision = with_tasks(
        decided(moved),
        PROBLEM,
        replace(state, gpus=gone),
        fill=fill,
        points=POINTS,
        target=target,
        draining=draining,
    )
    assert decision.bound is not None
    return decision.bound


def test_a_task_runs_on_where_it_is_while_its_node_drains() -> None:
    ran = bound_task(sm_percent=50.0)
    waits = a_task("new", waiting_s=1e6)
    plan = drained(a_task(), waits, target=alone(ran), draining=frozenset({GPU.id}))
    assert (GPU.id, ran) in tasks_of(plan)
    # Without the replicas that moved, and nothing new.
    assert [gpu.replicas for gpu in plan.gpus if gpu.id == GPU.id] == [()]
    assert {(gpu, task.name) for gpu, task in tasks_of(plan)} == {
        (GPU.id, "nightly"),
        (OTHER.id, "new"),
    }


def test_a_task_moves_at_its_node_s_deadline_with_what_it_has_done() -> None:
    came = a_task(done_iterations=400.0)
    plan = drained(came, target=alone(bound_task()), draining=frozenset())
    ((gpu, task),) = tasks_of(plan)
    assert (gpu, task.done_iterations) == (OTHER.id, 400.0)


def test_under_a_budget_of_watts_no_task_stays_on_a_draining_node() -> None:
    target = alone(bound_task())
    limited = replace(PROBLEM, power_budget_w=1e4)
    stays = {"target": target, "draining": {GPU.id}}
    moved = replace(target, gpus=(bound_gpu(OTHER, rate_rps=60.0),))
    state = a_state(a_task())
    assert staying_gpus(moved, PROBLEM, state, **stays)  # type: ignore[arg-type]
    assert not staying_gpus(moved, limited, state, **stays)  # type: ignore[arg-type]
    # Nor where the node's own watts are shared with replicas that serve there until the deadline.
    capped = replace(state, nodes=(replace(state.nodes[0], power_cap_w=1e4),))
    assert not staying_gpus(moved, PROBLEM, capped, **stays)  # type: ignore[arg-type]
