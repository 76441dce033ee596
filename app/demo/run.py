"""The demo's course: start everything, deploy through the API, watch, report."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from rich.console import Console
from rich.live import Live

from app.base.clock import CatchingUpClock
from app.base.errors import PlimsollError
from app.base.logs import configure_logs
from app.base.settings import Settings
from app.base.token_file import keep_token
from app.catalogue.install import install_catalogue
from app.db.base import engine as databases
from app.db.base import migrate
from app.db.base.engine import make_engine
from app.db.base.listen import conninfo
from app.db.base.transaction import Engine, transaction
from app.db.decisions import policies
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.db.reports import reports
from app.demo import report, view
from app.demo.baseline import BaselineBody
from app.demo.cluster_process import DemoBody
from app.demo.scenario import (
    DURATION_S,
    SERVICES,
    demo_manifests,
    demo_settings,
)
from app.demo.summary import DemoCourse, make_summary
from app.demo.watch import BaselineWatch, ClusterWatch, first_of, load_of
from app.postgres import server as postgres
from app.serve.api_process import make_server
from app.serve.child_process import child_process
from app.serve.loop_metrics import LoopMetrics
from app.serve.plane import Plane, make_plane
from app.serve.up import alone, free_port

DATABASE = "plimsoll_demo"
LOCK = "demo.lock"
LINE_SHARE = 0.1
"""Without a terminal, one line each time that this share of the trace has passed."""
INTERRUPTED = 128 + signal.SIGINT
DEPLOY_S = 60.0
"""For one answer to what the demo deploys: a machine that is busy with other work takes more than five."""
LIMIT_S = 240.0
"""On the wall, for the simulation: half as long is enough on two cores without other load. On a busy machine the
report is of the minutes of load that were simulated by then, so that no one waits for it longer than six minutes."""
DATABASE_STOPS = (
    "(the database stops with the demo; `plimsoll up --demo --keep` leaves it running)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line says."""

    settings: Settings
    seed: int
    keep: bool
    duration_s: float = float(DURATION_S)
    limit_s: float = LIMIT_S


def run_demo(options: DemoOptions, console: Console) -> int:
    """The whole demo, until its load ends, somebody presses Ctrl-C, or SIGTERM comes; returns the exit code.

    0: every SLO was kept; 1: one was missed. Raises PlimsollError where another demo works with the same directory.
    """
    configure_logs(options.settings.model_copy(update={"log_level": "error"}))
    with alone(options.settings.data_dir, LOCK, _other_demo) as lock:
        # What an earlier demo left there is not true any more.
        lock.write_text("", encoding="utf-8")
        demo = _Demo(options, console, lock)
        console.print(
            "starting PostgreSQL, API, control loop and 8 simulated nodes …",
            style="dim",
        )
        with postgres.in_use(options.settings.data_dir) as server:
            try:
                asyncio.run(_run(server, demo))
            except (KeyboardInterrupt, asyncio.CancelledError):
                console.print("\nstopped")
    if demo.summary is None:
        return INTERRUPTED
    return 1 if demo.summary.missed else 0


def _other_demo(lock: Path) -> str:
    """Without the lock the second one would drop the first one's database."""
    found = lock.read_text(encoding="utf-8").strip()
    where = found or "it is still starting"
    return f"another `plimsoll up --demo` runs with the data directory {lock.parent}: {where}"


async def _run(server: postgres.Server, demo: "_Demo") -> None:
    task = asyncio.current_task()
    assert task is not None
    # By itself SIGTERM would end this process at once and leave PostgreSQL behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    # A new database of its own: the figures at the end are of this run alone.
    await databases.recreate(server.url, DATABASE)
    url = server.database_url(DATABASE)
    await asyncio.to_thread(migrate.upgrade, url)
    await demo.run(url)


