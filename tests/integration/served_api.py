"""The application behind a socket of its own, by the machine's own clock."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import httpx2
from fastapi import FastAPI

from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.db.operations.token_secrets import TokenOrder, create_locally
from app.serve.api_process import make_server
from app.serve.plane import make_plane
from tests.integration.kept_solver import keep_solver


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """Where it listens, and an admin's token."""

    url: str
    token: str


@contextmanager
def served_api(database: str) -> Iterator[ControlPlane]:
    """The application on a free port, served from a thread by the machine's own clock."""
    # Who connects before the server is ready waits in the socket's backlog: one answer says that it is.
    listening = socket.create_server(("127.0.0.1", 0))
    server = make_server(make_plane(Settings(), database))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True
    )
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert httpx2.get(f"{url}/livez", timeout=60.0).status_code == 200
        keep_solver(cast(FastAPI, server.config.app))
        yield ControlPlane(url=url, token=asyncio.run(_admin_token(database)))
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()


async def _admin_token(url: str) -> str:
    engine = make_engine(url, pool_size=2)
    try:
        return (
            await create_locally(
                engine, TokenOrder(name="admin", scope="admin"), at=datetime.now(UTC)
            )
        ).secret
    finally:
        await engine.dispose()
