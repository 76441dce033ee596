"""The only place where the control plane's parts are wired together: API, controller, and both in one process."""

import asyncio
import atexit
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from app.api.application import make_api
from app.api.commands import CommandBoard
from app.api.metrics import ApiMetrics
from app.api.parts import Check, Parts
from app.api.routes.events import event_bytes
from app.catalogue import load_layers, load_training_layers
from app.catalogue.kernel_classes import load_kernel_ratios
from app.clock import Clock, WallClock
from app.control.budgets import LOOK_PERIOD_S as BUDGET_LOOK_S
from app.control.controller import Controller, SlowJob
from app.control.dispatch import Dispatcher, run_dispatcher
from app.control.dispatch_jobs import is_used
from app.control.forecasts import CHOOSE_PERIOD_S, choose_forecasts
from app.control.ingest import IngestQueue
from app.control.learn import PERIOD_S as LEARNING_PERIOD_S
from app.control.learn import Learner, learn_once
from app.control.loop import Loop, TickOutcome
from app.control.refit import LIMIT_S as REFIT_LIMIT_S
from app.control.refit import PERIOD_S as REFIT_PERIOD_S
from app.control.refit import run_in_process, run_refit
from app.control.task_events import LOOK_PERIOD_S as STARVED_LOOK_S
from app.control.worker import SolverWorker
from app.controller_metrics import controller_metrics
from app.controller_process import controller_process, stop_when_closed, tell
from app.db import migrate, policies
from app.db.budgets import step_degraded, tell_spent
from app.db.engine import make_engine
from app.db.forecasts import PostgresForecasts
from app.db.ingest import WAKE_CHANNEL
from app.db.leader import Leader
from app.db.listen import Listener
from app.db.maintenance import Retention, maintain
from app.db.postgres_store import PostgresStore
from app.db.refits import Attempts, refit_waiting
from app.db.targets import COMMAND_CHANNEL
from app.db.task_progress import note_starved
from app.db.transaction import Engine, transaction, translated
from app.errors import PlimsollError, Unavailable
from app.logs import configure_logs
from app.metrics import LoopMetrics
from app.settings import Settings
from app.simulations.desk import ScenarioDesk
from app.simulations.runner import SimulationRunner
from app.tracing import make_tracer
from app.web import application as dashboard
from app.webhooks import Sender, sending_job

log = structlog.get_logger(__name__)

CONTROLLER_CONNECTIONS = 4
"""Its own pool: a flood of observations must not keep the tick from the database. The lead holds one."""

CONTROLLER_NICENESS = 5
"""A tick may take a little longer when cores are short; an agent that waits for its acknowledgement may not."""

DRAIN_S = 5
"""Open requests get this long at the end; an agent that waits for a command loses nothing."""

BACKLOG = 2048
"""Connections that may wait to be taken; a fleet's agents come back all at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """What API and controller share."""

    settings: Settings
    url: str
    """SQLAlchemy's URL of a database at the newest revision."""
    clock: Clock
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)


def make_plane(settings: Settings, url: str | None = None, clock: Clock | None = None) -> Plane:
    """The shared parts. Without `url` the settings say where the database is; it may be the embedded server."""
    return Plane(settings=settings, url=url or database_url(settings), clock=clock or WallClock(speed=settings.speed))


def database_url(settings: Settings) -> str:
    """Where the database is: the setting, else the embedded server, which runs at least as long as this process."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    from app import postgres

    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(postgres.in_use(settings.data_dir)).url


def create_app(plane: Plane, *, checks: dict[str, Check] | None = None) -> FastAPI:
    """The API. Its lifespan starts and ends what it works with; `checks` are asked by /readyz beside its own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = make_engine(plane.url, pool_size=plane.settings.pool_size, application="plimsoll-api")
        store = PostgresStore(engine)
        parts = Parts(
            engine=engine,
            store=store,
            clock=plane.clock,
            ingest=IngestQueue(store, plane.clock, limit=plane.settings.sync_queue_limit),
            commands=CommandBoard(store, Listener(plane.url, COMMAND_CHANNEL)),
            solver=SolverWorker(threads=plane.settings.solver_threads),
            metrics=metrics,
            simulations=ScenarioDesk(),
            lease=plane.settings.lease,
        )
        parts.checks.update({**_own_checks(plane.url, parts), **(checks or {})})
        app.state.parts = parts
        parts.ingest.start()
        parts.commands.start()
        runner = SimulationRunner(engine, plane.clock)
        runner.start()
        try:
            yield
        finally:
            await runner.stop()
            await parts.ingest.stop()
            await parts.commands.stop()
            await parts.solver.close()
            await engine.dispose()

    metrics = ApiMetrics(plane.registry)
    api = make_api(lifespan, body_limit_bytes=plane.settings.request_limit_bytes)
    api.state.stopping = asyncio.Event()
    dashboard.install(api, api.state.stopping)
    return api


