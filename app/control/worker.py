"""The solver worker: policies run in their own process, which is killed at its hard limit.

A native crash or an endless solve costs the worker, never the loop: the tick keeps the current plan and the next one
finds a new worker. `InlineSolver` runs the same call in the loop's own process, for simulations and tests.
"""

import asyncio
import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

from solvers.outcome import Budget, PlanReport
from solvers.plan import Plan
from solvers.problem import Problem
from solvers.state import Json, Observed

START_LIMIT_S = 60.0
"""A fresh worker imports the solvers (about 3 s); on a loaded machine this takes many times longer."""

GRACE_S = 1.0
"""A policy may overrun its own budget by this much before the worker is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One call of a policy. The budget's `elapsed` is set where it runs."""

    policy: str
    problem: Problem
    observed: Observed
    memory: Json
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What a policy returned."""

    plan: Plan
    report: PlanReport
    memory: Json


class SolverUnavailable(Exception):
    """No answer: the worker was killed at its limit, died, or the policy raised. The message says which."""


class Solver(Protocol):
    """Runs policies."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer. Raises SolverUnavailable."""
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


def run_policy(request: PlanRequest, now_s: Callable[[], float] = time.monotonic) -> PlanAnswer:
    """Call the policy here and now; its report gets the measured seconds."""
    from solvers.policies import policy

    began = now_s()
    budget = replace(request.budget, elapsed=lambda: now_s() - began)
    plan, report, memory = policy(request.policy).make_plan(request.problem, request.observed, request.memory, budget)
    return PlanAnswer(plan=plan, report=replace(report, seconds=now_s() - began), memory=memory)


class InlineSolver:
    """Runs policies in this process, on work units alone: one seed gives one result, however slow the machine is."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer. Raises SolverUnavailable."""
        try:
            return run_policy(replace(request, budget=replace(request.budget, seconds=math.inf)), now_s=lambda: 0.0)
        except Exception as error:
            raise SolverUnavailable(f"policy {request.policy} failed: {error!r}") from error

    async def close(self) -> None:
        """Nothing to end."""


class SolverWorker:
    """Runs policies in one child process at a time; a new one is started after each loss."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the worker and wait until it has imported the solvers."""
        async with self._turn:
            await self._ensure_started()

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer within its budget plus a grace period. Raises SolverUnavailable."""
        async with self._turn:
            pipe = await self._ensure_started()
            try:
                pipe.send(replace(request, budget=_portable(request.budget)))
                answer = await asyncio.to_thread(_receive, pipe, request.budget.seconds + GRACE_S)
            except (OSError, EOFError) as error:
                self._kill()
                raise SolverUnavailable("the solver worker died; a new one starts with the next tick") from error
            if answer is None:
                self._kill()
                raise SolverUnavailable(
                    f"the solver worker was killed after {request.budget.seconds + GRACE_S:.1f} s without an answer"
                )
            if isinstance(answer, PlanAnswer):
                return answer
            raise SolverUnavailable(f"policy {request.policy} failed: {answer}")

    async def close(self) -> None:
        """End the worker."""
        async with self._turn:
            self._kill()

    async def _ensure_started(self) -> Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        self._kill()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True, name="plimsoll-solver")
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        try:
            ready = await asyncio.to_thread(_receive, ours, START_LIMIT_S)
        except (OSError, EOFError) as error:
            self._kill()
            raise SolverUnavailable("the solver worker died while it started") from error
        if ready is None:
            self._kill()
            raise SolverUnavailable(f"the solver worker did not start within {START_LIMIT_S:.0f} s")
        return ours

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(timeout=5.0)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _portable(budget: Budget) -> Budget:
    """The budget without its clock, which cannot cross a process border; the worker puts its own in."""
    return Budget(seconds=budget.seconds, work=budget.work, seed=budget.seed, threads=budget.threads)


def _receive(pipe: Connection, timeout_s: float) -> object:
    """The next message, or None when none came in time. Raises EOFError when the other side is gone."""
    return pipe.recv() if pipe.poll(timeout_s) else None


def _serve(pipe: Connection) -> None:
    """The worker's main: import the solvers, say so, answer requests until the other side is gone."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from solvers.policies.warm_up import warm_up

    warm_up()
    pipe.send("ready")
    while True:
        try:
            request: PlanRequest = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: PlanAnswer | str = run_policy(request)
        except Exception as error:  # the one place where a policy's fault becomes a message to the loop
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)
