"""Fuzzed calls are judged: what was deleted and is still there, a method too many, a token that is let in."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import schemathesis
from schemathesis import GenerationMode

from bench.campaign.floods import fuzz_calls
from bench.campaign.floods.flood import FloodSpec

ONE = "/things/{id}"
THING = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
BODY = {"application/json": {"schema": THING}}
OF_ONE = {
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
}
LINKS = {
    name: {"operationId": name, "parameters": {"id": "$response.body#/id"}}
    for name in ("read", "delete")
}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Things", "version": "1"},
    "paths": {
        "/things": {
            "post": {
                "operationId": "make",
                "requestBody": {"required": True, "content": BODY},
                "parameters": [
                    {"name": "limit", "in": "query", "schema": {"type": "integer"}}
                ],
                "responses": {
                    "201": {"description": "made", "content": BODY, "links": LINKS}
                },
            }
        },
        ONE: {
            "get": {
                "operationId": "read",
                **OF_ONE,
                "responses": {"200": {"description": "it", "content": BODY}},
            },
            "delete": {
                "operationId": "delete",
                **OF_ONE,
                "responses": {"204": {"description": "gone"}},
            },
        },
    },
}


class Things(BaseHTTPRequestHandler):
    """Says that it deletes, and deletes nothing."""

    def do_POST(self) -> None:
        self._answer(201, b'{"id": "a"}')

    def do_GET(self) -> None:
        self._answer(200, b'{"id": "a"}')

    def do_DELETE(self) -> None:
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Things) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


KINDS = ("admin", "viewer", "agent", "drawn")


def _fuzzer(url: str, *kinds: str) -> fuzz_calls.CallFuzzer:
    secrets = {kind: "" if kind == "drawn" else f"secret-{kind}" for kind in kinds}
    spec = FloodSpec(url=url, secrets=secrets, seconds=60.0, count=10**6, seed=7)
    return fuzz_calls.CallFuzzer(
        spec=spec, ends_s=time.monotonic() + 60.0, draw=random.Random(7)
    )


def test_what_was_deleted_and_is_still_there_is_broken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_calls, "SEQUENCES", 15)
    fuzzer = _fuzzer(url, "admin", "drawn")
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    fuzz_calls._sequences(schema, fuzzer, random.Random(7))
    assert fuzzer.result.sequences >= 15
    assert any("use_after_free" in each for each in fuzzer.result.broken)


def test_a_method_that_the_document_does_not_have_must_be_refused(url: str) -> None:
    fuzzer = _fuzzer(url, "admin", "drawn")
    operation = schemathesis.openapi.from_dict(DOCUMENT)["/things"]["POST"]
    fuzz_calls._call_at_edges(operation, 100, fuzzer, random.Random(7))
    # The server answers GET and DELETE at every path.
    broken = [each for each in fuzzer.result.broken if "unsupported_method" in each]
    assert {each.split()[0] for each in broken} == {"GET", "DELETE"}


def test_a_wrong_body_that_is_taken_is_broken_and_a_wrong_query_is_counted(
    url: str,
) -> None:
    fuzzer = _fuzzer(url, "admin", "drawn")
    operation = schemathesis.openapi.from_dict(DOCUMENT)["/things"]["POST"]
    # Of 40 draws some seeds give none whose query alone is wrong, and what a seed draws changes with the sources.
    fuzz_calls._call(operation, GenerationMode.NEGATIVE, 120, fuzzer, random.Random(7))
    assert any("negative_data_rejection" in each for each in fuzzer.result.broken)
    assert fuzzer.result.wrong_queries_taken > 0


@pytest.mark.parametrize("who", ["viewer", "agent", "drawn"])
def test_a_token_that_is_let_in_where_it_may_not_is_broken(
    url: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(fuzz_calls, "ADMIN_SHARE", 0.0)
    fuzzer = _fuzzer(url, "admin", who)
    operation = schemathesis.openapi.from_dict(DOCUMENT)["/things"]["POST"]
    fuzzer.send(operation.Case(body={"id": "a"}, media_type="application/json"))
    assert fuzzer.result.broken == [f"POST /things by {who}: 201"]


@pytest.mark.parametrize(
    ("who", "method", "path", "is_let_in"),
    [
        ("drawn", "GET", "/livez", True),
        ("unknown", "GET", "/api/v1/services", False),
        ("viewer", "GET", "/api/v1/services", True),
        ("viewer", "PUT", "/api/v1/services/{name}", False),
        ("agent", "POST", "/api/v1/nodes/{name}/sync", True),
        ("agent", "POST", "/api/v1/nodes/{name}/enrol", False),
        ("join", "POST", "/api/v1/nodes/{name}/enrol", True),
        ("join", "GET", "/api/v1/auth/whoami", False),
        ("bound", "PUT", "/api/v1/services/{name}", True),
    ],
)
def test_each_kind_of_token_is_let_in_where_it_may(
    who: str, method: str, path: str, is_let_in: bool
) -> None:
    assert fuzz_calls.is_let_in(who, method, path) == is_let_in


def test_most_calls_have_an_admins_token_and_the_same_seed_draws_the_same() -> None:
    drawn = [fuzzer.caller() for fuzzer in [_fuzzer("", *KINDS)] for _ in range(1000)]
    again = [fuzzer.caller() for fuzzer in [_fuzzer("", *KINDS)] for _ in range(1000)]
    assert drawn == again
    counts = Counter(drawn)
    assert 760 < counts["admin"] < 840
    assert all(40 < counts[kind] < 100 for kind in KINDS[1:])
