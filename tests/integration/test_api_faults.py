"""The API while the database is away: told to come again, ready again by itself, nothing acknowledged is lost."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import make_url

from app.postgres import server as postgres
from tests.integration.api_harness import Api, Prepared, observation, service
from tests.waiting import until

pytestmark = pytest.mark.integration


@contextmanager
def _away(server: postgres.Server, url: str) -> Iterator[None]:
    """No one can be or get connected to the database of that URL."""
    name = make_url(url).database
    assert name is not None
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[arg-type]
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND datname = %s",
            (name,),
        )
        try:
            yield
        finally:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')  # type: ignore[arg-type]


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        yield running


def test_a_lost_database_is_told_and_found_again(
    api: Api, postgres_server: postgres.Server
) -> None:
    assert api.sync(sequence=1).status_code == 200
    with _away(postgres_server, api.url):
        for answer in (
            api.call("GET", "services"),
            api.call("PUT", "services/new", service("new")),
            api.sync(),
        ):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert answer.json()["code"] == "unavailable"
        ready = api.client.get("/readyz")
        assert ready.status_code == 503 and "database" in ready.json()["checks"]
        assert ready.headers["Retry-After"] == "1"
        assert api.client.get("/livez").status_code == 200
    assert api.get("services/chat")["metadata"]["name"] == "chat"
    # It answers what it found within the last second.
    until(lambda: api.client.get("/readyz").status_code == 200)
    assert api.sync(sequence=2).json()["acknowledged"] == 2


def test_a_failing_repetition_of_an_acknowledged_observation_loses_nothing(
    api: Api, postgres_server: postgres.Server
) -> None:
    assert api.sync(sequence=1).json()["acknowledged"] == 1
    with _away(postgres_server, api.url):
        assert api.sync(sequence=2).status_code == 503
    again = api.call("POST", "nodes/n1/sync", observation(sequence=2), token="agent")
    assert again.json()["acknowledged"] == 2


def test_a_fault_of_ours_is_a_problem_without_its_insides(api: Api) -> None:
    with psycopg.connect(
        make_url(api.url).set(drivername="postgresql").render_as_string(False)
    ) as connection:
        connection.execute("ALTER TABLE project RENAME TO misplaced")
    answer = api.call("GET", "projects", X_Request_ID="find-me")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"] == "find-me"
    assert "misplaced" not in answer.text and "project" not in answer.json()["detail"]
