"""A real receiver of webhooks, and what is sent to it."""

import hashlib
import hmac
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from app.api.operations.event_views import event_bytes
from app.db.base.transaction import Engine
from app.serve.webhooks import Sender, send_due
from tests.integration.api_harness import Api
from tests.waiting import PATIENCE_S


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets; answers `status`, once `gate` is open."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.status = 204
        self.location = "/elsewhere"
        self.gate = threading.Event()
        self.gate.set()
        self.heard = threading.Event()
        self.got: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?a=b"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        self.server.heard.set()
        self.server.gate.wait(PATIENCE_S)
        self.send_response(self.server.status)
        self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@contextmanager
def running_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    server = Receiver(tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def webhook(url: str, name: str = "chat", **spec: object) -> dict[str, Any]:
    return {
        "kind": "Webhook",
        "metadata": {"name": name},
        "spec": {"url": url, "kinds": ["ProjectCreated"], **spec},
    }


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """As a receiver verifies it, by docs/webhooks.md."""
    signed = (
        f"{headers['Plimsoll-Webhook-Id']}.{headers['Plimsoll-Webhook-Timestamp']}.".encode()
        + body
    )
    return (
        headers["Plimsoll-Webhook-Signature"]
        == f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"
    )


def project(api: Api, name: str = "team-a") -> None:
    """Something that an event tells of."""
    api.put(f"projects/{name}", {"kind": "Project", "metadata": {"name": name}})


def send(
    api: Api, *, after_s: float = 0.0, limit_s: float = PATIENCE_S, private: bool = True
) -> int:
    """What the leader does, so much later."""
    api.clock.advance(after_s)

    async def run(engine: Engine) -> int:
        sender = Sender(
            engine=engine,
            clock=api.clock,
            body=event_bytes,
            may_be_private=private,
            limit_s=limit_s,
        )
        return await send_due(sender)

    return api.on_engine(run)
