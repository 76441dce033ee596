"""A FakeApi on a socket, for commands that run in a process of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

from tests.app.cli.fake_api import FakeApi


class Handler(BaseHTTPRequestHandler):
    """Answers as a FakeApi does, when it may."""

    api = FakeApi()
    may_answer = threading.Event()

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.may_answer.wait(30.0)
        url = f"http://any{self.path}"
        answer = self.api(httpx2.Request(self.command, url, content=body))
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def served(api: FakeApi, *, answers: bool = True) -> Iterator[str]:
    """The address of a control plane that answers, or that takes requests and does not."""
    handler = type("Served", (Handler,), {"api": api, "may_answer": threading.Event()})
    if answers:
        handler.may_answer.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        handler.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
