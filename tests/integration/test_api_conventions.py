"""Conventions of the API: preconditions, cursors, idempotency, request ids, problems, audit, health, metrics."""

from collections.abc import Iterator

import pytest

from tests.integration.api_harness import (
    Api,
    Prepared,
    gpu_type,
    network,
    node,
    profile,
    service,
)

pytestmark = pytest.mark.integration

OBJECTS = {
    "projects/team-c": {
        "kind": "Project",
        "metadata": {"name": "team-c"},
        "spec": {"description": "see"},
    },
    "gpu-types/V100": gpu_type("V100", sm_count=80),
    "nodes/n2": node("n2"),
    "networks/bert": {
        **network("bert"),
        "spec": {"description": "text", "parameter_bytes": 440_000_000},
    },
    "profiles/resnet50/T4": profile(run_ms=5.0),
    "services/chat": service(anti_affinity=["edge"]),
    "tasks/nightly": {
        "kind": "Task",
        "metadata": {"name": "nightly"},
        "spec": {
            "kind": "offline",
            "network": "resnet50",
            "batch": 8,
            "inputs": 4001,
            "deadline_after_s": 60.0,
        },
    },
    "policies/default": {
        "kind": "Policy",
        "metadata": {"name": "default"},
        "spec": {"period_s": 7.0},
    },
}
DELETABLE = [path for path in OBJECTS if not path.startswith(("profiles", "policies"))]


@pytest.fixture(scope="module")
def seen(small_fleet: Prepared) -> Iterator[Api]:
    """An API that tests of this module only read."""
    with small_fleet.running_api() as running:
        for name in ("alpha", "beta", "gamma", "delta", "eps"):
            running.put(f"services/{name}", service(name))
        yield running


@pytest.mark.parametrize("path", OBJECTS)
def test_an_object_is_written_answered_replaced_and_deleted(
    api: Api, path: str
) -> None:
    notes = {"labels": {"tier": "web"}, "annotations": {"why": "a test"}}
    manifest = dict(OBJECTS[path])
    manifest["metadata"] = {**manifest["metadata"], **notes}
    api.put(path, manifest)
    stored = api.get(path)
    assert stored["metadata"].items() >= notes.items()
    for name, value in manifest["spec"].items():
        if name == "slo":
            # What is for services of the other kind is null, and the error budget is spent where nothing is stated.
            stated = {key: each for key, each in stored["spec"]["slo"].items() if each}
            assert stated == {**value, "budget": "spend"}
        elif name == "price_usd_per_hour":
            assert float(stored["spec"][name]) == float(value)
        else:
            assert stored["spec"][name] == value
    # A replacement must say which state it saw.
    tag = api.call("GET", path).headers["ETag"]
    metadata = {**manifest["metadata"], "annotations": {"a": "b"}}
    changed = {**manifest, "metadata": metadata}
    assert api.status("PUT", path, changed) == 428
    assert api.status("PUT", path, changed, If_Match='"999"') == 412
    assert api.status("PUT", path, changed, If_None_Match="*") == 412
    assert api.status("PUT", path, changed, If_Match=tag) == 200
    assert api.get(path)["metadata"]["annotations"] == {"a": "b"}
    if path not in DELETABLE:
        return
    # A deleted object is gone, and its name is free.
    assert api.status("DELETE", path) == 428
    assert api.status("DELETE", path, If_Match=tag) == 412
    tag = api.call("GET", path).headers["ETag"]
    assert api.status("DELETE", path, If_Match=tag) == 204
    assert api.status("GET", path) == 404
    assert api.status("DELETE", path, If_Match="*") == 404
    assert api.status("PUT", path, OBJECTS[path], If_Match="*") == 412
    assert api.status("PUT", path, OBJECTS[path], If_None_Match="*") == 201


def test_what_others_refer_to_cannot_be_deleted(api: Api) -> None:
    api.put("services/chat", service())
    for path in ("gpu-types/T4", "networks/resnet50", "projects/default"):
        answer = api.call("DELETE", path, If_Match="*")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), path


