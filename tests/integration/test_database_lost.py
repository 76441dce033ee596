"""What is under way when the database goes, or waits for a connection, is answered 503 with Retry-After, and soon."""

import asyncio
import gc
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from httpx2 import Response
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url, text
from starlette.testclient import TestClient

from app.base.clock import ManualControlClock
from app.base.errors import Unavailable
from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.db.base.listen import RECONNECT, WAKE_CHANNEL, Listener, conninfo
from app.db.base.transaction import transaction
from app.postgres import server as postgres
from app.postgres.files import DataDirLayout
from app.postgres.roles import SUPERUSER
from app.serve.api_process import create_app
from app.serve.plane import make_plane
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import NOW, V1, Api, Prepared, service
from tests.integration.simulating import scenario
from tests.waiting import eventually, run, until

pytestmark = [
    pytest.mark.integration,
    # SQLAlchemy cannot close a cursor of the server's whose connection is lost, and psycopg says so when it is deleted.
    pytest.mark.filterwarnings(
        "ignore:.*ServerCursorMixin.*:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(autouse=True, scope="module")
def deleted_here() -> Iterator[None]:
    """Not while another file's tests run."""
    yield
    gc.collect()


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with running_dashboard(small_fleet) as running:
        running.put("services/chat", service())
        assert running.sync().status_code == 200
        running.tick()
        running.add_token("guest", "viewer")
        yield running


def _log_in(api: Api) -> Response:
    origin = str(api.client.base_url).rstrip("/")
    sent = {"token": api.secrets["guest"], "next": "/fleet"}
    return api.client.post("/login", data=sent, headers={"Origin": origin})


REQUESTS: dict[str, Callable[[Api], Response]] = {
    "export": lambda api: api.call("GET", "reports/plan_history/export"),
    "explain": lambda api: api.call("GET", "plans/1/explain"),
    "list": lambda api: api.call("GET", "plans"),
    "simulate": lambda api: api.call("POST", "simulations", {"scenario": scenario()}),
    "page": lambda api: api.call("GET", "/fleet"),
    "feed": lambda api: api.call("GET", "/live?topic=service/chat"),
    "login": _log_in,
    "sync": lambda api: api.sync(sequence=2),
}
LOCKED = "plan, service, policy, node, simulation, session"


def test_whatever_is_under_way_when_the_database_dies_is_answered_503(
    api: Api, postgres_server: postgres.Server
) -> None:
    name = str(make_url(api.url).database)
    waiting = (
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with (
        ThreadPoolExecutor(len(REQUESTS)) as threads,
        psycopg.connect(conninfo(api.url)) as locking,
        psycopg.connect(postgres_server.conninfo, autocommit=True) as killing,
    ):
        locking.execute(f"LOCK TABLE {LOCKED} IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        asked = {
            what: threads.submit(request, api) for what, request in REQUESTS.items()
        }
        until(lambda: locking.execute(waiting).fetchall()[0][0] >= 5)
        killing.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[arg-type]
        try:
            killing.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND datname = %s AND pid <> %s",
                (name, locking.info.backend_pid),
            )
            answers = {what: each.result() for what, each in asked.items()}
        finally:
            killing.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')  # type: ignore[arg-type]
    found = {what: answer.status_code for what, answer in answers.items()}
    assert found == dict.fromkeys(REQUESTS, 503)
    assert all(answer.headers["Retry-After"] for answer in answers.values())


def test_a_database_that_only_reads_is_no_fault_of_ours(
    api: Api, postgres_server: postgres.Server
) -> None:
    """As a standby that takes over, until it is promoted."""
    with psycopg.connect(postgres_server.conninfo, autocommit=True) as connection:
        answer = _only_reading(api, connection)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_a_promoted_database_is_written_to_without_a_restart(
    api: Api, postgres_server: postgres.Server
) -> None:
    """Sessions that began while it only read would go on reading for ever; and a probe that reads finds no fault."""
    name = str(make_url(api.url).database)

    def readiness() -> tuple[int, str]:
        answer = api.client.get("/readyz?verbose=true")
        return answer.status_code, answer.json()["checks"]["database"]

    with psycopg.connect(postgres_server.conninfo, autocommit=True) as connection:
        assert _only_reading(api, connection).status_code == 503
        until(lambda: "only reads" in readiness()[1])
        assert readiness()[0] == 503
        connection.execute(
            f'ALTER DATABASE "{name}" RESET default_transaction_read_only'
        )  # type: ignore[arg-type]
    until(lambda: readiness()[1] == "ok")
    # Each session that only reads is met once at most, and the first one takes the others with it.
    codes = [
        api.call("PUT", f"services/then-{n}", service(f"then-{n}")).status_code
        for n in range(12)
    ]
    assert codes[-1] == 201 and codes.count(503) <= 1


def test_one_refused_write_gives_up_all_sessions_that_only_read(database: str) -> None:
    only_reads = text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    write = text("CREATE TEMPORARY TABLE written () ON COMMIT DROP")

    async def ask() -> None:
        engine = make_engine(database, pool_size=3)
        try:
            async with AsyncExitStack() as together:
                for _ in range(3):
                    connection = await together.enter_async_context(transaction(engine))
                    await connection.execute(only_reads)
            with pytest.raises(Unavailable, match="read-only"):
                async with transaction(engine) as connection:
                    await connection.execute(write)
            async with AsyncExitStack() as together:
                for _ in range(3):
                    connection = await together.enter_async_context(transaction(engine))
                    await connection.execute(write)
        finally:
            await engine.dispose()

    run(ask())


def _only_reading(
    api: Api, connection: "psycopg.Connection[tuple[object, ...]]"
) -> Response:
    """What a change is answered by then; every session that writes is ended."""
    name = str(make_url(api.url).database)
    connection.execute(
        f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'  # type: ignore[arg-type]
    )
    # One that was logging in has read the setting before, and is not listed yet: it is ended at the next turn.
    for number in range(100):
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND datname = %s",
            (name,),
        )
        answer = api.call("PUT", f"services/new-{number}", service(f"new-{number}"))
        if answer.status_code != 201:
            break
    return answer


def test_a_listener_waits_for_the_standby_to_be_promoted(tmp_path: Path) -> None:
    postgres.start(tmp_path)
    postgres.stop(tmp_path)
    (DataDirLayout(root=tmp_path).cluster / "standby.signal").touch()
    standby = postgres.start(tmp_path)
    superuser = make_conninfo(standby.conninfo, user=SUPERUSER)

    class Counting(Listener):
        tries = 0

        def _until_lost(self) -> AsyncGenerator[str]:
            self.tries += 1
            return super()._until_lost()

    async def hear() -> str:
        listener = Counting(standby.url, WAKE_CHANNEL, retry_s=0.01)
        first = asyncio.ensure_future(anext(listener.listen()))
        # PostgreSQL takes connections of a standby, and refuses LISTEN: it would have ended at the first one.
        await eventually(lambda: listener.tries > 2)
        assert not first.done()
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        return await first

    try:
        assert run(hear()) == RECONNECT
    finally:
        postgres.stop(tmp_path)


def test_who_waits_for_a_connection_of_the_pool_is_answered_at_last(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.base.engine.POOL_TIMEOUT_S", 0.1)

    async def ask() -> None:
        engine = make_engine(database, pool_size=1)
        try:
            async with transaction(engine):
                with pytest.raises(Unavailable):
                    async with transaction(engine):
                        pass
        finally:
            await engine.dispose()

    run(ask())


def test_an_api_that_starts_without_its_database_answers_503_and_says_what_is_away() -> (
    None
):
    # Bound and not listening, so that connections are refused and no one else takes the port.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://nobody@127.0.0.1:{bound.getsockname()[1]}/none"
        app = create_app(make_plane(Settings(), url, ManualControlClock(NOW)))
        with TestClient(app, raise_server_exceptions=False) as client:
            token = {"Authorization": f"Bearer plim_admin_{'x' * 43}"}
            asked = client.get(f"{V1}/services", headers=token)
            ready = client.get("/readyz")
            assert client.get("/livez").status_code == 200
    for answer in (asked, ready):
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "database" in ready.json()["checks"]
