"""The solver worker: policies run in their own process, which is killed at its hard limit.

A native crash or an endless solve costs the worker, never the loop: the tick keeps the current plan and the next one
finds a new worker. `app.solver.inline` runs the same call in the loop's own process, for simulations and tests.
"""

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeVar

from app.solver.child import COMPILING, Prepare, serve
from app.solver.findings import Findings, Inquiry
from app.solver.llm_rows import MakeRows, RowsAnswer, RowsRequest, no_rows
from app.solver.shared_points import SentPoints
from solvers.types.outcome import Budget, PlanReport
from solvers.types.parameters import Setting
from solvers.types.plan import Plan
from solvers.types.policy_spec import PolicyModule
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed

START_LIMIT_S = 180.0
"""A fresh worker imports the solvers in seconds, on a busy machine in many more. Each kernel that it has to compile
begins the limit again: all of them may take longer."""
COMPILING_KERNELS = "compiling kernels (a minute, once)"
FIRST_POLICY = "joint"
"""Imported as soon as a worker begins: the default one, and what explains plans. Any other is before its first plan,
so that no process waits for, or holds in memory, what no plan asks for."""

NICENESS = 5
"""A tick may take a little longer when cores are short; an agent that waits for its acknowledgement may not."""

GRACE_S = 1.0
"""A policy may overrun its own budget by this much before the worker is killed; by twice as much after each kill."""
MAX_GRACE_S = 32.0
SIZING_LIMIT_S = 60.0
"""One service on five GPU types takes some seconds, and the first one as many more, for what is imported."""

