"""Receivers of webhooks over TLS, behind names that change their address, and with redirects."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.api.operations.event_views import event_bytes
from app.db.base.engine import make_engine
from app.serve.webhooks import Refused, Sender, authorities, send_due
from tests.integration.api_harness import Api, Prepared
from tests.integration.receivers import Receiver, project, running_receiver, webhook

pytestmark = pytest.mark.integration
NAME = "hooks.example.com"
PUBLIC = "93.184.215.14"


class Network(asyncio.SelectorEventLoop):
    """A loop with a name service of its own, which takes down where connections go; none leaves this machine."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.called: list[str] = []

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Our name has the next answer, the last for ever, or no address; others are those of the system."""
        if host not in (NAME, NAME.encode()):
            return await super().getaddrinfo(host, port, **options)
        if not self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:  # type: ignore[override]
        """Only to this machine."""
        self.called.append(str(host))
        if host == PUBLIC:
            raise ConnectionRefusedError("no one is called here")
        return await super().create_connection(factory, host, port, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """An authority of our own, and what it signed."""

    folder: Path
    asked_names: list[str | None] = field(default_factory=list)
    """What receivers were asked for by SNI."""

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    def tls(self) -> ssl.SSLContext:
        """Trusts our authority alone."""
        return ssl.create_default_context(cafile=str(self.authority))

    def server(self, name: str) -> ssl.SSLContext:
        """A receiver's side with a certificate for that name."""
        by = "-CA authority.pem -CAkey authority.key"
        self.sign(name, "-addext", f"subjectAltName=DNS:{name}", *by.split())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            self.folder / f"{name}.pem", self.folder / f"{name}.key"
        )
        context.sni_callback = lambda _socket, asked, _context: self.asked_names.append(
            asked
        )
        return context

    def sign(self, name: str, *options: str) -> None:
        """NAME.pem with its key; without `options` it signs itself."""
        request = f"openssl req -x509 -days 365 -subj /CN={name} -newkey ec -nodes"
        files = (
            f"-pkeyopt ec_paramgen_curve:prime256v1 -keyout {name}.key -out {name}.pem"
        )
        subprocess.run(
            [*request.split(), *files.split(), *options],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Our authority."""
    made = Certificates(folder=tmp_path_factory.mktemp("certificates"))
    made.sign("authority")
    return made


@pytest.fixture
def api(no_fleet: Prepared) -> Iterator[Api]:
    with no_fleet.running_api() as running:
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one sending."""

    arrived: int
    called: Sequence[str]
    error: str | None


def send(
    api: Api,
    *answers: str,
    tls: Callable[[], ssl.SSLContext] | None = None,
    private: bool = True,
) -> Sent:
    """What the leader does where our name has these addresses, one after the other."""
    network = Network(*answers)

    async def work() -> int:
        engine = make_engine(api.url, pool_size=4)
        sender = Sender(
            engine=engine,
            clock=api.clock,
            body=event_bytes,
            may_be_private=private,
            tls=tls,
        )
        try:
            return await send_due(sender)
        finally:
            await engine.dispose()

    def run() -> int:
        with asyncio.Runner(loop_factory=lambda: network) as runner:
            return runner.run(work())

    with ThreadPoolExecutor(1) as thread:
        arrived = thread.submit(run).result()
    # The database is connected to by the loop's sockets, not by create_connection.
    return Sent(
        arrived=arrived,
        called=network.called,
        error=api.get("webhooks/chat")["status"]["last_error"],
    )


def address(receiver: Receiver, scheme: str = "https") -> str:
    return f"{scheme}://{NAME}:{receiver.server_port}/hook"


def test_a_receiver_with_a_certificate_of_ones_own_authority_is_asked_for_by_its_name(
    api: Api, signed: Certificates
) -> None:
    with running_receiver(signed.server(NAME)) as receiver:
        api.put("webhooks/chat", webhook(address(receiver)))
        project(api)
        signed.asked_names.clear()
        sent = send(api, "127.0.0.1", tls=signed.tls)
    assert (sent.arrived, sent.error, sent.called) == (1, None, ["127.0.0.1"])
    assert signed.asked_names == [NAME]
    assert receiver.got[0][0]["Host"] == f"{NAME}:{receiver.server_port}"


@pytest.mark.parametrize(
    ("name", "is_trusted", "why"),
    [
        (NAME, False, "unable to get"),
        (
            "other.example.com",
            True,
            f"Hostname mismatch, certificate is not valid for '{NAME}'.",
        ),
    ],
    ids=["of an unknown authority", "for another name"],
)
def test_another_certificate_is_refused_in_words(
    api: Api, signed: Certificates, name: str, is_trusted: bool, why: str
) -> None:
    with running_receiver(signed.server(name)) as receiver:
        api.put("webhooks/chat", webhook(address(receiver)))
        project(api)
        sent = send(api, "127.0.0.1", tls=signed.tls if is_trusted else None)
    assert (sent.arrived, receiver.got) == (0, [])
    refusal = f"the receiver's certificate is not accepted: {why}"
    assert sent.error is not None and sent.error.startswith(refusal)


def test_authorities_are_those_of_the_environment(
    signed: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(signed.authority))
    found = authorities.__wrapped__().get_ca_certs()
    assert [
        dict(part[0] for part in each["subject"])["commonName"] for each in found
    ] == ["authority"]
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/authorities.pem")
    with pytest.raises(Refused, match="SSL_CERT_FILE"):
        authorities.__wrapped__()


def test_a_name_that_turns_private_after_it_was_checked_gets_nothing(api: Api) -> None:
    with running_receiver() as receiver:
        api.put("webhooks/chat", webhook(address(receiver, "http")))
        project(api)
        sent = send(api, PUBLIC, "127.0.0.1", private=False)
    assert (sent.arrived, receiver.got) == (0, [])
    assert sent.called == [PUBLIC]


def test_a_name_without_an_address_is_said(api: Api) -> None:
    api.put("webhooks/chat", webhook(f"https://{NAME}/"))
    project(api)
    assert (
        send(api).error == "the host's address is not found: Name or service not known"
    )


def test_a_redirect_is_not_followed(api: Api) -> None:
    with running_receiver() as receiver, running_receiver() as inside:
        receiver.status, receiver.location = 307, inside.url
        api.put("webhooks/chat", webhook(receiver.url))
        project(api)
        sent = send(api, "127.0.0.1")
    assert (sent.arrived, sent.error) == (0, "answered 307")
    assert (len(receiver.got), inside.got) == (1, [])
