"""Policy `muxflow`: each inference service on GPUs of its own, and one offline task beside it in its idle SMs.

    1. one_per_gpu    as many GPUs as each rate needs by the rule of half the SLO; what runs stays, with its share
    2. fill.matching  after `bind`: tasks are matched with GPUs by speed, under shares that the services' load sets

Source: MuxFlow (arXiv 2303.13803), as Mudi (EuroSys 2025) compares itself with it. It says nothing of how many GPUs a
service has; counting them by half the SLO is what the other baselines do (`half_slo`), and ours for this one.

Good as a baseline in simulations. Limits: it knows no SLO when it sets shares, and no queue (see `half_slo`), so that
its plans may break promises; one task per GPU.
"""

from solvers.fill.matching import fill
from solvers.outcome import Budget, PlanReport
from solvers.plan import Plan
from solvers.policies.half_slo import half_slo_rps
from solvers.policies.one_per_gpu import OnePerGpu
from solvers.problem import OperatingPoint, Problem, ServiceDemand
from solvers.state import Json, Observed

__all__ = ["NAME", "fill", "make_plan"]

NAME = "muxflow"


def make_plan(problem: Problem, observed: Observed, memory: Json, budget: Budget) -> tuple[Plan, PlanReport, Json]:
    """The services' plan, its report, and since when each service has needed fewer GPUs than it has."""
    return _POLICY.make_plan(problem, observed, memory, budget)


def _half_slo(problem: Problem, service: ServiceDemand, row: OperatingPoint) -> float:
    del problem
    return half_slo_rps(row, row.solo_ms, slo_ms=service.slo_ms)


_POLICY = OnePerGpu(name=NAME, carries=_half_slo)
