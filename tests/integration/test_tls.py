"""TLS on both sides: the API's certificate, and those of nodes; the authority is made by openssl."""

import argparse
import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from agents.base.clock import ScaledClock
from agents.base.protocol import Observation
from agents.daemon.build import make_transport
from agents.sync.transport import ControlPlaneSilent, NotAuthorised
from app.base.settings import Settings
from app.serve.api_process import make_server
from app.serve.plane import make_plane
from tests.certificates import Authority
from tests.integration.api_harness import observation
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates of the API and of a node."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    authority.sign("api", "IP:127.0.0.1")
    node, key = authority.sign("n1", "DNS:n1")
    # One file with both, as the agent takes it.
    node.write_text(node.read_text() + key.read_text())
    return folder


@pytest.fixture
def address(
    database: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The API behind TLS that asks for certificates."""
    # It is still starting when it is first asked.
    monkeypatch.setattr("agents.sync.transport.ANSWER_TIMEOUT_S", PATIENCE_S)
    listening = socket.create_server(("127.0.0.1", 0))
    settings = Settings(
        tls_cert=certificates / "api.pem",
        tls_key=certificates / "api.key",
        tls_client_ca=certificates / "ca.pem",
    )
    server = make_server(make_plane(settings, database))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True
    )
    thread.start()
    try:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()


async def _sync(
    address: str, *, ca_file: Path | None, client_cert: Path | None
) -> None:
    options = argparse.Namespace(
        url=address,
        node="n1",
        speed=1.0,
        metrics_host="127.0.0.1",
        metrics_port=0,
        ca_file=ca_file,
        client_cert=client_cert,
        state_dir=None,
    )
    transport = make_transport(
        options, ScaledClock(speed=1.0), "plim_agent_unknown", {}
    )
    try:
        await transport.exchange(
            msgspec.convert(observation(), Observation), wait_s=0.0
        )
    finally:
        await transport.close()


def test_an_agent_with_a_certificate_reaches_the_api_and_one_without_does_not(
    address: str, certificates: Path
) -> None:
    authority, node = certificates / "ca.pem", certificates / "n1.pem"
    # Past TLS it is the token that is looked at.
    with pytest.raises(NotAuthorised):
        asyncio.run(_sync(address, ca_file=authority, client_cert=node))
    with pytest.raises(ControlPlaneSilent):
        asyncio.run(_sync(address, ca_file=authority, client_cert=None))


def test_an_agent_does_not_talk_to_who_has_no_certificate_of_its_authority(
    address: str, certificates: Path
) -> None:
    with pytest.raises(ControlPlaneSilent, match="certificate"):
        asyncio.run(_sync(address, ca_file=None, client_cert=certificates / "n1.pem"))
    with pytest.raises(httpx2.TransportError):
        httpx2.get(address.replace("https", "http"), timeout=10.0)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"tls_cert"}, "tls_cert and tls_key go together"),
        ({"tls_key"}, "tls_cert and tls_key go together"),
        ({"tls_client_ca"}, "needs tls_cert"),
    ],
)
def test_half_of_the_tls_settings_is_refused(
    certificates: Path, given: set[str], wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        Settings(**dict.fromkeys(given, certificates / "ca.pem"))  # type: ignore[arg-type]