def test_every_change_is_in_the_audit_with_its_author_and_what_was_before(
    api: Api,
) -> None:
    who = {"token": "operator", "X_Request_ID": "my-request.1"}
    api.call("PUT", "services/chat", service(), **who)
    line = api.get("events?subject=service/chat")["items"][0]
    assert line["kind"] == "ServiceCreated"
    assert (line["actor"], line["request_id"]) == ("token/operator", "my-request.1")
    assert line["before"] is None and line["after"]["spec"]["network"] == "resnet50"
    # An equal replacement keeps the generation and leaves no line.
    before = len(api.get("events")["items"])
    assert api.put("services/chat", service()).json()["metadata"]["generation"] == 1
    assert len(api.get("events")["items"]) == before
    changed = api.put("services/chat", service(latency_ms=90.0)).json()
    assert changed["metadata"]["generation"] == 2
    # A new price is answered, and the old one kept in the audit.
    api.clock.advance(60.0)
    api.put("gpu-types/T4", gpu_type(price_usd_per_hour="0.40"))
    assert api.get("gpu-types/T4")["spec"]["price_usd_per_hour"] == "0.4"
    change = api.get("events?kind=GpuTypeChanged")["items"][0]
    assert change["before"]["spec"]["price_usd_per_hour"] == "0.35"
    assert change["after"]["spec"]["price_usd_per_hour"] == "0.4"


def test_pages_follow_each_other_without_a_gap_while_others_write(api: Api) -> None:
    for name in ("a1", "a3", "a5", "a7"):
        api.put(f"services/{name}", service(name))
    first = api.get("services?limit=2")
    api.put("services/a2", service("a2"))
    api.put("services/a6", service("a6"))
    second = api.get(f"services?limit=3&cursor={first['next_cursor']}")
    names = [item["metadata"]["name"] for item in first["items"] + second["items"]]
    assert names == ["a1", "a3", "a5", "a6", "a7"]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    "path",
    [
        "projects",
        "services",
        "tasks",
        "gpus",
        "profiles",
        "events",
        "tokens",
        "plans",
        "nodes",
        "reports/node_health",
    ],
)
def test_pages_of_one_show_the_same_as_one_page(seen: Api, path: str) -> None:
    whole = seen.get(f"{path}?limit=500")
    rows, cursor = [], ""
    for _ in range(200):
        page = seen.get(f"{path}?limit=1{cursor}")
        rows += page.get("items") or page.get("rows") or []
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert rows == (whole.get("items") or whole.get("rows") or [])


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=501", "limit=x", "cursor=!!", "cursor=bm90LW91cnM", "cursor="],
)
def test_a_wrong_page_is_refused(seen: Api, query: str) -> None:
    assert seen.status("GET", f"services?{query}") == 422
    assert seen.status("GET", f"plans?{query}") == 422
    # A cursor of names is not one of numbers.
    cursor = seen.get("services?limit=1")["next_cursor"]
    assert seen.status("GET", f"plans?cursor={cursor}") == 422


def test_services_are_chosen_by_label_and_project(api: Api) -> None:
    labelled = service("one")
    labelled["metadata"]["labels"] = {"tier": "web", "lang": "en"}
    api.put("services/one", labelled)
    api.put("services/two", service("two", project="team-a"))

    def names(query: str) -> list[str]:
        return api.names(f"services?{query}")

    assert names("label_selector=tier=web,lang=en") == ["one"]
    assert names("label_selector=tier=batch") == []
    assert names("project=team-a") == ["two"]
    assert api.status("GET", "services?label_selector=tier") == 422


