"""The real application on a real database, driven over ASGI without a socket, or over a socket of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast
from unittest.mock import patch

import httpx2
import structlog
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from httpx2 import Response
from sqlalchemy import make_url, text
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from app.api.caches import shared_snapshots
from app.base.clock import ManualControlClock
from app.base.scopes import Scope
from app.base.settings import Settings
from app.catalogue.make_rows import make_rows
from app.db.base.engine import make_engine
from app.db.base.transaction import Connection, Engine, transaction
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.db.postgres_store import PostgresStore
from app.loop.tick import Loop, TickOutcome, tick
from app.postgres import server as postgres
from app.serve.api_process import create_app
from app.serve.plane import make_plane
from app.solver.inline import InlineSolver
from tests.conftest import copied_database
from tests.integration.kept_solver import keep_solver
from tests.waiting import PATIENCE_S, until

# By default a traceback has the values of all variables, which takes seconds to write for an application.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(
            exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
V1 = "/api/v1"
SCOPES: tuple[Scope, ...] = ("viewer", "operator", "admin", "agent")
Method = Literal["GET", "PUT", "POST", "DELETE"]
Rows = list[tuple[Any, ...]]
Result = TypeVar("Result")


@dataclass(slots=True)
class Api:
    """One running application and the tokens to call it with."""

    client: TestClient
    clock: ManualControlClock
    url: str
    engine: Engine
    apart: BlockingPortal
    """The loop of that engine."""
    secrets: dict[str, str] = field(default_factory=dict)

    def call(
        self,
        method: Method,
        path: str,
        body: object = None,
        *,
        token: str | None = "admin",
        **headers: str,
    ) -> Response:
        """The answer to one request; `token` is a name of `secrets`, header names have `_` for `-`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {self.secrets[token]}"
        return self.client.request(
            method,
            path if path.startswith("/") else f"{V1}/{path}",
            json=body,
            headers=sent,
        )

    def forward(self, request: httpx2.Request) -> httpx2.Response:
        """What it answers to a command line of `tests.app.runner.cli`."""
        answer = self.client.request(
            request.method,
            request.url.raw_path.decode(),
            headers=dict(request.headers),
            content=request.content,
        )
        return httpx2.Response(
            answer.status_code, headers=dict(answer.headers), content=answer.content
        )

    def get(self, path: str, *, token: str = "admin") -> Any:
        """The JSON of a successful GET."""
        answer = self.call("GET", path, token=token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(
        self,
        method: Method,
        path: str,
        body: object = None,
        *,
        token: str | None = "admin",
        **headers: str,
    ) -> int:
        """How one request is answered."""
        return self.call(method, path, body, token=token, **headers).status_code

    def names(self, path: str, *, token: str = "admin") -> list[str]:
        """The names of the objects in a list."""
        items = self.get(path, token=token)["items"]
        return [item["metadata"]["name"] for item in items]

    def put(self, path: str, body: object, *, token: str = "admin") -> Response:
        """Create or replace, whatever is there."""
        answer = self.call("PUT", path, body, token=token)
        if answer.status_code == 428:
            answer = self.call("PUT", path, body, token=token, If_Match="*")
        assert answer.status_code in (200, 201), answer.text
        return answer

    def post(
        self, path: str, body: object = None, *, token: str = "operator", **headers: str
    ) -> Any:
        """The JSON of a successful POST."""
        answer = self.call("POST", path, body, token=token, **headers)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def wrong(self, method: Method, path: str, body: object) -> tuple[str, str]:
        """Which field of an admin's request is refused first, and with which words."""
        answer = self.call(method, path, body, If_Match="*")
        assert answer.status_code == 422, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        return answer.json()["errors"][0]["pointer"], answer.json()["detail"]

    def put_policy(self, **spec: object) -> Response:
        """Replace the whole policy by defaults and these."""
        metadata = {"name": "default"}
        body = {"kind": "Policy", "metadata": metadata, "spec": spec}
        return self.put("policies/default", body)

    def observe(
        self, sequence: int, arrivals: Mapping[str, int], **fields: Any
    ) -> None:
        """Two seconds pass, with these requests of each service, all on node n1."""
        self.clock.advance(2.0)
        answer = self.sync(
            sequence=sequence,
            services=[reading(*each) for each in arrivals.items()],
            window_start_s=self.clock.now_s() - 2.0,
            **fields,
        )
        assert answer.status_code == 200, answer.text

    def tick(self, *, restarted: bool = False) -> TickOutcome:
        """What one round of the control loop decides and pushes; `restarted`: the first one of a new process."""
        loop = Loop(
            store=PostgresStore(self.engine),
            solver=InlineSolver(make_rows=make_rows),
            clock=self.clock,
            has_resumed=not restarted,
        )
        outcome = self.on_engine(lambda _: tick(loop))
        if outcome.state == "target" and isinstance(self.client, TestClient):
            self._hear_of(outcome.generation or 0)
        return outcome

    def _hear_of(self, generation: int) -> None:
        """Wait until the application has that target's commands, of which it hears a moment after their push."""
        board = cast(FastAPI, self.client.app).state.parts.commands
        commands_of = PostgresStore(self.engine).commands_of
        told = self.on_engine(lambda _: commands_of(generation))

        async def has_heard() -> bool:
            asked = [board.command_for(each.node, generation - 1) for each in told]
            return None not in [await each for each in asked]

        portal = self.client.portal
        assert portal is not None
        until(lambda: portal.call(has_heard))

    def on_engine(self, work: Callable[[Engine], Awaitable[Result]]) -> Result:
        """What the work returns, in a thread that is not the application's."""

        async def limited() -> Result:
            async with asyncio.timeout(PATIENCE_S):
                return await work(self.engine)

        return self.apart.call(limited)

    def on_connection(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """The same in a transaction."""

        async def transacted(engine: Engine) -> Result:
            async with transaction(engine) as connection:
                return await work(connection)

        return self.on_engine(transacted)

    def execute(self, *statements: str, **binds: object) -> Rows:
        """The rows of the last of these statements, which are one transaction."""

        async def run(connection: Connection) -> Rows:
            for statement in statements:
                found = await connection.execute(text(statement), binds)
            return [tuple(row) for row in found] if found.returns_rows else []

        return self.on_connection(run)

    def sync(
        self,
        name: str = "n1",
        *,
        query: str = "",
        token: str = "",
        **fields: Any,
    ) -> Response:
        """The answer to one observation; without a `token` by the node's own, which is made where it has none."""
        return self.call(
            "POST",
            f"nodes/{name}/sync{query}",
            observation(name, **fields),
            token=token or self.token_of(name),
        )

    def command(self, name: str = "n1", **fields: Any) -> Any:
        """The command in the answer to one observation, which is repeated until the API has heard of the push."""
        return until(lambda: self.sync(name, **fields).json()["command"])

    def token_of(self, node: str) -> str:
        """The name of the token of that node's agent, which is made where it has none."""
        name = "agent" if node == "n1" else f"agent-{node}"
        if name not in self.secrets:
            self.add_token(name, "agent", node=node)
        return name

    def add_token(
        self,
        name: str,
        scope: Scope,
        projects: tuple[str, ...] | None = None,
        *,
        node: str = "n1",
    ) -> str:
        """Make a token under that name; an agent's is of the node."""
        order = TokenOrder(
            name=name,
            scope=scope,
            projects=projects,
            node=node if scope == "agent" else None,
            uses_left=1 if scope == "join" else None,
        )

        at = self.clock.now()
        made = self.on_engine(lambda engine: create_locally(engine, order, at=at))
        self.secrets[name] = made.secret
        return self.secrets[name]


def run_apart(work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns, run in a thread of its own: Playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def running_api(url: str, **settings: Any) -> Iterator[Api]:
    """The application on that database, with one token of each scope named after it."""
    with _application(url, NOW, settings) as api:
        for scope in SCOPES:
            api.add_token(scope, scope)
        yield api


_routes: list[BaseRoute] = []
"""The API's routes, which know nothing of their application: preparing them for the first request is dear."""


def with_known_routes(app: FastAPI) -> FastAPI:
    """The application with the routers that an earlier one has prepared."""
    own = app.router.routes
    included = [at for at, each in enumerate(own) if hasattr(each, "original_router")]
    if not _routes:
        _routes.extend(own[place] for place in included)
    for place, known in zip(included, _routes, strict=True):
        # It includes the same router, so that nothing of this application's own goes.
        assert known.original_router is own[place].original_router  # type: ignore[attr-defined]
        own[place] = known
    return app


@contextmanager
def _application(url: str, at: datetime, settings: dict[str, Any]) -> Iterator[Api]:
    clock = ManualControlClock(at)
    # Tests send as fast as they get answers, with few tokens.
    settings = {"token_rate": 10_000.0, **settings}
    cluster = settings.pop("cluster", None)
    plane = make_plane(Settings(**settings), url, clock)
    app = with_known_routes(create_app(replace(plane, cluster=cluster)))
    # Each caller has an address, as a node has: an agent's metrics are sought there.
    asks_from = ("10.0.0.7", 50000)
    with (
        # After each load of a snapshot nothing is loaded for three times as long, and tests ask one after the other.
        patch.object(shared_snapshots, "REST_PER_LOAD", 0.0),
        TestClient(app, raise_server_exceptions=False, client=asks_from) as client,
        start_blocking_portal() as apart,
    ):
        keep_solver(app)
        engine = make_engine(url, pool_size=6)
        try:
            yield Api(client=client, clock=clock, url=url, engine=engine, apart=apart)
        finally:
            apart.call(engine.dispose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A database with tokens and objects, to be copied for each test: that costs a tenth of filling a fresh one."""

    server: postgres.Server
    name: str
    secrets: dict[str, str]
    at: datetime
    """What the clock showed when it was ready."""

    @contextmanager
    def copied(self) -> Iterator[str]:
        """The URL of a copy."""
        with copied_database(self.server, template=self.name) as url:
            yield url

    @contextmanager
    def running_api(self, **settings: Any) -> Iterator[Api]:
        """The application on a copy, at the time when this was ready."""
        with self.copied() as url, _application(url, self.at, settings) as api:
            api.secrets.update(self.secrets)
            yield api


@contextmanager
def prepared(
    server: postgres.Server, template: str, fill: Callable[[Api], None]
) -> Iterator[Prepared]:
    """What `fill` makes of an application on a copy of the template, which has ended; dropped at the end."""
    with copied_database(server, template=template) as url:
        with running_api(url) as api:
            fill(api)
        name = make_url(url).database
        assert name is not None
        yield Prepared(
            server=server, name=name, secrets=api.secrets, at=api.clock.now()
        )


def gpu_type(name: str = "T4", **spec: object) -> dict[str, object]:
    """A GPU type's manifest."""
    base = {
        "price_usd_per_hour": "0.35",
        "memory_mib": 16384,
        "sm_percent_step": 10,
        "idle_w": 10,
        "power_cap_w": 70,
        "clocks_mhz": [1590],
    }
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "GpuType",
        "metadata": {"name": name},
        "spec": {**base, **spec},
    }


def network(name: str = "resnet50") -> dict[str, object]:
    """A network's manifest."""
    return {
        "kind": "Network",
        "metadata": {"name": name},
        "spec": {"description": "images"},
    }


def profile(
    network_name: str = "resnet50", gpu_type_name: str = "T4", run_ms: float = 6.0
) -> dict[str, object]:
    """A profile with four rows: batch 1 and 8, half and whole GPU; the fastest one alone takes 2 + 1 + run_ms."""
    rows = [
        [
            sm,
            batch,
            1590,
            0.5,
            0.5,
            run_ms * batch**0.5 * (100 / sm) ** 0.5,
            1200,
            40 * sm / 100,
            0.1,
        ]
        for sm in (50, 100)
        for batch in (1, 8)
    ]
    return {
        "kind": "Profile",
        "metadata": {"name": f"{network_name}.{gpu_type_name}"},
        "spec": {
            "network": network_name,
            "gpu_type": gpu_type_name,
            "sensitivity": 0.2,
            "rows": rows,
        },
    }


def node(name: str = "n1", gpus: int = 2, **spec: object) -> dict[str, object]:
    """A node's manifest, with T4s."""
    listed = [{"index": index, "gpu_type": "T4"} for index in range(gpus)]
    return {
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"gpus": listed, **spec},
    }


def service(
    name: str = "chat",
    project: str = "default",
    latency_ms: float = 100.0,
    **spec: object,
) -> dict[str, Any]:
    """A service's manifest."""
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Service",
        "metadata": {"name": name, "project": project},
        "spec": {
            "network": "resnet50",
            "slo": {"latency_ms": latency_ms, "percentile": 0.98},
            **spec,
        },
    }


def fill(api: Api) -> None:
    """A small fleet: one GPU type, one network with a profile, one node with two GPUs, a second project."""
    api.put("gpu-types/T4", gpu_type())
    api.put("networks/resnet50", network())
    api.put("profiles/resnet50/T4", profile())
    api.put("nodes/n1", node())
    api.put("projects/team-a", {"kind": "Project", "metadata": {"name": "team-a"}})
    api.put("projects/team-b", {"kind": "Project", "metadata": {"name": "team-b"}})


def reading(name: str = "chat", arrivals: int = 100) -> dict[str, object]:
    """What a node's router saw of a service: everything in time."""
    return {
        "service": name,
        "arrivals": arrivals,
        "served": arrivals,
        "in_slo": arrivals,
        "latency_buckets": [[20, arrivals]],
    }


def observation(
    name: str = "n1", sequence: int = 1, **fields: object
) -> dict[str, Any]:
    """An observation of a node with two T4s that ends now."""
    gpus = [
        {
            "index": index,
            "gpu_type": "T4",
            "memory_mib": 16384,
            "memory_used_mib": 100,
            "power_w": 12,
            "energy_j": 24,
            "clock_mhz": 1590,
            "busy_percent": 0,
        }
        for index in range(2)
    ]
    base = {
        "node": name,
        "boot": "boot-1",
        "sequence": sequence,
        "window_start_s": NOW.timestamp() - 2.0,
        "window_s": 2.0,
        "generation": 0,
        "gpus": gpus,
    }
    return {**base, **fields}
