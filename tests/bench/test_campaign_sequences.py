"""Fuzzed calls are judged: what was deleted and is still there, a method too many, a token that is let in."""

import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fastapi import APIRouter

from app.api.application import PREFIX
from app.api.http.auth import ClusterViewer, Operator
from bench.campaign.floods.callers import (
    CALLERS,
    NO_CALLERS,
    api_rules,
    declared_rules,
    is_let_in,
)
from bench.campaign.floods.flood import FloodSpec
from tests.waiting import PATIENCE_S

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


KINDS = ("admin", *(each.name for each in CALLERS), *NO_CALLERS)

ROUTER = APIRouter()


@ROUTER.post("/things")
async def make(_: Operator) -> None:
    """Declares who may: operators, bound ones, too."""


@ROUTER.get(ONE)
async def read(_: ClusterViewer) -> None:
    """Declares who may: no one who is bound to projects."""


@ROUTER.delete(ONE)
async def delete() -> None:
    """Declares nothing, so that no one may."""


RULES = {
    operation.replace(PREFIX, ""): rules
    for operation, rules in declared_rules([ROUTER]).items()
}
"""The document's operations have no prefix."""


def _fuzzer(url: str, *kinds: str) -> Any:
    from bench.campaign.floods import fuzz_calls

    secrets = {kind: "" if kind == "drawn" else f"secret-{kind}" for kind in kinds}
    spec = FloodSpec(url=url, secrets=secrets, seconds=PATIENCE_S, count=10**6, seed=7)
    return fuzz_calls.CallFuzzer(
        spec=spec,
        ends_s=time.monotonic() + PATIENCE_S,
        draw=random.Random(7),
        rules=RULES,
    )


@pytest.mark.thorough
def test_answers_against_the_document_are_broken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import schemathesis
    from schemathesis import GenerationMode

    from bench.campaign.floods import fuzz_calls

    monkeypatch.setattr(fuzz_calls, "SEQUENCES", 15)
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    operation, draw = schema["/things"]["POST"], random.Random(7)
    # What was deleted and is still there. What a seed draws changes with the modules that are loaded: several seeds,
    # until one deletes and reads again.
    deleted = _fuzzer(url, "admin", "drawn")
    for seed in range(60):
        fuzz_calls._sequences(schema, deleted, random.Random(seed))
        if any("use_after_free" in each for each in deleted.result.broken):
            break
    assert deleted.result.sequences >= 15
    assert any("use_after_free" in each for each in deleted.result.broken)
    # A method that the document does not have: the server answers GET and DELETE at every path.
    edges = _fuzzer(url, "admin", "drawn")
    fuzz_calls._call_at_edges(operation, 100, edges, draw)
    broken = [each for each in edges.result.broken if "unsupported_method" in each]
    assert {each.split()[0] for each in broken} == {"GET", "DELETE"}
    # A wrong body that is taken; a wrong query is counted only. Of 40 draws some seeds give none of it.
    wrong = _fuzzer(url, "admin", "drawn")
    fuzz_calls._call(operation, GenerationMode.NEGATIVE, 120, wrong, random.Random(7))
    assert any("negative_data_rejection" in each for each in wrong.result.broken)
    assert wrong.result.wrong_queries_taken > 0


LET_IN = [
    ("admin", "POST", False),
    ("operator", "POST", False),
    ("bound", "POST", False),
    ("viewer", "POST", True),
    ("agent", "POST", True),
    ("drawn", "POST", True),
    ("viewer", "GET", False),
    ("bound", "GET", True),
    ("agent", "GET", True),
    ("admin", "DELETE", True),
    ("operator", "DELETE", True),
]


def test_a_route_that_lets_somebody_in_against_its_rule_is_broken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import schemathesis

    from bench.campaign.floods import fuzz_calls

    schema = schemathesis.openapi.from_dict(DOCUMENT)
    # This server lets everybody in at all three.
    places = {"POST": ("/things", 201), "GET": (ONE, 200), "DELETE": (ONE, 204)}
    for who, method, is_broken in LET_IN:
        monkeypatch.setattr(fuzz_calls, "ADMIN_SHARE", float(who == "admin"))
        fuzzer = _fuzzer(url, "admin", who)
        path, status = places[method]
        body = {"body": {"id": "a"}, "media_type": "application/json"}
        one = {"path_parameters": {"id": "a"}}
        fuzzer.send(schema[path][method].Case(**(body if method == "POST" else one)))
        what = f"{method} {path.format(id='a')} by {who}: {status}"
        assert fuzzer.result.broken == [what] * is_broken, (who, method)


@pytest.mark.parametrize(
    ("operation", "who_may"),
    [
        ("GET /livez", {*KINDS}),
        ("GET /api/v1/services", {"admin", "operator", "bound", "viewer"}),
        ("PUT /api/v1/services/{name}", {"admin", "operator", "bound"}),
        ("GET /api/v1/nodes", {"admin", "operator", "viewer"}),
        ("POST /api/v1/plans/{plan_id}/approve", {"admin", "operator"}),
        ("GET /api/v1/tokens", {"admin"}),
        ("GET /api/v1/auth/whoami", {*KINDS} - {"join", "drawn", "unknown"}),
        ("POST /api/v1/nodes/{name}/sync", {"agent"}),
        ("POST /api/v1/nodes/{name}/enrol", {"join"}),
        # A method that the path does not have.
        ("DELETE /api/v1/nodes/{name}/sync", set()),
    ],
)
def test_each_kind_of_token_is_let_in_where_the_api_says(
    operation: str, who_may: set[str]
) -> None:
    method, path = operation.split()
    rules = api_rules()
    assert {each for each in KINDS if is_let_in(each, method, path, rules)} == who_may
