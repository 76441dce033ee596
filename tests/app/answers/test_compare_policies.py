"""Policies side by side: what a plan comes to, how the time is shared, and what becomes of a policy that fails."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from app.answers.compare_policies import (
    PolicyPlan,
    compare_policies,
    judged,
    present_problem,
)
from app.solver.inline import InlineSolver
from app.solver.process import PlanAnswer, PlanRequest, SolverUnavailable
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.app.fleets import a_service as a_planned_service
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state, windows_of
from tests.solvers.instances import a_problem, a_service, a_type

# A whole GPU carries 100 rps: 200 by its time, half of that by the law at batch 1. It costs $1 an hour.
PROBLEM = a_problem(a_service(rate_rps=150.0), types=(a_type(count=4),))
NOTHING = Observed(at_s=0.0)


def a_plan(gpus: int, rate_rps: float, *unserved: Unserved) -> Plan:
    replica = ReplicaPlan(
        service="chat", sm_percent=100.0, batch=1, arrival_rate_rps=rate_rps
    )
    gpu = GpuPlan(gpu_type="gpu", count=gpus, clock_mhz=1000.0, replicas=(replica,))
    return Plan(policy="test", gpus=(gpu,), unserved=unserved)


def an_answer(plan: Plan) -> PlanAnswer:
    return PlanAnswer(
        plan=plan,
        report=PlanReport(status="greedy", cost_usd_per_hour=7.0, seconds=0.25),
        memory=None,
    )


@dataclass
class Planning:
    """A solver that answers by policy, and keeps what it was asked."""

    plans: dict[str, Plan]
    asked: list[PlanRequest] = field(default_factory=list)

    async def start(self) -> None:
        """Always ready."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        self.asked.append(request)
        if request.policy not in self.plans:
            raise SolverUnavailable(f"policy {request.policy} failed: no weights")
        return an_answer(self.plans[request.policy])

    async def close(self) -> None:
        """Nothing to end."""


def compared(
    solver: Planning | InlineSolver,
    names: Sequence[str],
    *,
    problem: Problem = PROBLEM,
    seconds: float = 9.0,
) -> tuple[PolicyPlan, ...]:
    return asyncio.run(
        compare_policies(solver, problem, NOTHING, names, Budget(seconds=seconds))
    )


def test_a_plan_s_line_has_its_cost_gpus_replicas_and_room() -> None:
    found = judged(PROBLEM, "mine", an_answer(a_plan(3, 50.0)))
    assert (found.policy, found.solution, found.seconds) == ("mine", "greedy", 0.25)
    # Three GPUs at $1, priced again: what the policy states does not count.
    assert (
        found.cost_usd_per_hour,
        found.gpus,
        dict(found.gpus_by_type),
        found.replicas,
    ) == (3.0, 3, {"gpu": 3}, 3)
    # 50 of 100 rps: half of it is free.
    assert (found.worst_slack_percent, found.worst_service) == (
        pytest.approx(50.0),
        "chat",
    )
    assert (found.violations, found.first_violation, found.unserved_percent) == (
        0,
        "",
        0.0,
    )


def test_a_policy_that_fails_has_a_line_and_the_others_go_on() -> None:
    found = compared(Planning({"one": a_plan(2, 75.0)}), ("rl", "one"))
    assert [(each.policy, each.solution, each.reason) for each in found] == [
        ("rl", None, "policy rl failed: no weights"),
        ("one", "greedy", ""),
    ]
    assert found[0].cost_usd_per_hour is None


def test_real_policies_are_compared_on_one_problem() -> None:
    joint, hpa, lets = compared(InlineSolver(), ("joint", "k8s_hpa", "gpulets"))
    # 150 rps want two replicas of 100; `gpulets` takes one of 200 to do, which keeps no percentile.
    assert [each.cost_usd_per_hour for each in (joint, hpa, lets)] == [2.0, 2.0, 1.0]
    assert [each.violations for each in (joint, hpa, lets)] == [0, 0, 1]
    assert lets.worst_slack_percent == pytest.approx(-100.0 / 3.0)


def test_the_present_problem_is_the_next_tick_s_with_what_runs() -> None:
    running = a_bound_plan([a_replica("r1")])
    snapshot = a_snapshot(
        state=a_state(services=(a_planned_service("chat"),), silent_for_s=(0.0, 99.0)),
        windows=windows_of("chat", [40, 40, 40]),
        target=running,
    )
    problem, observed = present_problem(snapshot)
    assert problem.current is not None and len(problem.current.gpus) == 1
    # The second node is silent for longer than the limit: its GPU does not count.
    assert [gpu_type.count for gpu_type in problem.gpu_types] == [1]
    assert observed.reading("chat") is not None
