"""The only place where the control plane's parts are wired together: API, controller, and both in one process."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import uvicorn
from fastapi import FastAPI

from agents.base.waits import cancel
from app.api.application import make_api
from app.api.caches import shared_tasks
from app.api.caches.commands import CommandBoard
from app.api.caches.listening import BEAT_S
from app.api.caches.log_board import LogBoard
from app.api.caches.noted_accesses import NotedAccesses
from app.api.caches.readiness import Check
from app.api.caches.request_metrics import ApiMetrics
from app.api.caches.shared_snapshots import SharedSnapshots
from app.api.caches.token_news import TokenNews
from app.api.http.fairness import FairSeats, SeatRules
from app.api.http.guesses import Guesses
from app.api.http.parts import ApiParts, reader_rules
from app.base.errors import Unavailable
from app.base.logs import configure_logs
from app.base.settings import Settings
from app.catalogue.make_rows import make_rows
from app.db.base import migrate
from app.db.base.engine import make_engine
from app.db.base.listen import Listener
from app.db.base.transaction import Engine, check_writable, transaction, translated
from app.db.decisions import policies
from app.db.decisions.commands import COMMAND_CHANNEL
from app.db.fleet.log_requests import LOG_CHANNEL
from app.db.operations.tokens import TOKEN_CHANNEL
from app.db.postgres_store import PostgresStore
from app.kubernetes.node_identity import NodeIdentity, nobody
from app.kubernetes.sync import ClusterSync
from app.loop.tick import TickOutcome
from app.serve.child_process import child_process
from app.serve.connections import TimedProtocol, open_socket
from app.serve.controller_process import ControllerBody, SolverCompiles
from app.serve.loop_metrics import LoopMetrics
from app.serve.plane import (
    Plane,
    make_plane,
    on_stop_signals,
    settle_memory,
)
from app.simulate.requests.intake import ScenarioIntake
from app.simulate.requests.runner import SimulationRunner
from app.solver.process import COMPILING_KERNELS, NICENESS, SolverWorker
from app.store.event_limits import EventLimits
from app.store.ingest_queue import IngestQueue
from app.web import application as dashboard

log = structlog.get_logger(__name__)

WARM_AFTER_S = 10.0
"""The controller's solver, which plans what runs, gets the machine first."""
DRAIN_S = 5
"""Open requests get this long at the end; an agent that waits for a command loses nothing."""


def create_app(
    plane: Plane,
    *,
    checks: dict[str, Check] | None = None,
    compiling: asyncio.Event | None = None,
) -> FastAPI:
    """The API. Its lifespan starts and ends what it works with; `checks` are asked by /readyz with its own.

    `compiling`: as `ApiParts` has it.
    """

    # Outside the lifespan: a registry takes each name once, and an app may be started again.
    metrics = ApiMetrics(plane.registry)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pools = _make_pools(plane)
        engine = pools.people
        cluster = plane.cluster
        identity = None if cluster is None else NodeIdentity(cluster)
        parts = _make_parts(
            plane, pools, metrics, compiling or asyncio.Event(), identity
        )
        parts.checks.update({**_own_checks(plane.url, parts), **(checks or {})})
        # Before anything starts: a request may come as soon as the lifespan yields.
        app.state.parts = parts
        parts.ingest.start()
        parts.commands.start()
        parts.logs.start()
        parts.token_news.start()
        runner = SimulationRunner(engine, plane.clock)
        runner.start()
        watching = asyncio.create_task(metrics.watch_loop(), name="plimsoll-lag")
        try:
            async with _in_step(plane, parts):
                yield
        finally:
            watching.cancel()
            # The engine goes last: all others may have something to write down when they end.
            await shared_tasks.end_all()
            await runner.stop()
            await parts.ingest.stop()
            await parts.commands.stop()
            await parts.logs.stop()
            await parts.token_news.stop()
            await parts.solver.close()
            if identity is not None:
                await identity.close()
            await engine.dispose()
            await pools.agents.dispose()

    api = make_api(
        lifespan,
        body_limit_bytes=plane.settings.request_limit_bytes,
        token_rate=plane.settings.token_rate,
    )
    api.state.stopping = asyncio.Event()
    dashboard.install(api, api.state.stopping, plane.settings.sign_on)
    return api


@asynccontextmanager
async def _in_step(plane: Plane, parts: ApiParts) -> AsyncIterator[None]:
    """The Kubernetes cluster is kept in step with the control plane, if there is one."""
    if plane.cluster is None:
        yield
        return
    engine = make_engine(plane.url, pool_size=1, application="plimsoll-kubernetes")
    sync = ClusterSync(plane.cluster, parts, engine)
    running = asyncio.create_task(sync.run(), name="plimsoll-kubernetes")
    try:
        yield
    finally:
        await cancel(running)
        await engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """The connections of this process, which together are `pool_size`."""

    people: Engine
    agents: Engine
    reader_rules: SeatRules


def _make_pools(plane: Plane) -> _Pools:
    """A third is for agents: they commit together (`IngestQueue`), and many people must not make them wait."""
    agents = plane.settings.pool_size // 3 or 1
    people = plane.settings.pool_size - agents
    return _Pools(
        people=make_engine(plane.url, pool_size=people, application="plimsoll-api"),
        agents=make_engine(plane.url, pool_size=agents, application="plimsoll-sync"),
        reader_rules=reader_rules(people),
    )


