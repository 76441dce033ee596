"""The controller: its loop, dispatcher and slow jobs, wired and run in one process."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeAlias

import structlog
import uvloop
from prometheus_client import CollectorRegistry, generate_latest

from agents.base.exposition import metrics_port
from app.api.operations.event_views import event_bytes
from app.base.clock import ControlClock
from app.base.errors import PlimsollError
from app.base.logs import configure_logs
from app.base.settings import Settings
from app.catalogue.catalogue import load_layers, load_training_layers
from app.catalogue.make_rows import make_rows
from app.db.base.engine import make_engine
from app.db.base.leader import Leader, session_name
from app.db.base.listen import WAKE_CHANNEL, Listener
from app.db.base.transaction import Engine, transaction, translated
from app.db.decisions import policies
from app.db.maintenance import load_time, maintain
from app.db.postgres_store import PostgresStore
from app.db.predictions.forecasts import PostgresForecasts
from app.db.predictions.refits import Attempts, refit_waiting
from app.db.workloads.budgets import record_spent, step_degraded
from app.db.workloads.task_progress import note_starved
from app.dispatch.dispatcher import JobDispatcher, run_dispatcher
from app.dispatch.kernel_classes import load_kernel_ratios
from app.learn.choose_forecasts import CHOOSE_PERIOD_S, choose_forecasts
from app.learn.corrections import PERIOD_S as LEARNING_PERIOD_S
from app.learn.corrections import OnlineLearner, learn_once
from app.learn.refit import LIMIT_S as REFIT_LIMIT_S
from app.learn.refit import PERIOD_S as REFIT_PERIOD_S
from app.learn.refit import run_in_process, run_refit
from app.loop.budgets import LOOK_PERIOD_S as BUDGET_LOOK_S
from app.loop.controller import Controller, SlowJob
from app.loop.events import LOOK_PERIOD_S as STARVED_LOOK_S
from app.loop.fill import is_used
from app.loop.tick import Loop, TickOutcome
from app.serve.child_process import send, stop_when_closed
from app.serve.loop_metrics import LoopMetrics
from app.serve.plane import (
    Plane,
    make_plane,
    on_stop_signals,
    settle_memory,
)
from app.serve.tracing import make_tracer
from app.serve.webhooks import Sender, sending_job
from app.solver.process import COMPILING_KERNELS, NICENESS, SolverWorker, ignore
from app.store.store import Store

log = structlog.get_logger(__name__)

CONTROLLER_CONNECTIONS = 4
"""Its own pool: a flood of observations must not keep the tick from the database. The lead holds one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverCompiles:
    """What goes up the pipe when the solver begins and ends to compile kernels."""

    is_compiling: bool


Watcher: TypeAlias = Callable[[TickOutcome], None]
"""Hears of every tick."""


@asynccontextmanager
async def running_controller(
    plane: Plane,
    *,
    solver: SolverWorker | None = None,
    on_tick: Watcher | None = None,
    on_compiling: Callable[[bool], None] = ignore,
) -> AsyncIterator[tuple[Controller, "asyncio.Task[None]"]]:
    """A controller with its task: leads when it can, and ticks. The end gives the lead back at once.

    `solver`: one that has begun already; ended with the controller. `on_compiling`: as of `SolverWorker`, of the one
    that is started here otherwise.
    """
    async with AsyncExitStack() as stack:
        solver = solver or SolverWorker(
            make_rows=make_rows,
            threads=plane.settings.solver_threads,
            on_compiling=on_compiling,
        )
        stack.push_async_callback(solver.close)
        solver.begin()
        # The holder names machine and process: a person who looks for the leader finds it.
        holder = f"{socket.gethostname()}:{os.getpid()}"
        engine = make_engine(
            plane.url,
            pool_size=CONTROLLER_CONNECTIONS,
            application=session_name(holder),
        )
        tracer = make_tracer(os.environ)
        # The stack ends in the opposite order: what uses the database ends before its connections do.
        if tracer is not None:
            stack.push_async_callback(asyncio.to_thread, tracer.close)
        stack.push_async_callback(engine.dispose)
        leader = Leader(engine, holder)
        loop = Loop(
            store=PostgresStore(engine, epoch=lambda: leader.epoch),
            solver=solver,
            clock=plane.clock,
            layers=load_training_layers(),
        )
        watchers: list[Watcher] = [LoopMetrics(plane.registry).note]
        watchers += [tracer.note] if tracer is not None else []
        watchers += [on_tick] if on_tick is not None else []
        controller = _make_controller(plane, engine, loop, leader, watchers)
        task = asyncio.create_task(controller.run(), name="plimsoll-controller")
        stack.push_async_callback(_cancelled, task)
        jobs = asyncio.create_task(
            _dispatch_jobs(plane, engine, loop, controller), name="plimsoll-dispatch"
        )
        stack.push_async_callback(_cancelled, jobs)
        yield controller, task


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _make_controller(
    plane: Plane,
    engine: Engine,
    loop: Loop,
    leader: Leader,
    watchers: Sequence[Watcher],
) -> Controller:
    def ticked(outcome: TickOutcome) -> None:
        for watch in watchers:
            watch(outcome)

    async def period_s() -> float:
        async with transaction(engine) as connection:
            return (await policies.load_current(connection)).period_s

    return Controller(
        loop,
        leader,
        Listener(plane.url, WAKE_CHANNEL),
        period_s=period_s,
        maintain=partial(maintain_plane, plane, engine),
        on_tick=ticked,
        slow_jobs=(
            *_budget_jobs(engine, plane.clock),
            *_learning_jobs(engine, loop.store, plane.clock),
            sending_job(_sender(engine, plane)),
        ),
    )


