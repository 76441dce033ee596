"""Policy `gpulets_bda`: elastic partitioning as of policy `gpulets`, with the batches that InSS's decision gives it.

Source: InSS, section 6.3 ("BDA-Gpulet"), which shows what batches alone are worth.
"""

from dataclasses import replace

from solvers.baselines import gpulets
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import reasons_short, route, true_capacities
from solvers.laws.cost import cost_usd_per_hour, served_weight
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provisioned,
    ProvisioningRules,
    Share,
)
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "gpulets_bda"


def make_plan(
    problem: Problem, observed: Observed, memory: Json, budget: Budget
) -> tuple[Plan, PlanReport, Json]:
    """The plan of `gpulets` with other batches, its report; it remembers nothing."""
    current = (
        None
        if problem.current is None
        else replace(problem.current, policy=gpulets.NAME)
    )
    first, report, _ = gpulets.make_plan(
        replace(problem, current=current), observed, memory, budget
    )
    settler = BatchDecider(problem=problem, belief=ProvisioningRules())
    settled = settler.settle(
        tuple(
            Provisioned(
                gpu.gpu_type,
                tuple(
                    Share(replica.service, replica.sm_percent)
                    for replica in gpu.replicas
                ),
            )
            for gpu in first.gpus
            for _ in range(gpu.count)
        )
    )
    carriers = settled.carriers()
    able = {
        seat.service
        for carrier in running_carriers(replace(problem, current=first))
        for seat in carrier.seats
    }
    plan = route(
        problem,
        NAME,
        carriers,
        reasons_short(problem, carriers, able),
        capacities=true_capacities,
    )
    weight = (
        served_weight(problem, plan) if problem.objective == "max_goodput" else None
    )
    cost = cost_usd_per_hour(problem, plan)
    return (
        plan,
        replace(report, cost_usd_per_hour=cost, method=NAME, served_weight=weight),
        None,
    )