class _Demo:
    """One run; the parts that several steps need."""

    def __init__(self, options: DemoOptions, console: Console, lock: Path) -> None:
        self.options = options
        # The usual address if it can be had, so that links from the docs work.
        port = free_port(options.settings.host, options.settings.port)
        self.settings = options.settings.model_copy(
            update={"log_level": "error", "port": port}
        )
        self.address = f"http://{options.settings.host}:{port}"
        self.console = console
        self.token_path = options.settings.data_dir.absolute() / "demo-token"
        self.lock = lock
        self.began_s = time.monotonic()
        self.summary: report.Summary | None = None

    async def run(self, url: str) -> None:
        """Start, deploy, watch until the load ends, report."""
        # So long ago that the load, which comes much faster than in reality, stays behind the machine's clock.
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        start = now - timedelta(seconds=self.options.duration_s)
        clock = CatchingUpClock(start)
        plane = make_plane(self.settings, url=url, clock=clock)
        baseline = BaselineWatch(start)
        body = BaselineBody(
            seed=self.options.seed, duration_s=self.options.duration_s, start=start
        )
        async with (
            # First: it needs no database, and is done before it is asked for.
            child_process(body, baseline.note, what="baseline") as ended,
            _connected(url) as engine,
            _running(plane),
        ):
            token = await self._install(plane, engine)
            await _deploy(self.address, token)
            self._say_where()
            async with self._cluster(plane, clock, baseline) as (ours, our_end):
                load = await load_of(ours.over, our_end)
                theirs = await load_of(baseline.totals_at(load.at), ended)
                course = DemoCourse(
                    trace_s=(load.at - start).total_seconds(),
                    duration_s=self.options.duration_s,
                    totals=load.totals,
                    migration_usd=load.migration_usd,
                    baseline_totals=theirs.totals,
                    baseline_bill=baseline.bill(load.at),
                    baseline_migration_usd=theirs.migration_usd,
                    ticks=ours.ticks,
                    wall_s=time.monotonic() - self.began_s,
                    first_plan_s=ours.first_plan_s,
                )
                await self._report(plane, engine, course)
                if self.options.keep:
                    self._say_how_to_go_on()
                    # Until Ctrl-C cancels this task.
                    await our_end

    @asynccontextmanager
    async def _cluster(
        self, plane: Plane, clock: CatchingUpClock, baseline: BaselineWatch
    ) -> AsyncIterator[tuple[ClusterWatch, "asyncio.Future[None]"]]:
        """The control loop with its cluster, shown until the load is over."""
        body = DemoBody(
            settings=self.settings,
            url=plane.url,
            clock=clock,
            seed=self.options.seed,
            duration_s=self.options.duration_s,
            limit_s=self.options.limit_s,
            keep=self.options.keep,
        )
        live = (
            Live(console=self.console, auto_refresh=False, screen=False)
            if self.console.is_terminal
            else None
        )
        watch = ClusterWatch(
            self._show(baseline, live),
            LoopMetrics(plane.registry).note,
            began_s=self.began_s,
        )
        async with child_process(body, watch.note, what="control loop") as ended:
            with live or nullcontext():
                await first_of(watch.over, ended)
            yield watch, ended

    def _show(
        self, baseline: BaselineWatch, live: Live | None
    ) -> Callable[[view.Frame], None]:
        """Shows a frame in the live view, or as a line now and then where no terminal shows it."""
        next_line_s = 0.0

        def show(frame: view.Frame) -> None:
            nonlocal next_line_s
            frame = baseline.beside(frame)
            if live is not None:
                live.update(view.render(frame), refresh=True)
            elif frame.trace_s >= next_line_s:
                next_line_s += LINE_SHARE * frame.duration_s
                self.console.print(view.line(frame), soft_wrap=True)

        return show

    async def _install(self, plane: Plane, engine: Engine) -> str:
        """Catalogue, policy and the first admin's token."""
        at = plane.clock.now()
        await install_catalogue(
            # Only these: the catalogue's other networks would take seconds to load.
            engine,
            at,
            networks=sorted({service.network for service in SERVICES}),
        )
        async with transaction(engine) as connection:
            await policies.save(
                connection,
                demo_settings("joint", self.options.seed),
                at=at,
                actor="demo",
            )
        order = TokenOrder(name="demo", scope="admin")
        made = await create_locally(engine, order, at=at)
        # Next to the user's own token, not in its place: the demo's database is thrown away.
        is_seen = self.console.file.isatty()
        about = keep_token(self.token_path, made.secret, is_seen=is_seen)
        self.console.print(f"admin token, {about}", soft_wrap=True, highlight=False)
        return made.secret

    def _say_where(self) -> None:
        where = f"look at it at {self.address}/login"
        self.console.print(
            f"{where}, or by commands:\n"
            f"  export PLIMSOLL_URL={self.address} PLIMSOLL_TOKEN_FILE={self.token_path}\n"
            "  plimsoll get services; plimsoll explain; plimsoll cost --by service",
            soft_wrap=True,
        )
        # For anyone who starts a second one.
        self.lock.write_text(
            f"{where} with the token in {self.token_path} (process {os.getpid()})",
            encoding="utf-8",
        )

    async def _report(self, plane: Plane, engine: Engine, course: DemoCourse) -> None:
        async with transaction(engine) as connection:
            self.summary = await make_summary(connection, course)
            answers = [
                await reports.ask(connection, query) for _, query in report.QUERIES
            ]
        # A command that cannot work any more would only mislead.
        opening = psql_command(plane.url) if self.options.keep else DATABASE_STOPS
        self.console.print(
            report.render(self.summary, answers, psql=opening), soft_wrap=True
        )

    def _say_how_to_go_on(self) -> None:
        self.console.print(
            f"\nstill running at {self.address}, with more load, at real time; stop with Ctrl-C",
            soft_wrap=True,
        )


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Engine]:
    engine = make_engine(url, pool_size=2, application="plimsoll-demo")
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def _running(plane: Plane) -> AsyncIterator[None]:
    """The API with the dashboard."""
    server = make_server(plane)
    serving = asyncio.create_task(server.serve(), name="plimsoll-api")
    try:
        while not server.started:
            # A port that is taken ends the server; without this the wait would never end.
            if serving.done():
                await serving
                raise PlimsollError(
                    f"the API did not start on port {plane.settings.port}"
                )
            await asyncio.sleep(0.02)
        yield
    finally:
        server.handle_stop()
        await serving


async def _deploy(address: str, token: str) -> None:
    """Nodes and services through the REST API, as an operator and the teams would."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(
        base_url=f"{address}/api/v1",
        headers=headers,
        timeout=DEPLOY_S,
        # This machine is asked: the environment's proxies are elsewhere.
        trust_env=False,
    ) as client:
        for kind, name, manifest in demo_manifests():
            answer = await client.put(f"/{kind}/{name}", json=manifest)
            if answer.status_code >= 400:
                raise PlimsollError(
                    f"PUT {kind}/{name} was answered {answer.status_code}: {answer.text}"
                )


def psql_command(url: str) -> str:
    """The command that opens the demo's database, or nothing where psql is not installed."""
    return f"psql '{conninfo(url)}'" if shutil.which("psql") else ""
