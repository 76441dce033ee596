"""Policy `mudi`: one inference service per GPU, and training next to it that the service hardly notices.

    1. one_per_gpu    as many GPUs for each service as its rate needs; what runs stays, with its batch and share
    2. mudi_fill      after `bind`, with GPU identities: which GPU for which task (smallest slope), the replica's batch
                      (GP-LCB) and SM percent (CVXPY), even shares for up to three tasks, who is swapped out

A replica's batch and share are set by step 2 for the sake of the tasks with it, and kept by step 1 of the next plan.

Source: Chen et al., "Multiplexing Dynamic Deep Learning Workloads with SLO-awareness in GPU Clusters", EuroSys 2025
(slides). What each part changes is in its own file.

Good where training is to run on a fleet that serves. Limits: services never share a GPU with each other, so that small
ones cost a GPU each; batches and shares change only on GPUs with tasks.
"""

from solvers.baselines.one_per_gpu import OnePerGpu
from solvers.papers.mudi.fill import fill
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

__all__ = ["NAME", "fill", "make_plan"]

NAME = "mudi"

_POLICY = OnePerGpu(name=NAME)


def make_plan(
    problem: Problem,
    observed: Observed,
    memory: Json,
    budget: Budget,
) -> tuple[Plan, PlanReport, Json]:
    """The services' plan, its report, and since when each service has needed fewer GPUs than it has."""
    return _POLICY.make_plan(problem, observed, memory, budget)
