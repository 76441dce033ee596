"""Bodies that are longer than a route needs are refused before they are parsed, and errors are named up to a limit."""

import json
from collections.abc import Iterator

import pytest
from httpx2 import Response

from app.api.fleet.observations import MAX_OBSERVATION_BYTES
from app.api.http.body import MANIFEST_BYTES, SMALL_BODY_BYTES
from app.api.http.errors import MAX_FIELDS
from tests.integration.api_harness import (
    V1,
    Api,
    Prepared,
    observation,
    profile,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


def sent(
    api: Api, method: str, path: str, body: bytes, token: str = "admin"
) -> Response:
    headers = {
        "Authorization": f"Bearer {api.secrets[token]}",
        "Content-Type": "application/json",
    }
    return api.client.request(method, f"{V1}/{path}", content=body, headers=headers)


def id_of(api: Api, name: str) -> str:
    return next(
        str(each["id"]) for each in api.get("tokens")["items"] if each["name"] == name
    )


def unknown_fields(count: int) -> bytes:
    return json.dumps({f"a{number:05}": 0 for number in range(count)}).encode()


def test_a_body_of_a_hundred_thousand_unknown_fields_is_refused_unread(
    api: Api,
) -> None:
    body = unknown_fields(100_000)
    own = id_of(api, "viewer")
    for path, token in (
        (f"tokens/{own}/rotate", "viewer"),
        ("tokens", "admin"),
        ("plans/compare", "operator"),
    ):
        answer = sent(api, "POST", path, body, token)
        assert answer.status_code == 413, path
        assert f"{SMALL_BODY_BYTES} bytes" in answer.json()["detail"]
    answer = sent(api, "PUT", "services/chat", body, "operator")
    assert answer.status_code == 413
    assert f"{MANIFEST_BYTES} bytes" in answer.json()["detail"]


def test_of_thousands_of_wrong_fields_the_first_are_named_and_the_rest_counted(
    api: Api,
) -> None:
    own = id_of(api, "viewer")
    answer = sent(
        api, "POST", f"tokens/{own}/rotate", unknown_fields(4_000), token="viewer"
    )
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == MAX_FIELDS
    assert answer.json()["detail"].endswith(f"; and {4_000 - MAX_FIELDS} more")
    assert len(answer.content) < 16_384


def test_a_long_body_in_which_nearly_all_is_wrong_is_refused_as_a_whole(
    api: Api,
) -> None:
    labels = {f"label-{number:05}": 0 for number in range(20_000)}
    manifest = service()
    manifest["metadata"]["labels"] = labels
    answer = sent(api, "PUT", "services/chat", json.dumps(manifest).encode())
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")
    assert answer.json()["detail"].startswith("20000 fields are invalid")
    what_if = json.dumps({"services": [manifest]}).encode()
    assert sent(api, "POST", "plans/preview", what_if).status_code == 400


def test_an_observation_is_no_longer_than_the_protocol_allows(api: Api) -> None:
    report = json.dumps(observation()).encode()
    token = api.token_of("n1")
    # With a query and without: they come by different routes.
    for query in ("", "?wait_s=0"):
        path = f"nodes/n1/sync{query}"
        assert sent(api, "POST", path, report, token).status_code == 200
        space = b" " * MAX_OBSERVATION_BYTES
        assert sent(api, "POST", path, report + space, token).status_code == 413


def test_what_needs_long_bodies_takes_them(api: Api) -> None:
    # JSON may have as much white space as it likes.
    space = b" " * MANIFEST_BYTES
    table = json.dumps(profile()).encode()
    stored = api.call("PUT", "profiles/resnet50/T4", profile(), If_Match="*")
    assert stored.status_code == 200
    assert sent(api, "PUT", "profiles/resnet50/T4", table + space).status_code == 428
    manifest = json.dumps(service()).encode()
    longer = manifest + b" " * SMALL_BODY_BYTES
    assert sent(api, "PUT", "services/chat", longer).status_code == 201
