"""Quotas of projects: ceilings on the priority and the replicas of what they submit, and what of them is used."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from app.api.http.fairness import Pace
from app.api.http.parts import ApiParts
from app.db.base.listen import conninfo
from tests.app.runner import cli
from tests.integration.api_harness import Api, Prepared, service
from tests.integration.test_api_tasks import task

pytestmark = pytest.mark.integration

PROJECT = "team-a"


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.add_token("team", "operator", (PROJECT,))
        yield running


def allow(api: Api, **quota: object) -> None:
    metadata = {"name": PROJECT}
    manifest = {"kind": "Project", "metadata": metadata, "spec": {"quota": quota}}
    api.put(f"projects/{PROJECT}", manifest)


def put(api: Api, name: str, replicas: int | None = None, **spec: object) -> str:
    """The field of a service that is refused; empty: it was done."""
    scaling = {} if replicas is None else {"max_replicas": replicas}
    body = service(name, project=PROJECT, scaling=scaling, **spec)
    return refused_field(api, f"services/{name}", body)


def submit(api: Api, name: str, **spec: object) -> str:
    """The same of a task."""
    return refused_field(api, f"tasks/{name}", task(name, project=PROJECT, **spec))


def refused_field(api: Api, path: str, body: object) -> str:
    answer = api.call("PUT", path, body, token="team", If_None_Match="*")
    if answer.status_code == 412:
        answer = api.call("PUT", path, body, token="team", If_Match="*")
    if answer.status_code in (200, 201):
        return ""
    assert answer.status_code == 422, answer.text
    return str(answer.json()["errors"][0]["pointer"])


def test_a_priority_above_the_projects_ceiling_is_refused(api: Api) -> None:
    assert put(api, "older", priority=100) == ""
    allow(api, max_priority="standard")
    assert put(api, "fresh", priority=10) == ""
    assert put(api, "fresh", priority=10.5) == "/spec/priority"
    assert submit(api, "nightly", priority="critical") == "/spec/priority"
    # What was there before the ceiling stays as it is, and only its priority cannot rise.
    assert put(api, "older", priority=100, latency_ms=200.0) == ""
    assert put(api, "older", priority=101) == "/spec/priority"


def test_services_that_change_all_the_time_are_refused_since_no_plan_could_be_pushed(
    api: Api,
) -> None:
    pace = Pace(rate=0.01, burst=3.0, wait_s=0.0, what="changes per second")
    parts: ApiParts = api.client.app.state.parts  # type: ignore[attr-defined]
    api.client.app.state.parts = replace(parts, service_changes=pace)  # type: ignore[attr-defined]
    for latency_ms in (100.0, 200.0, 300.0):
        assert put(api, "restless", latency_ms=latency_ms) == ""

    def status(name: str, latency_ms: float) -> int:
        body = service(name, project=PROJECT, latency_ms=latency_ms)
        answer = api.call("PUT", f"services/{name}", body, If_Match="*")
        return int(answer.status_code)

    assert status("restless", 400.0) == 429
    refused = api.call("DELETE", "services/restless", If_Match="*")
    assert refused.status_code == 429
    assert 90 <= int(refused.headers["Retry-After"]) <= 100
    # What was refused was not done; what changes nothing, and other projects, are not refused.
    assert api.get("services/restless")["spec"]["slo"]["latency_ms"] == 300.0
    assert status("restless", 300.0) == 200
    other = api.call("PUT", "services/calm", service("calm"), If_None_Match="*")
    assert other.status_code == 201


def test_services_of_a_project_run_no_more_replicas_than_its_quota(api: Api) -> None:
    allow(api, max_replicas=10)
    field = "/spec/scaling/max_replicas"
    assert put(api, "one", 6) == ""
    assert put(api, "two", 5) == field
    assert put(api, "two") == field
    assert put(api, "two", 4) == ""
    assert put(api, "two", 5) == field
    assert api.get(f"projects/{PROJECT}")["status"]["max_replicas"] == 10
    allow(api, max_replicas=8)
    # Above the quota now: what is there may become smaller, and nothing else.
    assert put(api, "two", 3) == ""
    assert put(api, "two", 4) == field
    assert api.call("DELETE", "services/one", If_Match="*").status_code == 204
    assert put(api, "two", 8) == ""


def test_services_and_tasks_of_a_project_hold_no_more_gpus_than_its_quota(
    api: Api,
) -> None:
    allow(api, max_gpus=4)
    replicas, project = "/spec/scaling/max_replicas", "/metadata/project"
    assert put(api, "one") == replicas
    assert put(api, "one", 2) == ""
    assert (submit(api, "train"), submit(api, "tune")) == ("", "")
    assert submit(api, "third") == project
    assert put(api, "one", 3) == put(api, "two", 1) == replicas
    assert api.get(f"projects/{PROJECT}")["status"] == {
        "max_replicas": 2,
        "max_gpus": 4,
        "max_simulations": 0,
    }
    # What is over holds none.
    assert api.call("POST", "tasks/tune/cancel").status_code == 200
    assert put(api, "one", 3) == ""
    # Below what is used: everything there may be changed, and nothing grows.
    allow(api, max_gpus=1)
    assert submit(api, "train", priority=2) == ""
    assert put(api, "one", 2) == ""
    assert put(api, "one", 3) == replicas
    assert submit(api, "third") == project


@pytest.mark.parametrize(
    ("table", "ask", "field"),
    [
        ("service", lambda api, n: put(api, n, 1), "/spec/scaling/max_replicas"),
        ("task", lambda api, n: submit(api, n), "/metadata/project"),
    ],
)
def test_of_two_that_are_submitted_at_once_one_is_refused_where_the_quota_has_one_left(
    api: Api, table: str, ask: Callable[[Api, str], str], field: str
) -> None:
    allow(api, max_gpus=1)
    held = "SELECT count(*) >= 2 FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(2) as threads, psycopg.connect(conninfo(api.url)) as other:
        # Neither writes before both have asked: each would find the quota unused.
        other.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        both = [threads.submit(ask, api, name) for name in ("one", "two")]
        while other.execute(held).fetchone() != (True,):
            assert not any(each.done() for each in both)
        other.rollback()
        assert sorted(each.result() for each in both) == ["", field]


def test_a_quota_is_shown_with_what_is_used_of_it_and_changed_by_admins_alone(
    api: Api,
) -> None:
    none = {"max_priority": None, "max_gpus": None, "max_simulations": None}
    allow(api, max_priority=50, max_replicas=4)
    shown = api.get(f"projects/{PROJECT}", token="team")
    assert shown["spec"]["quota"] == {**none, "max_priority": 50, "max_replicas": 4}
    assert shown["status"] == {"max_replicas": 0, "max_gpus": 0, "max_simulations": 0}
    answer = api.call("PUT", f"projects/{PROJECT}", shown, token="team", If_Match="*")
    assert answer.status_code == 403
    # Without a quota nothing is limited, and a service without a limit makes the sum unknown.
    allow(api)
    assert put(api, "free") == ""
    unknown = {"max_replicas": None, "max_gpus": None, "max_simulations": 0}
    assert api.get(f"projects/{PROJECT}")["status"] == unknown
    assert described(api) == [
        "  priority     not set          -",
        "  replicas     not set  unlimited",
        "  gpus         not set  unlimited",
        "  simulations  not set          0",
    ]
    assert put(api, "free", 4) == ""
    allow(api, max_priority="standard", max_replicas=6, max_gpus=8, max_simulations=2)
    assert submit(api, "nightly") == ""
    assert described(api) == [
        "  priority        10      -",
        "  replicas         6      4",
        "  gpus             8      5",
        "  simulations      2      0",
    ]


def described(api: Api) -> list[str]:
    """Each limit and what is taken of it, as the command prints them."""
    secret = {"PLIMSOLL_TOKEN": api.secrets["team"]}
    said = cli("describe", "project", PROJECT, api=api.forward, environment=secret)
    lines = said.out.splitlines()
    return lines[lines.index("quota:") + 2 :][:4]


def test_a_quota_tells_nothing_of_another_projects_service(api: Api) -> None:
    allow(api, max_priority=10)
    theirs = service("theirs", project="team-b", priority=500)
    api.put("services/theirs", theirs)
    # Were the other's priority counted as this one's own, 400 would pass and 600 would not.
    assert {put(api, "theirs", priority=each) for each in (400, 600)} == {
        "/spec/priority"
    }
