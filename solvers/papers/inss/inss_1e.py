"""Policy `inss_1e`: InSS under its constraint 1e: each network runs on one GPU.

Source: InSS, sections 3.3 and 6.3; all else is policy `inss`.
"""

from solvers.papers.inss.policy import InssVariant, plan_as
from solvers.papers.inss.provisioning import ProvisioningRules
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

NAME = "inss_1e"
_VARIANT = InssVariant(name=NAME, rules=ProvisioningRules(one_gpu_each=True))


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The plan, its report and the provision, as of policy `inss`."""
    return plan_as(_VARIANT, problem, observed, memory, budget)