def app_from_environment() -> FastAPI:
    """The API alone, set up by the environment; for `uvicorn --factory app.main:app_from_environment`."""
    return create_app(make_plane(Settings()))


@asynccontextmanager
async def running_controller(
    plane: Plane, *, on_tick: Callable[[TickOutcome], None] | None = None
) -> AsyncIterator[tuple[Controller, "asyncio.Task[None]"]]:
    """A controller with its task: leads when it can, and ticks. The end gives the lead back at once."""
    engine = make_engine(plane.url, pool_size=CONTROLLER_CONNECTIONS, application="plimsoll-controller")
    metrics, tracer = LoopMetrics(plane.registry), make_tracer(os.environ)

    def ticked(outcome: TickOutcome) -> None:
        metrics.note(outcome)
        if tracer is not None:
            tracer.note(outcome)
        if on_tick is not None:
            on_tick(outcome)

    async def period_s() -> float:
        async with transaction(engine) as connection:
            return (await policies.load_current(connection)).period_s

    async def maintained() -> None:
        with translated():
            keep = Retention(observations_days=plane.settings.retention_days, rates_days=plane.settings.rates_days)
            await maintain(engine, plane.clock.now(), keep)

    solver, store = SolverWorker(threads=plane.settings.solver_threads), PostgresStore(engine)
    loop = Loop(store=store, solver=solver, clock=plane.clock, layers=load_training_layers())
    controller = Controller(
        loop,
        Leader(engine, holder=f"{socket.gethostname()}:{os.getpid()}"),
        Listener(plane.url, WAKE_CHANNEL),
        period_s=period_s,
        maintain=maintained,
        on_tick=ticked,
        slow_jobs=(*_slow_jobs(engine, store, plane.clock), sending_job(_sender(engine, plane))),
    )
    task = asyncio.create_task(controller.run(), name="plimsoll-controller")
    dispatcher = Dispatcher(
        store=store, clock=plane.clock, turn=loop.turn, kernel_ratios=load_kernel_ratios(), layers=loop.layers
    )

    async def is_dispatching() -> bool:
        async with transaction(engine) as connection:
            return controller.leads and is_used(await policies.load_current(connection))

    wakeups = Listener(plane.url, WAKE_CHANNEL)
    jobs = asyncio.create_task(run_dispatcher(dispatcher, wakeups, is_dispatching), name="plimsoll-dispatch")
    try:
        yield controller, task
    finally:
        for each in (jobs, task):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
        await solver.close()
        await engine.dispose()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


def _slow_jobs(engine: Engine, store: PostgresStore, clock: Clock) -> tuple[SlowJob, ...]:
    """What the leader does beside its ticks."""
    forecasts, learner = PostgresForecasts(engine), Learner(store=store, clock=clock)
    attempts = Attempts()

    async def choose() -> None:
        with translated():
            await choose_forecasts(forecasts, clock.now())

    async def learn() -> None:
        with translated():
            await learn_once(learner)

    async def refit() -> None:
        run = partial(run_in_process, run_refit, limit_s=REFIT_LIMIT_S)
        await refit_waiting(engine, run, layers=load_layers(), now=clock.now, attempts=attempts)

    async def tell_starved() -> None:
        async with transaction(engine) as connection:
            await note_starved(connection, clock.now())

    async def tell_budgets() -> None:
        async with transaction(engine) as connection:
            await tell_spent(connection, clock.now())
            await step_degraded(connection, clock.now())

    return (
        SlowJob(name="budgets", period_s=BUDGET_LOOK_S, run=tell_budgets),
        SlowJob(name="waiting tasks", period_s=STARVED_LOOK_S, run=tell_starved),
        SlowJob(name="forecasts", period_s=CHOOSE_PERIOD_S, run=choose),
        SlowJob(name="learn", period_s=LEARNING_PERIOD_S, run=learn),
        SlowJob(name="refit", period_s=REFIT_PERIOD_S, run=refit),
    )


