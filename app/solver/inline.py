"""Policies in the process of the caller, for simulations, tests, and commands that need no server."""

import math
from collections.abc import Mapping
from dataclasses import replace

from app.solver.child import run_inquiry
from app.solver.findings import Findings, Inquiry
from app.solver.llm_rows import MakeRows, RowsAnswer, RowsRequest, no_rows
from app.solver.process import (
    PlanAnswer,
    PlanRequest,
    SolverUnavailable,
    run_policy,
)
from solvers.types.policy_spec import PolicyModule


class InlineSolver:
    """Runs policies in this process, on work units alone: one seed gives one result, however slow the machine."""

    def __init__(
        self,
        policies: Mapping[str, PolicyModule] | None = None,
        make_rows: MakeRows = no_rows,
    ) -> None:
        """`policies`: by name, what decides in place of the registered one, as a baseline that was set up otherwise.

        `make_rows`: what sizes language models.
        """
        self.policies, self._make_rows = policies, make_rows

    async def start(self) -> None:
        """Nothing to start."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer. Raises SolverUnavailable."""
        try:
            return self._run(request)
        except Exception as error:
            raise SolverUnavailable(
                f"policy {request.policy} failed: {error!r}"
            ) from error

    def _run(self, request: PlanRequest) -> PlanAnswer:
        return run_policy(
            replace(request, budget=replace(request.budget, seconds=math.inf)),
            # Time stands still for the policy: only its work counts.
            now_s=lambda: 0.0,
            policies=self.policies,
        )

    async def inquire(self, inquiry: Inquiry) -> Findings:
        """What is found out. Raises SolverUnavailable."""
        try:
            return run_inquiry(inquiry)
        except Exception as error:
            raise SolverUnavailable(f"the inquiry failed: {error!r}") from error

    async def size_model(self, request: RowsRequest) -> RowsAnswer:
        """All ways to run a language model. Raises SolverUnavailable."""
        try:
            return self._make_rows(request)
        except Exception as error:
            raise SolverUnavailable(f"sizing failed: {error!r}") from error

    async def close(self) -> None:
        """Nothing to end."""


class TimedSolver(InlineSolver):
    """The same against the clock, for commands that need no server."""

    def _run(self, request: PlanRequest) -> PlanAnswer:
        from solvers.policies.compile_clock import clock_without_compiling

        with clock_without_compiling() as now_s:
            return run_policy(request, now_s)
