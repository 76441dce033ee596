"""The command `plimsoll gateway` with certificates on all sides: callers, nodes and control plane."""

import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.agents.router.haproxy.test_router import real
from tests.agents.router_harness import served
from tests.certificates import Authority
from tests.ports import a_free_port
from tests.waiting import PATIENCE_S, in_loop

pytestmark = real

LOOK_S = 0.05
PROGRAM = f"""
import sys
from agents.gateway import command
from agents.router.haproxy import supervised
supervised.START_LIMIT_S = {PATIENCE_S}
sys.exit(command.main())
"""
"""`plimsoll gateway`; HAProxy may stand still for a while when it starts."""


def of_server(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """Serves by it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def a_node(name: str) -> web.Application:
    """A node's router that is ready, and answers with its name."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=name)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def a_list(urls: list[str]) -> web.Application:
    """The control plane's list: one service on these nodes."""
    node = {"weight_rps": 1.0, "planned_replicas": 1, "ready_replicas": 1}

    async def answer(_: web.Request) -> web.Response:
        nodes = [{"url": url, **node} for url in urls]
        return web.json_response({"items": [{"service": "chat", "nodes": nodes}]})

    app = web.Application()
    app.router.add_get("/api/v1/endpoints", answer)
    return app


@asynccontextmanager
async def gateway(
    folder: Path, authority: Authority, plane: str
) -> AsyncIterator[tuple[str, Path]]:
    """Its address, and the file with what it logs."""
    port, log = a_free_port(), folder / "gateway.log"
    token = folder / "token"
    token.write_text("t")
    certificate, key = authority.sign("gateway", "IP:127.0.0.1")
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", PROGRAM, "--parent", str(os.getpid())),
            *("--url", plane, "--token-file", str(token)),
            *("--ca-file", str(authority.file), "--node-ca", str(authority.file)),
            *("--tls-cert", str(certificate), "--tls-key", str(key)),
            *("--port", str(port), "--state-dir", str(folder / "state")),
            *("--services", "2", "--nodes", "4"),
            stderr=written,
        )
        try:
            yield f"https://127.0.0.1:{port}", log
        finally:
            process.terminate()
            await process.wait()


@in_loop
async def test_nodes_are_asked_by_tls_and_those_that_nobody_vouches_for_get_nothing() -> (
    None
):
    async def scenario(folder: Path) -> None:
        ours, others = Authority(folder / "ours"), Authority(folder / "others")
        node = of_server(ours.sign("n1", "DNS:n1"))
        unverified = of_server(others.sign("n2", "DNS:n2"))
        api = of_server(ours.sign("api", "IP:127.0.0.1"))
        trust = ssl.create_default_context(cafile=ours.file)
        urls: list[str] = []
        async with (
            served(a_node("ours"), tls=node) as good,
            served(a_node("unverified"), tls=unverified) as bad,
            served(a_node("plain")) as plain,
            served(a_list(urls), tls=api) as plane,
            gateway(folder, ours, plane) as (address, log),
            aiohttp.ClientSession() as client,
        ):

            async def ask() -> tuple[int, str]:
                """Status 0: nothing listens yet."""
                url = f"{address}/v2/models/chat/infer"
                try:
                    async with client.post(url, data=b"{}", ssl=trust) as answer:
                        return answer.status, await answer.text()
                except aiohttp.ClientConnectorError:
                    return 0, ""

            urls += [bad, plain]
            no_tls = "with --node-ca, all nodes must accept requests over TLS"
            while no_tls not in log.read_text():  # noqa: ASYNC110  another process
                await asyncio.sleep(LOOK_S)
            # One of them is not verified, the other speaks no TLS.
            while (await ask())[0] != 503:  # noqa: ASYNC110  HAProxy does not tell
                await asyncio.sleep(LOOK_S)
            urls.append(good)
            while await ask() != (200, "ours"):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            assert {await ask() for _ in range(50)} == {(200, "ours")}
            # Callers who trust another authority do not take it for theirs.
            other_trust = ssl.create_default_context(cafile=others.file)
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await client.post(f"{address}/v2/health/live", ssl=other_trust)

    # A socket's path must be short.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        await scenario(Path(folder))