def _sender(engine: Engine, plane: Plane) -> Sender:
    may_be_private = plane.settings.webhook_private
    return Sender(engine=engine, clock=plane.clock, body=event_bytes, may_be_private=may_be_private)


async def run_controller(plane: Plane) -> None:
    """The controller alone, until SIGTERM or SIGINT. Raises PlimsollError where its metrics' port is taken."""
    async with controller_metrics(plane.settings, plane.registry):
        await _run_controller(plane)


async def serve_plane(plane: Plane, listening: socket.socket | None = None) -> None:
    """The API in this process and the controller in one beside it, until SIGTERM or SIGINT.

    When either ends, so does the other. `listening` is where requests come in; without it, where the settings say.
    Raises PlimsollError where that is taken.
    """
    listening, metrics = listening or open_socket(plane.settings), LoopMetrics(plane.registry)
    body = ControllerBody(settings=plane.settings, url=plane.url, clock=plane.clock)
    async with controller_process(body, metrics.note) as ended:
        server = make_server(plane, checks={"controller": _controller_check(ended)})
        _on_stop_signals(server.handle_stop)
        serving = asyncio.create_task(server.serve(sockets=[listening]), name="plimsoll-api")
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        server.handle_stop()
        await serving
        if ended.done():
            ended.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerBody:
    """What the controller's process runs."""

    settings: Settings
    url: str
    clock: Clock
    """The API's; the machine's monotonic clock behind it is the same in every process."""

    def __call__(self, pipe: Connection) -> None:
        os.nice(CONTROLLER_NICENESS)
        configure_logs(self.settings)
        asyncio.run(_run_controller(make_plane(self.settings, self.url, self.clock), pipe))


def open_socket(settings: Settings) -> socket.socket:
    """The API's socket, before anything else is started. Raises PlimsollError, which says what to do."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PlimsollError(
            f"the API cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}; "
            "another program may have the port: choose one by --port or PLIMSOLL_PORT (0: any free one)"
        ) from error


class ApiServer(uvicorn.Server):
    """uvicorn's server, which leaves the process's signals to whoever runs it.

    uvicorn's own handlers raise the signal again when it has ended, which kills the process before agents and an
    embedded database are stopped.
    """

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    def handle_stop(self) -> None:
        """Finish the requests at hand, then end; streams would else last until they are cut."""
        self.should_exit = True
        self.app.state.stopping.set()


def make_server(plane: Plane, *, checks: dict[str, Check] | None = None) -> ApiServer:
    """The HTTP server of the API; `serve()` runs it, `should_exit` ends it."""
    settings, app = plane.settings, create_app(plane, checks=checks)
    return ApiServer(
        app,
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,  # app.logs has set up the root logger
            access_log=False,
            timeout_graceful_shutdown=DRAIN_S,
        ),
    )


async def _run_controller(plane: Plane, pipe: Connection | None = None) -> None:
    """Until a signal, or until the other side of the pipe is gone, which hears of every tick."""
    asked = asyncio.Event()
    _on_stop_signals(asked.set)
    if pipe is not None:
        stop_when_closed(pipe, asked.set)
    async with running_controller(plane, on_tick=None if pipe is None else partial(tell, pipe)) as (_, task):
        stopping = asyncio.create_task(asked.wait(), name="plimsoll-stop")
        await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()


def _on_stop_signals(act: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)


def _own_checks(url: str, parts: Parts) -> dict[str, Check]:
    """What the API itself needs."""

    async def database() -> str | None:
        try:
            async with transaction(parts.engine) as connection:
                await policies.load_current(connection)
        except Unavailable as error:
            return str(error)
        return None

    async def schema() -> str | None:
        try:
            with translated():
                return await asyncio.to_thread(migrate.check, url)
        except Unavailable as error:
            return str(error)

    async def commands() -> str | None:
        return None if parts.commands.is_listening else "announcements of new commands are not heard"

    return {"database": database, "schema": schema, "commands": commands}


def _controller_check(task: "asyncio.Future[None]") -> Check:
    async def controller() -> str | None:
        return "the control loop ended" if task.done() else None

    return controller