async def maintain_plane(plane: Plane, engine: Engine) -> None:
    """What the leader does by the hour, by the database's time and the settings."""
    with translated():
        # A clock that a demo runs faster is the only one that knows its time.
        is_real = plane.clock.speed == 1.0
        now = await load_time(engine) if is_real else plane.clock.now()
        await maintain(engine, now, plane.retention)


async def _dispatch_jobs(
    plane: Plane, engine: Engine, loop: Loop, controller: Controller
) -> None:
    """Rounds of the dispatcher of jobs, while this process is the leader and some policy dispatches."""

    async def is_dispatching() -> bool:
        async with transaction(engine) as connection:
            return controller.leads and is_used(await policies.load_current(connection))

    dispatcher = JobDispatcher(
        store=loop.store,
        clock=plane.clock,
        # The loop's own lock: tick and dispatcher take turns, so that neither makes the other lose its push.
        turn=loop.turn,
        kernel_ratios=load_kernel_ratios(),
        layers=loop.layers,
    )
    # A listener of its own: the tick and the dispatcher must each hear every wake-up.
    wakeups = Listener(plane.url, WAKE_CHANNEL)
    await run_dispatcher(dispatcher, wakeups, is_dispatching)


def _budget_jobs(engine: Engine, clock: ControlClock) -> tuple[SlowJob, ...]:
    """What the leader writes about budgets and about tasks that wait for long."""

    async def record_starved() -> None:
        async with transaction(engine) as connection:
            await note_starved(connection, clock.now())

    async def record_budgets() -> None:
        async with transaction(engine) as connection:
            await record_spent(connection, clock.now())
            await step_degraded(connection, clock.now())

    return (
        SlowJob(name="budgets", period_s=BUDGET_LOOK_S, run=record_budgets),
        SlowJob(name="waiting tasks", period_s=STARVED_LOOK_S, run=record_starved),
    )


def _learning_jobs(
    engine: Engine, store: Store, clock: ControlClock
) -> tuple[SlowJob, ...]:
    """What the leader learns next to its ticks, which only apply it."""
    forecasts = PostgresForecasts(engine)
    learner = OnlineLearner(store=store, clock=clock)
    attempts = Attempts()

    async def choose() -> None:
        with translated():
            await choose_forecasts(forecasts, clock.now())

    async def learn() -> None:
        with translated():
            await learn_once(learner)

    async def refit() -> None:
        run = partial(run_in_process, run_refit, limit_s=REFIT_LIMIT_S)
        await refit_waiting(
            engine, run, layers=load_layers(), now=clock.now, attempts=attempts
        )

    return (
        SlowJob(name="forecasts", period_s=CHOOSE_PERIOD_S, run=choose),
        SlowJob(name="learn", period_s=LEARNING_PERIOD_S, run=learn),
        SlowJob(name="refit", period_s=REFIT_PERIOD_S, run=refit),
    )


def _sender(engine: Engine, plane: Plane) -> Sender:
    return Sender(
        engine=engine,
        clock=plane.clock,
        body=event_bytes,
        may_be_private=plane.settings.webhook_private,
    )


async def run_controller(plane: Plane, solver: SolverWorker) -> None:
    """The controller alone, until SIGTERM or SIGINT. Raises PlimsollError where its metrics' port is taken."""
    async with controller_metrics(plane.settings, plane.registry):
        await _run_controller(plane, solver=solver)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerBody:
    """What the controller's process runs."""

    settings: Settings
    url: str
    clock: ControlClock
    """The API's; the machine's monotonic clock behind it is the same in every process."""

    def __call__(self, pipe: Connection) -> None:
        configure_logs(self.settings)
        uvloop.run(
            _run_controller(make_plane(self.settings, self.url, self.clock), pipe)
        )


async def _run_controller(
    plane: Plane,
    pipe: Connection | None = None,
    *,
    solver: SolverWorker | None = None,
) -> None:
    """Until a signal, or until the other side of the pipe is gone, which hears of every tick."""
    os.nice(NICENESS)
    settle_memory()
    asked = asyncio.Event()
    on_stop_signals(asked.set)

    def tell_compiling(is_compiling: bool) -> None:
        if is_compiling:
            log.info(COMPILING_KERNELS)
        if pipe is not None:
            send(pipe, SolverCompiles(is_compiling=is_compiling))

    if pipe is not None:
        stop_when_closed(pipe, asked.set)
    async with running_controller(
        plane,
        solver=solver,
        on_tick=None if pipe is None else partial(send, pipe),
        on_compiling=tell_compiling,
    ) as (_, task):
        stopping = asyncio.create_task(asked.wait(), name="plimsoll-stop")
        await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()


@asynccontextmanager
async def controller_metrics(
    settings: Settings, registry: CollectorRegistry
) -> AsyncIterator[None]:
    """Answers `GET /metrics` where the settings say, if they do. Raises PlimsollError where the port is taken."""
    host = settings.controller_metrics_host
    port = settings.controller_metrics_port
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                metrics_port(host, port, partial(generate_latest, registry))
            )
        except OSError as error:
            raise PlimsollError(
                f"the controller's metrics cannot be at {host}, port {port}: {error.strerror or error}; "
                "choose another port by PLIMSOLL_CONTROLLER_METRICS_PORT (0: none)"
            ) from error
        yield
