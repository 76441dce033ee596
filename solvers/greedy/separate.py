"""Services with a common label set apart in the plan of a policy that knows no labels.

Of those who may not share a GPU the least important leave it, and where that makes their service fall short it gets
replicas elsewhere: on the fullest GPU that may hold one, else on an empty one. The policy's other choices stay.
"""

from dataclasses import replace
from itertools import combinations

from solvers.greedy.arrange import running_carriers, top_up
from solvers.greedy.configure import configure
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import route
from solvers.types.outcome import PlanReport
from solvers.types.plan import GpuPlan, Plan
from solvers.types.problem import Problem

MESSAGE = "services with a common anti_affinity label were set apart"


def set_apart(
    problem: Problem, plan: Plan, report: PlanReport
) -> tuple[Plan, PlanReport]:
    """The plan in which no services with a common label share a GPU, and its report; as they are where none do."""
    if not problem.has_labels or not any(
        _has_rivals(problem, gpu) for gpu in plan.gpus
    ):
        return plan, report
    # What of the plan obeys all rules, as if it ran.
    lawful = running_carriers(replace(problem, current=plan))
    carriers = top_up(problem, lawful, configure(problem, keep_running=False))
    reasons = {entry.service: entry.reason for entry in plan.unserved}
    separate = route(problem, plan.policy, carriers, reasons)
    return separate, heuristic_report(
        problem,
        separate,
        method=report.method,
        messages=(*report.messages, MESSAGE),
        steps=report.steps,
    )


def _has_rivals(problem: Problem, gpu: GpuPlan) -> bool:
    services = [problem.service(replica.service) for replica in gpu.replicas]
    return not any(replica.slice for replica in gpu.replicas) and any(
        one.name != other.name and not one.may_share_with(other)
        for one, other in combinations(services, 2)
    )
