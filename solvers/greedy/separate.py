"""Services with a common label set apart in the plan of a policy that knows no labels.

Of those who may not share a GPU the least important leave it, and where that makes their service fall short it gets
replicas elsewhere: on the fullest GPU that may hold one, else on an empty one. The policy's other choices stay.
"""

from dataclasses import replace

from solvers.greedy.arrange import running_carriers, top_up
from solvers.greedy.configure import configure
from solvers.greedy.report import heuristic_report
from solvers.greedy.routing import route
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem

MESSAGE = "services with a common anti_affinity label were set apart"


def set_apart(
    problem: Problem, plan: Plan, report: PlanReport
) -> tuple[Plan, PlanReport]:
    """The plan in which no services with a common label share a GPU, and its report; as they are where none do."""
    # Slices of one GPU share nothing that a label could be about.
    together = (
        [replica.service for replica in gpu.replicas if replica.slice is None]
        for gpu in plan.gpus
    )
    if all(problem.may_share(names) for names in together):
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
