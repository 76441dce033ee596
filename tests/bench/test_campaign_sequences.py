"""Fuzzed sequences of calls look at what came before: a thing that was deleted and is still there is told."""

import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import schemathesis

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


def test_what_was_deleted_and_is_still_there_is_broken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_calls, "SEQUENCES", 15)
    spec = FloodSpec(url=url, secrets={"admin": "a"}, seconds=60.0, count=10**6, seed=7)
    fuzzer = fuzz_calls.CallFuzzer(spec=spec, ends_s=time.monotonic() + 60.0)
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    fuzz_calls._sequences(schema, fuzzer, random.Random(7))
    assert fuzzer.result.sequences >= 15
    assert any("use_after_free" in each for each in fuzzer.result.broken)
