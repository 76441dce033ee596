"""The demo's course: start everything, deploy through the API, watch, report."""

import asyncio
import contextlib
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime

import httpx2
from rich.console import Console
from rich.live import Live

from agents.sim.cluster import SimulatedCluster
from agents.sim.truth.truth import load_truth
from app.base.clock import ControlClock, ManualControlClock, WallClock
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
from app.db.decisions import plans, policies
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.db.reports import reports
from app.demo import report, view
from app.demo.baseline import baseline_cluster, baseline_solver
from app.demo.feed import DemoFeed
from app.demo.nodes import DemoNodes, WatchedTransport
from app.demo.scenario import (
    DURATION_S,
    SERVICES,
    demo_cluster,
    demo_manifests,
    demo_settings,
)
from app.demo.summary import DemoCourse, make_summary
from app.loop.tick import TickOutcome
from app.postgres import server as postgres
from app.serve.api_process import make_server
from app.serve.controller_process import running_controller
from app.serve.plane import Plane, make_plane
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan

DATABASE = "plimsoll_demo"
FRAME_S = 0.5
"""Wall seconds between two pictures."""
LINE_SHARE = 0.1
"""Without a terminal, one line each time that this share of the trace has passed."""
START_LIMIT_S = 180.0
DATABASE_STOPS = (
    "(the database stops with the demo; `plimsoll up --demo --keep` leaves it running)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line says."""

    settings: Settings
    speed: float
    seed: int
    keep: bool
    duration_s: float = float(DURATION_S)


def run_demo(options: DemoOptions, console: Console) -> None:
    """The whole demo, until its trace ends, somebody presses Ctrl-C, or SIGTERM comes."""
    began_s = time.monotonic()
    configure_logs(options.settings.model_copy(update={"log_level": "error"}))
    console.print(
        "starting PostgreSQL, API, control loop and 8 simulated nodes …", style="dim"
    )
    with postgres.in_use(options.settings.data_dir) as server:
        try:
            asyncio.run(_run(server, options, console, began_s))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("\nstopped")


async def _run(
    server: postgres.Server, options: DemoOptions, console: Console, began_s: float
) -> None:
    task = asyncio.current_task()
    assert task is not None
    # By itself SIGTERM would end this process at once and leave PostgreSQL behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    # A database of its own, made anew: the figures at the end are of this run alone.
    await databases.recreate(server.url, DATABASE)
    url = server.database_url(DATABASE)
    await asyncio.to_thread(migrate.upgrade, url)
    engine = make_engine(url, pool_size=2, application="plimsoll-demo")
    try:
        await _Demo(options, console, engine, began_s).run(url)
    finally:
        await engine.dispose()


class DemoStage:
    """Everything that takes time to load, before the trace begins: data, compiled kernels, the baseline's policy."""

    def __init__(self, seed: int) -> None:
        self.plan = demo_cluster("joint", seed)
        self._baseline_plan = baseline_cluster(seed)
        self._world = load_truth()
        # In a thread that has no loop; the compiled kernels are those of the process.
        asyncio.run(self._rehearse())

    def open(self, clock: ControlClock) -> tuple[SimulatedCluster, ClosedLoop]:
        """The control plane's cluster and the baseline's; both traces begin now."""
        start_s = clock.now_s()
        cluster = SimulatedCluster(
            self.plan.nodes,
            self.plan.scenario,
            world=self._world,
            clock=clock,
            start_s=start_s,
        )
        return cluster, self._baseline(clock)

    def _baseline(self, clock: ControlClock) -> ClosedLoop:
        return ClosedLoop(
            self._baseline_plan,
            world=self._world,
            clock=clock,
            solver=baseline_solver(),
            promises_may_break=True,
        )

    async def _rehearse(self) -> None:
        """A few minutes of the baseline on a clock of its own: compiles the kernels and loads the policy."""
        clock = ManualControlClock()
        rehearsal = self._baseline(clock)
        # Two minutes in steps of five seconds: the autoscaler's windows are full by then.
        for _ in range(24):
            clock.advance(self.plan.agent_period_s)
            await rehearsal.step()
            await rehearsal.tick()


class _Demo:
    """One run; the parts that several steps need."""

    def __init__(
        self, options: DemoOptions, console: Console, engine: Engine, began_s: float
    ) -> None:
        self.options = options
        self.token_path = options.settings.data_dir / "demo-token"
        self.engine = engine
        self.console = console
        self.began_s = began_s
        self.ticks: list[TickOutcome] = []
        self.first_plan_s = 0.0

    async def run(self, url: str) -> None:
        """Start, deploy, watch until the trace ends, report."""
        settings = self.options.settings.model_copy(
            update={
                "speed": self.options.speed,
                "port": free_port(self.options.settings),
                "log_level": "error",
            }
        )
        plane = make_plane(settings, url=url, clock=WallClock(speed=self.options.speed))
        async with self._running(plane) as address:
            token = await self._install(plane)
            await self._deploy(address, token)
            self.console.print(f"look at it in a browser: {address}/login")
            # Meanwhile the control loop loads its solvers in its worker.
            stage = await asyncio.to_thread(DemoStage, self.options.seed)
            await self._first_tick()
            await self._watch(plane, address, stage)

    @asynccontextmanager
    async def _running(self, plane: Plane) -> AsyncIterator[str]:
        """API and controller; yields the API's address."""
        server = make_server(plane)
        serving = asyncio.create_task(server.serve(), name="plimsoll-api")
        async with running_controller(plane, on_tick=self.ticks.append):
            while not server.started:
                # A port that is taken ends the server; without this the wait would never end.
                if serving.done():
                    await serving
                    raise PlimsollError(
                        f"the API did not start on port {plane.settings.port}"
                    )
                await asyncio.sleep(0.02)
            try:
                yield f"http://{plane.settings.host}:{plane.settings.port}"
            finally:
                server.handle_stop()
                await serving

    async def _install(self, plane: Plane) -> str:
        """Catalogue, policy and the first admin's token."""
        at = plane.clock.now()
        await install_catalogue(
            # Only these: the catalogue's other networks would take seconds to load.
            self.engine,
            at,
            networks=sorted({service.network for service in SERVICES}),
        )
        async with transaction(self.engine) as connection:
            await policies.save(
                connection,
                demo_settings("joint", self.options.seed),
                at=at,
                actor="demo",
            )
        order = TokenOrder(name="demo", scope="admin")
        made = await create_locally(self.engine, order, at=at)
        # Beside the user's own token, not in its place: the demo's database is thrown away.
        is_seen = self.console.file.isatty()
        about = keep_token(self.token_path, made.secret, is_seen=is_seen)
        self.console.print(f"admin token, {about}", soft_wrap=True, highlight=False)
        return made.secret

    async def _deploy(self, address: str, token: str) -> None:
        """Nodes and services through the REST API, as an operator and the teams would."""
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            base_url=f"{address}/api/v1", headers=headers
        ) as client:
            for kind, name, body in demo_manifests():
                answer = await client.put(f"/{kind}/{name}", json=body)
                if answer.status_code >= 400:
                    raise PlimsollError(
                        f"PUT {kind}/{name} was answered {answer.status_code}: {answer.text}"
                    )

    async def _first_tick(self) -> None:
        """Wait until the control loop runs; its solvers take some seconds to load."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self.ticks:
            if time.monotonic() > deadline_s:
                raise PlimsollError(
                    f"the control loop did not tick within {START_LIMIT_S:.0f} s; see its log above"
                )
            await asyncio.sleep(0.1)

    async def _watch(self, plane: Plane, address: str, stage: DemoStage) -> None:
        cluster, baseline = stage.open(plane.clock)
        feed = DemoFeed(
            cluster=cluster,
            services=stage.plan.services,
            gpu_types=stage.plan.gpu_types,
            duration_s=self.options.duration_s,
            speed=self.options.speed,
            start=plane.clock.now(),
            baseline=baseline.store.pushed,
        )
        secrets = await self._node_secrets(stage.plan, plane.clock.now())
        nodes = DemoNodes(
            stage.plan,
            cluster,
            plane.clock,
            transport=lambda node: WatchedTransport(
                address,
                secrets[node],
                speed=self.options.speed,
                watch=feed.note_power,
            ),
        )
        nodes.start()
        try:
            async with _beside(run_baseline(baseline, stage.plan.agent_period_s)):
                await self._show(plane, feed, nodes)
            # The baseline has ended: both bills are of the same time.
            await self._report(plane, feed, baseline)
            if self.options.keep:
                await self._stay(address)
        finally:
            await nodes.stop()

    async def _node_secrets(self, plan: ClusterPlan, at: datetime) -> dict[str, str]:
        """The token of each node's agent, by the node's name."""
        names = [node.name for node in plan.nodes]
        orders = [TokenOrder(name=name, scope="agent", node=name) for name in names]
        made = [await create_locally(self.engine, order, at=at) for order in orders]
        return {token.row.name: token.secret for token in made}

    async def _show(self, plane: Plane, feed: DemoFeed, nodes: DemoNodes) -> None:
        """The live view, or a line now and then where no terminal shows it."""
        is_live = self.console.is_terminal
        with (
            Live(console=self.console, auto_refresh=False, screen=False)
            if is_live
            else nullcontext() as live
        ):
            next_line_s = 0.0
            while True:
                await self._note_target(plane, feed)
                if not self.first_plan_s and nodes.have_a_plan:
                    # Once all nodes have a command, not when the plan is decided.
                    self.first_plan_s = time.monotonic() - self.began_s
                frame = feed.frame(plane.clock.now())
                if live is not None:
                    live.update(view.render(frame), refresh=True)
                elif frame.trace_s >= next_line_s:
                    next_line_s += LINE_SHARE * feed.duration_s
                    self.console.print(view.line(frame), soft_wrap=True)
                if frame.trace_s >= feed.duration_s:
                    return
                await asyncio.sleep(FRAME_S)

    async def _note_target(self, plane: Plane, feed: DemoFeed) -> None:
        """Look the target up when a tick says that it changed."""
        # Generations grow: a tick that kept the plan costs no query.
        known = feed.pushed[-1][1].generation if feed.pushed else 0
        if self.ticks and self.ticks[-1].generation > known:
            async with transaction(self.engine) as connection:
                found = await plans.load_bound(connection, "target")
            if found is not None and found[1].generation > known:
                feed.note_target(plane.clock.now(), found[1])

    async def _report(self, plane: Plane, feed: DemoFeed, baseline: ClosedLoop) -> None:
        async with transaction(self.engine) as connection:
            summary = await make_summary(
                connection,
                feed,
                baseline.cluster.totals(),
                DemoCourse(
                    ticks=self.ticks,
                    ended_at=plane.clock.now(),
                    wall_s=time.monotonic() - self.began_s,
                    first_plan_s=self.first_plan_s,
                ),
            )
            answers = [
                await reports.ask(connection, query) for _, query in report.QUERIES
            ]
        # A command that cannot work any more would only mislead.
        opening = psql_command(plane.url) if self.options.keep else DATABASE_STOPS
        self.console.print(
            report.render(summary, answers, psql=opening), soft_wrap=True
        )

    async def _stay(self, address: str) -> None:
        self.console.print(
            "\nstill running, without load, until Ctrl-C:\n"
            f"  export PLIMSOLL_URL={address} PLIMSOLL_TOKEN_FILE={self.token_path}\n"
            "  plimsoll get services; plimsoll explain; plimsoll cost --by service",
            soft_wrap=True,
        )
        # Until Ctrl-C cancels this task.
        await asyncio.Event().wait()


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run something for as long as the block lasts."""
    task = asyncio.create_task(work, name="demo-baseline")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def run_baseline(baseline: ClosedLoop, agent_period_s: float) -> None:
    """Kubernetes' autoscaler on its own copy of the cluster and the same requests, on the demo's clock."""
    while True:
        await baseline.step()
        await baseline.tick_if_due()
        await baseline.pass_time(agent_period_s)


def free_port(settings: Settings) -> int:
    """The configured port where it is free, else any free one."""
    # The usual address if it can be had, so that links from the docs work.
    for port in (settings.port, 0):
        with socket.socket() as probe:
            # Otherwise a port of the run before would count as taken for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise PlimsollError(f"no free port on {settings.host}")


def psql_command(url: str) -> str:
    """The command that opens the demo's database, or nothing where psql is not installed."""
    return f"psql '{conninfo(url)}'" if shutil.which("psql") else ""