def _make_parts(
    plane: Plane,
    pools: _Pools,
    metrics: ApiMetrics,
    compiling: asyncio.Event,
    identity: NodeIdentity | None,
) -> ApiParts:
    store = PostgresStore(pools.people)
    event_limits = EventLimits(metrics.dropped_events.inc)
    of_agents = PostgresStore(pools.agents, event_limits=event_limits)
    return ApiParts(
        engine=pools.people,
        sync_engine=pools.agents,
        readers=FairSeats(pools.reader_rules),
        guesses=Guesses(store, plane.clock, metrics, rate=plane.settings.token_rate),
        accesses=NotedAccesses(store),
        store=store,
        snapshots=SharedSnapshots(store, plane.clock),
        clock=plane.clock,
        ingest=IngestQueue(
            of_agents,
            plane.clock,
            limit=plane.settings.sync_queue_limit,
            on_dropped=metrics.note_dropped,
        ),
        commands=CommandBoard(
            of_agents, Listener(plane.url, COMMAND_CHANNEL, beat_s=BEAT_S)
        ),
        logs=LogBoard(pools.people, Listener(plane.url, LOG_CHANNEL)),
        token_news=TokenNews(Listener(plane.url, TOKEN_CHANNEL, beat_s=BEAT_S)),
        # A solver process of its own: a preview must not make the tick wait for its turn.
        # Its threads would take the API's core, and with it the time of agents that wait for their acknowledgement.
        solver=SolverWorker(
            make_rows=make_rows,
            threads=plane.settings.solver_threads,
            niceness=NICENESS,
        ),
        metrics=metrics,
        event_limits=event_limits,
        simulations=ScenarioIntake(),
        lease=plane.settings.lease,
        is_in_cluster=plane.cluster is not None,
        node_of_pod=nobody if identity is None else identity.node_of,
        gateway_url=plane.settings.gateway_url,
        retention=plane.retention,
        compiling=compiling,
    )


def app_from_environment() -> FastAPI:
    """The API alone, set up by the environment, for uvicorn; docs/operations.md has the command with its options."""
    settings = Settings()
    # Without it a traceback would print every local variable, tokens among them, and take seconds over it.
    configure_logs(settings)
    app = create_app(make_plane(settings))
    settle_memory()
    return app


async def serve_plane(plane: Plane, listening: socket.socket | None = None) -> None:
    """The API in this process and the controller in one next to it, until SIGTERM or SIGINT.

    When either ends, so does the other. `listening` is where requests come in; without it, where the settings say.
    Raises PlimsollError where that is taken.
    """
    listening = listening or open_socket(plane.settings)
    metrics, compiling = LoopMetrics(plane.registry), asyncio.Event()

    def note(message: TickOutcome | SolverCompiles) -> None:
        if isinstance(message, TickOutcome):
            metrics.note(message)
        elif message.is_compiling:
            compiling.set()
        else:
            compiling.clear()

    body = ControllerBody(settings=plane.settings, url=plane.url, clock=plane.clock)
    async with child_process(body, note, what="controller") as ended:
        server = make_server(
            plane,
            checks={"controller": _controller_check(ended)},
            compiling=compiling,
        )
        settle_memory()
        # Only now: until the controller's process has been started, a signal may end this one as it likes.
        on_stop_signals(server.handle_stop)
        serving = asyncio.create_task(
            server.serve(sockets=[listening]), name="plimsoll-api"
        )
        warming = asyncio.get_running_loop().call_later(
            WARM_AFTER_S, _begin_solver, server.app
        )
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        warming.cancel()
        server.handle_stop()
        await serving
        if ended.done():
            # Raises what ended the controller, so that the starter of this process sees a failure.
            ended.result()


def _begin_solver(app: FastAPI) -> None:
    """Start what answers people's questions, so that the first price of a plan does not wait for its imports."""
    # Absent where the start itself failed, which ends the server.
    parts: ApiParts | None = getattr(app.state, "parts", None)
    if parts is not None and isinstance(parts.solver, SolverWorker):
        parts.solver.begin()


class ApiServer(uvicorn.Server):
    """uvicorn's server, which leaves the process's signals to its caller.

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
        # Absent where the start itself failed.
        parts: ApiParts | None = getattr(self.app.state, "parts", None)
        if parts is not None:
            parts.logs.end_waits()


def make_server(
    plane: Plane,
    *,
    checks: dict[str, Check] | None = None,
    compiling: asyncio.Event | None = None,
) -> ApiServer:
    """The HTTP server of the API; `serve()` runs it, `should_exit` ends it."""
    settings = plane.settings
    app = create_app(plane, checks=checks, compiling=compiling)
    return ApiServer(
        app,
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,  # app.base.logs has set up the root logger
            access_log=False,
            http=TimedProtocol,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            ssl_ca_certs=None
            if settings.tls_client_ca is None
            else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_REQUIRED
            if settings.tls_client_ca
            else ssl.CERT_NONE,
        ),
    )


def _own_checks(url: str, parts: ApiParts) -> dict[str, Check]:
    """What the API itself needs."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="plimsoll-ready")

    async def database() -> str | None:
        try:
            # A read of the policy proves more than a connection: tables and rights are there, too.
            async with transaction(parts.engine) as connection:
                await policies.load_current(connection)
                await check_writable(connection)
        except Unavailable as error:
            return str(error)
        return None

    async def schema() -> str | None:
        try:
            with translated():
                # In a thread, since Alembic works synchronously; in one of its own, since callers may fill the others.
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(thread, migrate.check, url)
        except Unavailable as error:
            return str(error)

    async def commands() -> str | None:
        return (
            None
            if parts.commands.is_listening
            else "announcements of new commands are not heard"
        )

    async def solver() -> str | None:
        return COMPILING_KERNELS if parts.compiling.is_set() else None

    return {
        "database": database,
        "schema": schema,
        "commands": commands,
        "solver": solver,
    }


def _controller_check(task: "asyncio.Future[None]") -> Check:
    async def controller() -> str | None:
        return "the control loop ended" if task.done() else None

    return controller
