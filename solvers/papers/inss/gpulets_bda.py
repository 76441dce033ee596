"""Policy `gpulets_bda`: elastic partitioning as of policy `gpulets`, with the batches that InSS's decision gives it.

Source: InSS, section 6.3 ("BDA-Gpulet"), which shows what batches alone are worth.
"""

from dataclasses import replace

from solvers.baselines import gpulets
from solvers.greedy.arrange import running_carriers
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import reasons_short, route
from solvers.papers.inss.provisioning import (
    BatchDecider,
    ProvisioningRules,
    provision_of_plan,
)
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "gpulets_bda"


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan of `gpulets` with other batches, its report; it remembers nothing."""
    partitioned, report, _ = gpulets.make_plan(
        _as_of_gpulets(problem), observed, memory, budget
    )
    decider = BatchDecider(problem=problem, rules=ProvisioningRules())
    carriers = decider.settle(provision_of_plan(partitioned)).carriers()
    able = {
        seat.service
        for carrier in running_carriers(replace(problem, current=partitioned))
        for seat in carrier.seats
    }
    plan = route(problem, NAME, carriers, reasons_short(problem, carriers, able))
    report = heuristic_report(
        problem,
        plan,
        method=NAME,
        status=report.status,
        seconds=report.seconds,
        messages=report.messages,
        steps=report.steps,
    )
    return plan, report, None


def _as_of_gpulets(problem: Problem) -> Problem:
    # `gpulets` keeps only a running plan that names it as its policy, and our plans have its partition.
    if problem.current is None:
        return problem
    return replace(problem, current=replace(problem.current, policy=gpulets.NAME))