def test_a_repeated_post_with_a_key_is_answered_from_memory(api: Api) -> None:
    wanted = {"name": "ci", "scope": "viewer"}
    first = api.call("POST", "tokens", wanted, Idempotency_Key="key-1")
    again = api.call("POST", "tokens", wanted, Idempotency_Key="key-1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == {**first.json(), "secret": None}
    assert (
        "Idempotency-Replayed" in again.headers
        and "Idempotency-Replayed" not in first.headers
    )
    other = api.call(
        "POST", "tokens", {**wanted, "scope": "operator"}, Idempotency_Key="key-1"
    )
    assert other.status_code == 422 and "Idempotency-Key" in other.json()["detail"]
    names = [item["name"] for item in api.get("tokens")["items"]]
    assert names.count("ci") == 1


def test_a_failed_post_gives_its_key_back_and_keys_of_different_callers_do_not_meet(
    api: Api,
) -> None:
    assert api.status("POST", "nodes/n9/cordon", Idempotency_Key="k") == 404
    api.put("nodes/n9", node("n9"))
    answer = api.call("POST", "nodes/n9/cordon", Idempotency_Key="k")
    assert answer.status_code == 200 and answer.json()["spec"]["cordoned"] is True
    other = api.call("POST", "nodes/n9/cordon", token="operator", Idempotency_Key="k")
    assert "Idempotency-Replayed" not in other.headers


def test_request_ids_come_back_and_odd_ones_are_replaced(seen: Api) -> None:
    def answered(asked: str, token: str | None = "admin") -> str:
        answer = seen.call("GET", "services", token=token, X_Request_ID=asked)
        assert token or answer.json()["request_id"] == asked
        return str(answer.headers["X-Request-ID"])

    assert answered("abc-1") == "abc-1"
    assert len(answered("no spaces please")) == 32
    assert answered("abc-2", token=None) == "abc-2"


@pytest.mark.parametrize(
    ("tried", "path", "methods"),
    [
        ("OPTIONS PATCH TRACE DELETE", "/api/v1/services", "GET"),
        ("OPTIONS PATCH TRACE", "/api/v1/services/chat", "DELETE, GET, PUT"),
        ("OPTIONS PATCH TRACE", "/livez", "GET, HEAD"),
        # A pattern of others fits these names, too.
        ("GET", "/api/v1/plans/preview", "POST"),
        ("DELETE", "/api/v1/simulations/examples", "GET"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_told_all_that_it_has(
    seen: Api, tried: str, path: str, methods: str
) -> None:
    headers = {"Authorization": f"Bearer {seen.secrets['admin']}"}
    for method in tried.split():
        answer = seen.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)
        assert answer.json()["code"] == "method-not-allowed"
    assert seen.client.get("/api/v1/nothing", headers=headers).json()["status"] == 404


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/metrics"])
def test_a_probe_may_ask_with_head_and_is_told_what_get_is(
    seen: Api, path: str
) -> None:
    get, head = seen.client.get(path), seen.client.head(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_readiness_names_its_parts(seen: Api) -> None:
    assert seen.client.get("/livez").json()["status"] == "ok"
    assert seen.client.get("/readyz?verbose=true").json()["checks"] == dict.fromkeys(
        ["database", "schema", "commands", "solver"], "ok"
    )
    assert seen.client.get("/healthz").status_code == 200


def test_metrics_have_route_templates_and_our_prefix(seen: Api) -> None:
    seen.call("GET", "services/alpha")
    seen.call("GET", "services/no-such-service")
    text = seen.client.get("/metrics").text
    names = {
        line.split("{")[0].split(" ")[0]
        for line in text.splitlines()
        if not line.startswith("#")
    }
    assert names and all(name.startswith("plimsoll_") for name in names)
    assert 'route="/services/{name}",status="404"' in text
    assert "no-such-service" not in text


def test_a_body_over_the_limit_is_refused_however_it_comes(
    small_fleet: Prepared,
) -> None:
    with small_fleet.running_api(request_limit_bytes=2000) as api:
        headers = {
            "Authorization": f"Bearer {api.secrets['admin']}",
            "Content-Type": "application/json",
        }
        for content in (b"x" * 3000, (b"x" * 500 for _ in range(6))):
            path = "/api/v1/services/chat"
            answer = api.client.put(path, content=content, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


def test_a_problem_names_type_place_and_field(seen: Api) -> None:
    wrong = service("chat")
    wrong["spec"]["slo"]["latency_ms"] = -1
    wrong["spec"]["colour"] = "red"
    answer = seen.call("PUT", "services/chat", wrong)
    problem = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (problem["status"], problem["code"]) == (422, "invalid")
    assert problem["type"] == "urn:plimsoll:problem:invalid"
    assert problem["instance"] == "/api/v1/services/chat"
    assert {entry["pointer"] for entry in problem["errors"]} == {
        "/spec/slo/latency_ms",
        "/spec/colour",
    }