_Answer = TypeVar("_Answer", "PlanAnswer", Findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One call of a policy. The budget's `elapsed` is set where it runs."""

    policy: str
    problem: Problem
    observed: Observed
    memory: Json
    budget: Budget
    parameters: Mapping[str, Setting] = field(default_factory=dict)
    """As the operator stated them; read where the policy runs, they replace those of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What a policy returned."""

    plan: Plan
    report: PlanReport
    memory: Json
    group_memory: Mapping[str, Json] = field(default_factory=dict)
    """By group, where groups of services were planned each by its own policy."""


class SolverUnavailable(Exception):
    """No answer: the worker was killed at its limit, died, or the policy raised. The message says which."""


class Solver(Protocol):
    """Runs policies."""

    async def start(self) -> None:
        """Get ready, so that the first plan does not wait for it. Raises SolverUnavailable."""
        ...

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer. Raises SolverUnavailable."""
        ...

    async def size_model(self, request: RowsRequest) -> RowsAnswer:
        """All ways to run a language model's service. Raises SolverUnavailable."""
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


class Inquirer(Protocol):
    """Finds out more about a plan."""

    async def inquire(self, inquiry: Inquiry) -> Findings:
        """Prices, alternatives and reliefs of a plan. Raises SolverUnavailable."""
        ...


class PreviewSolver(Solver, Inquirer, Protocol):
    """What people's questions are answered with."""


def run_policy(
    request: PlanRequest,
    now_s: Callable[[], float] = time.monotonic,
    policies: Mapping[str, PolicyModule] | None = None,
) -> PlanAnswer:
    """Call the policy here and now; its report gets the measured seconds. `policies`: as of `InlineSolver`."""
    from solvers.greedy.separate import set_apart
    from solvers.policies.beside import plan_beside
    from solvers.policies.registry import policy, refuse_slices, usable_parameters

    refuse_slices(request.policy, request.problem)
    # Before its time begins: to import its solvers may take a second.
    module = (policies or {}).get(request.policy) or policy(request.policy)
    began = now_s()
    parameters, messages = usable_parameters(request.policy, request.parameters)
    budget = replace(
        request.budget, elapsed=lambda: now_s() - began, parameters=parameters
    )
    # One place for all: most policies come from papers that know neither such services nor such rules.
    plan, report, memory = plan_beside(
        module.make_plan, request.problem, request.observed, request.memory, budget
    )
    plan, report = set_apart(request.problem, plan, report)
    messages = (*report.messages, *messages)
    report = replace(report, seconds=now_s() - began, messages=messages)
    return PlanAnswer(plan=plan, report=report, memory=memory)


def load_policy(name: str, on_compile: Callable[[], None]) -> None:
    """Import its solvers and compile its formulations, so that its first plan is as fast as the next.

    `on_compile`: called before each kernel that is compiled. Raises UnknownPolicy.
    """
    from solvers.policies.warm_up import warm_up

    warm_up(name, on_compile=on_compile)


def ignore(is_compiling: bool) -> None:
    """Ignore it where no caller asks."""


class SolverWorker:
    """Runs policies in one child process at a time; a new one is started after each loss."""

    def __init__(
        self,
        *,
        run: Callable[[PlanRequest], PlanAnswer] = run_policy,
        prepare: Prepare = load_policy,
        make_rows: MakeRows = no_rows,
        on_compiling: Callable[[bool], None] = ignore,
        start_limit_s: float = START_LIMIT_S,
        grace_s: float = GRACE_S,
        threads: int = 1,
        niceness: int = 0,
    ) -> None:
        """`prepare` runs once in each child for each policy, `run` for each request; both are functions of a module.

        `make_rows` sizes language models, there, too; a function of a module, as these are.

        `on_compiling` hears that a child begins to compile kernels, which takes a minute, and that it has ended.
        `threads`: what each plan may use, whatever its budget says; plans do not depend on it. `niceness`: the child's
        own, unless this process's is higher.
        """
        self._run = run
        self._prepare = prepare
        self._make_rows = make_rows
        self._on_compiling = on_compiling
        self._start_limit_s = start_limit_s
        self._grace_s = grace_s
        self._threads = threads
        self._niceness = niceness
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._points = SentPoints()
        self._ready: set[str] = set()
        """Policies whose solvers the worker has imported."""
        self._turn = asyncio.Lock()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._process.pid if self._process is not None else None

    def begin(self) -> None:
        """Start the worker without waiting for it: it imports the solvers while this process does something else.

        What goes wrong is found out by `start`.
        """
        with contextlib.suppress(SolverUnavailable):
            self._ensure_alive()

    async def start(self) -> None:
        """Start the worker and wait until it has imported the first solvers. Raises SolverUnavailable."""
        async with self._turn:
            await self._ensure_ready(FIRST_POLICY)

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer within its budget plus a grace period. Raises SolverUnavailable."""
        return await self._answer(request, PlanAnswer, f"policy {request.policy}")

    async def inquire(self, inquiry: Inquiry) -> Findings:
        """What is found out within the budget plus a grace period. Raises SolverUnavailable."""
        return await self._answer(inquiry, Findings, "the inquiry")

    async def size_model(self, request: RowsRequest) -> RowsAnswer:
        """All ways to run a language model's service. Raises SolverUnavailable."""
        answer = await self._ask(request, FIRST_POLICY, SIZING_LIMIT_S)
        if isinstance(answer, RowsAnswer):
            return answer
        raise SolverUnavailable(f"sizing {request.service} failed: {answer}")

    async def _answer(
        self, message: PlanRequest | Inquiry, kind: type[_Answer], what: str
    ) -> _Answer:
        # Without a clock, which cannot cross a process border; the worker puts its own in.
        budget = replace(
            message.budget, threads=self._threads, elapsed=Budget().elapsed
        )
        policy = message.policy if isinstance(message, PlanRequest) else FIRST_POLICY
        answer = await self._ask(
            replace(message, budget=budget), policy, message.budget.seconds
        )
        if isinstance(answer, kind):
            return answer
        raise SolverUnavailable(f"{what} failed: {answer}")

    async def _ask(
        self, message: PlanRequest | Inquiry | RowsRequest, policy: str, seconds: float
    ) -> object:
        """What the worker says, once it is ready for the policy, within the seconds given and the grace."""
        async with self._turn:
            pipe = await self._ensure_ready(policy)
            limit_s = seconds + self._grace_s
            try:
                return await self._within(
                    limit_s, _exchange, pipe, message, self._points
                )
            except TimeoutError:
                # Where a fleet is too large for the limit, it would never have a plan if no more were ever allowed.
                self._grace_s = min(2.0 * self._grace_s, MAX_GRACE_S)
                self.begin()
                raise SolverUnavailable(
                    f"the solver worker was killed after {limit_s:.1f} s without an answer"
                ) from None
            except (OSError, EOFError) as error:
                # Now, so that the next request does not wait until the new one has imported the solvers.
                self.begin()
                raise SolverUnavailable(
                    "the solver worker died; a new one starts"
                ) from error

    async def close(self) -> None:
        """End the worker for good, whatever it is at; a caller that waits for its answer gets SolverUnavailable."""
        self._is_closed = True
        # Before its turn, which a request may have for a minute, and a start for three: stopping would wait.
        if self._process is not None:
            self._process.kill()
        async with self._turn:
            self._kill()

    async def _ensure_ready(self, policy: str) -> Connection:
        """The pipe to a worker that has imported the policy's solvers. Raises SolverUnavailable."""
        pipe = self._ensure_alive()
        try:
            if not self._ready:
                await self._prepared(pipe, FIRST_POLICY)
            if policy not in self._ready:
                pipe.send(policy)
                await self._prepared(pipe, policy)
        except TimeoutError:
            raise SolverUnavailable(
                f"the solver worker did not start within {self._start_limit_s:.0f} s"
            ) from None
        except (OSError, EOFError) as error:
            raise SolverUnavailable(
                "the solver worker died while it started"
            ) from error
        return pipe

    async def _prepared(self, pipe: Connection, policy: str) -> None:
        """Wait until the worker has imported the policy's solvers. Raises TimeoutError, EOFError, OSError."""
        is_compiling = False
        try:
            while await self._within(self._start_limit_s, pipe.recv) == COMPILING:
                if not is_compiling:
                    is_compiling = True
                    self._on_compiling(True)
        finally:
            if is_compiling:
                self._on_compiling(False)
        self._ready.add(policy)

    def _ensure_alive(self) -> Connection:
        if (
            self._pipe is not None
            and self._process is not None
            and self._process.is_alive()
        ):
            return self._pipe
        self._kill()
        if self._is_closed:
            raise SolverUnavailable("the solver worker was ended, as its process ends")
        return self._spawn()

    def _spawn(self) -> Connection:
        # A fork would copy the loop's threads, locks and database connections in the middle of their work.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=serve,
            args=(theirs, self._prepare, self._run, self._make_rows, self._niceness),
            daemon=True,
            name="plimsoll-solver",
        )
        # Inherited: a Ctrl-C goes to both processes, and a child that still imports would end with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        except OSError as error:
            raise SolverUnavailable(f"no solver can be started: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ours.send(FIRST_POLICY)
        # Only the worker holds that end now: when it dies, recv here ends at once.
        theirs.close()
        # A fresh worker has no points of the one before, so that all of them are sent again.
        self._process, self._pipe, self._points = process, ours, SentPoints()
        self._ready = set()
        return ours

    async def _within(
        self, limit_s: float, talk: Callable[..., object], *args: object
    ) -> object:
        """What the worker says; without an answer, or when the caller is cancelled, it is killed.

        The kill also ends the thread that waits on the pipe, so that no late answer meets a later request.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.to_thread(talk, *args)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            # Reaped, so that no zombie stays; a process that hangs in the kernel is not waited for.
            self._process.join(timeout=5.0)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _exchange(
    pipe: Connection, message: PlanRequest | Inquiry | RowsRequest, points: SentPoints
) -> object:
    """Send and receive. Raises EOFError or OSError when the other side is gone."""
    if isinstance(message, RowsRequest):
        pipe.send(message)
        return pipe.recv()
    packed = points.pack(message.problem.points)
    # The points travel packed next to the problem, not within it as well.
    pipe.send((replace(message, problem=replace(message.problem, points=())), packed))
    return pipe.recv()
