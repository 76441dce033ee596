"""Who may send requests to a node: the same of the agent's own router and of HAProxy, where that is installed."""

import argparse
import hashlib
import os
import pwd
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import psutil
import pytest
from aiohttp import web

from agents.base.device import DeviceError
from agents.daemon.request_port import front
from agents.main import main, make_parser
from agents.processes.user import WorkerUser
from agents.router.access import RouterAccess, read_access
from agents.router.haproxy import config
from agents.router.haproxy.config import (
    PROXY_USER,
    HaProxySettings,
    ProxyUser,
    find_proxy_user,
    make_config,
)
from agents.router.haproxy.router import HaProxyRouter, open_haproxy
from agents.router.haproxy.state import HaProxyError
from agents.router.haproxy.supervised import PLACES
from agents.router.router import Router
from tests.agents.router_harness import a_route, served
from tests.ports import a_free_port
from tests.waiting import in_loop

pytestmark = pytest.mark.integration

PROGRAM = shutil.which("haproxy", path=f"{os.environ['PATH']}:{PLACES}")
ROUTERS = (
    "own",
    pytest.param(
        "haproxy",
        marks=pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
    ),
)
both = pytest.mark.parametrize("kind", ROUTERS)
ELSEWHERE = (ip_network("10.0.0.0/8"),)
HERE = (*ELSEWHERE, ip_network("127.0.0.0/8"))
ARGUMENTS = ("--url", "http://127.0.0.1:9", "--node", "n1", "--gpu-type", "T4")


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {"chat": frozenset({digest("old"), digest("new")}), "else": frozenset()}


@dataclass(kw_only=True)
class Door:
    """A router with a replica behind it."""

    url: str
    client: aiohttp.ClientSession
    seen: list[dict[str, str]]
    trust: ssl.SSLContext | bool = True

    async def post(self, service: str = "chat", key: str = "") -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = f"{self.url}/v2/models/{service}/infer"
        async with self.client.post(
            url, data=b"{}", headers=headers, ssl=self.trust
        ) as answer:
            await answer.read()
            if answer.status == 401:
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            return answer.status

    async def get(self, path: str) -> int:
        async with self.client.get(f"{self.url}{path}", ssl=self.trust) as answer:
            return answer.status


@asynccontextmanager
async def a_door(kind: str, access: RouterAccess, folder: Path) -> AsyncIterator[Door]:
    seen: list[dict[str, str]] = []

    async def infer(request: web.Request) -> web.Response:
        await request.read()
        seen.append(dict(request.headers))
        return web.Response()

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    replica = web.Application()
    replica.router.add_post("/v2/models/{service}/infer", infer)
    replica.router.add_get("/v2/health/ready", ready)
    port, scheme = a_free_port(), "https" if access.certificate else "http"
    async with served(replica) as address, aiohttp.ClientSession() as client:
        opened = own(port, access) if kind == "own" else haproxy(port, access, folder)
        async with opened as router:
            routes = tuple(a_route(("a", 1.0), service=each) for each in KEYS)
            await router.switch_routes(routes, {"a": address})
            yield Door(url=f"{scheme}://127.0.0.1:{port}", client=client, seen=seen)


@asynccontextmanager
async def own(port: int, access: RouterAccess) -> AsyncIterator[Router]:
    router = Router()
    async with front(SimpleNamespace(router=router), port, access):  # type: ignore[arg-type]
        yield router


@asynccontextmanager
async def haproxy(
    port: int, access: RouterAccess, folder: Path
) -> AsyncIterator[HaProxyRouter]:
    router = await open_haproxy(
        HaProxySettings(port=port, folder=folder, access=access, services=4, replicas=2)
    )
    try:
        yield router
    finally:
        await router.close(keep=False)


@both
@in_loop
async def test_requests_are_taken_from_this_machine_only_unless_the_operator_opens_the_port(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    access = read_access(make_parser().parse_args([*ARGUMENTS]))
    async with a_door(kind, access, tmp_path) as door:
        port = int(door.url.rpartition(":")[2])
        listening = {
            each.laddr.ip
            for each in psutil.net_connections(kind="tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port
        }
        assert listening == {"127.0.0.1"}
        assert await door.post() == 200
    assert "from this machine only; --router-host opens it" in caplog.text


def test_an_open_port_without_any_limit_is_said_to_be_one() -> None:
    assert "anybody who can reach 0.0.0.0" in RouterAccess(host="0.0.0.0").summary()
    assert RouterAccess(host="::", allow=HERE).summary() == "at ::, without TLS"


@both
@in_loop
async def test_requests_from_networks_that_are_not_allowed_are_refused(
    kind: str, tmp_path: Path
) -> None:
    async with a_door(kind, RouterAccess(allow=ELSEWHERE), tmp_path) as door:
        if kind == "own":
            assert await door.post() == await door.get("/v2/health/live") == 403
        else:
            # HAProxy closes the connection before it reads anything of it.
            with pytest.raises(aiohttp.ClientError):
                await door.post()
        assert door.seen == []
    async with a_door(kind, RouterAccess(allow=HERE), tmp_path) as door:
        assert await door.post() == 200


def test_a_network_holds_ipv4_clients_of_a_port_of_both_kinds_and_no_odd_addresses() -> (
    None
):
    access = RouterAccess(allow=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
    admitted = ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "fd00::1%eth0")
    assert all(map(access.admits, admitted))
    assert not any(map(access.admits, ("11.0.0.1", "::ffff:11.0.0.1", "fe80::1", "")))


@both
@in_loop
async def test_a_service_is_served_with_its_own_key_only_and_the_replica_never_sees_it(
    kind: str, tmp_path: Path
) -> None:
    async with a_door(kind, RouterAccess(keys=KEYS), tmp_path) as door:
        assert [await door.post(key=key) for key in ("old", "new")] == [200, 200]
        refused = [await door.post(key=key) for key in ("", "wrong", digest("old"))]
        assert refused == [401, 401, 401]
        # Neither a key of another service nor a service without a line opens anything.
        assert await door.post("else", key="old") == 401
        assert await door.get("/v2/health/live") == 200
        # What its network takes is the service's own affair; whether it is ready, balancers may know.
        assert await door.get("/v2/models/chat") == 401
        assert await door.get("/v2/models/chat/ready") == 200
        assert ["Authorization" in headers for headers in door.seen] == [False, False]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself, with its private key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "chain.pem", folder / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    out = ("-keyout", str(key), "-out", str(chain))
    subprocess.run(
        [openssl, *command.split(), *names, *out], check=True, capture_output=True
    )
    return chain, key


@both
@in_loop
async def test_requests_come_by_tls_where_there_is_a_certificate(
    kind: str, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    chain, key = certificate
    access = RouterAccess(certificate=chain, private_key=key, keys=None)
    async with a_door(kind, access, tmp_path / "haproxy") as door:
        door.trust = ssl.create_default_context(cafile=chain)
        assert await door.post() == 200
        door.url = door.url.replace("https", "http")
        # In clear HAProxy ends the connection, and the agent answers nothing that is HTTP.
        with pytest.raises(aiohttp.ClientError):
            await door.post()


@pytest.mark.skipif(
    PROGRAM is None or os.geteuid() != 0, reason="root's HAProxy becomes another user"
)
@in_loop
async def test_haproxy_takes_requests_as_its_own_user_and_not_as_root(
    tmp_path: Path,
) -> None:
    user = ProxyUser(uid=65534, gid=65534)
    port = a_free_port()
    router = await open_haproxy(
        HaProxySettings(port=port, folder=tmp_path, user=user, services=4, replicas=2)
    )
    try:
        assert psutil.Process(router.pid).uids().real == user.uid
        await router.switch_routes((), {})
    finally:
        await router.close(keep=False)


def options_with(**changes: object) -> argparse.Namespace:
    options = make_parser().parse_args([*ARGUMENTS])
    vars(options).update(changes)
    return options


def test_files_that_cannot_be_used_are_told_before_anything_is_opened(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# of chat\nchat = {digest('a').upper()}\n\nchat={digest('b')}\n")
    read = read_access(options_with(router_keys=keys)).keys
    assert read == {"chat": frozenset({digest("a"), digest("b")})}
    keys.write_text("chat = hunter2\n")
    with pytest.raises(DeviceError, match=r"line 1 of .* must be `SERVICE = SHA-256"):
        read_access(options_with(router_keys=keys))
    with pytest.raises(DeviceError, match=r"--router-keys: .*No such file"):
        read_access(options_with(router_keys=tmp_path / "none"))
    with pytest.raises(DeviceError, match="cannot be used"):
        read_access(
            options_with(router_tls_cert=certificate[0], router_tls_key=certificate[0])
        )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--router-host gpu-1", "'gpu-1' must be an IP address of this machine"),
        ("--router-allow 10.0.0.1/8", "has host bits set; write e.g. 10.0.0.0/8"),
        ("--router-tls-cert a.pem", "--router-tls-cert and --router-tls-key go togeth"),
        ("--device gpu", "--device gpu needs --state-dir"),
        (
            "--device gpu --state-dir s --launcher kubernetes --cluster-node n1",
            "needs --device gpu, --cluster-node and --own-pod",
        ),
        (
            "--router haproxy --device fake --router-port 8081",
            "--router haproxy needs --device gpu and --router-port",
        ),
        (
            "--router haproxy --device gpu --state-dir s",
            "--router haproxy needs --device gpu and --router-port",
        ),
    ],
)
def test_options_that_cannot_hold_are_refused(
    words: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "token").write_text("t")
    with pytest.raises(SystemExit) as ended:
        main([*ARGUMENTS, "--token-file", str(tmp_path / "token"), *words.split()])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_haproxy_gets_all_of_it_in_its_configuration_and_leaves_root(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    settings = HaProxySettings(port=8081, folder=tmp_path)
    assert "\n    bind 127.0.0.1:8081\n" in make_config(settings)
    assert f"\n    timeout check {config.CHECK_TIMEOUT_MS}\n" in make_config(settings)
    access = RouterAccess(
        host="::",
        allow=HERE,
        certificate=certificate[0],
        private_key=certificate[1],
        keys=KEYS,
    )
    user = ProxyUser(uid=4711, gid=4712)
    text = make_config(replace(settings, access=access, user=user))
    assert f"\n    bind [::]:8081 v4v6 ssl crt {tmp_path}/tls.pem\n" in text
    assert "connection reject unless { src 10.0.0.0/8 127.0.0.0/8 }\n" in text
    assert "\n    uid 4711\n    gid 4712\n" in text
    # Another key is another configuration, for which a kept HAProxy is not taken over.
    other = replace(access, keys={"chat": frozenset({digest("third")})})
    assert make_config(replace(settings, access=other, user=user)) != text


def test_replicas_must_not_run_as_haproxys_user(tmp_path: Path) -> None:
    workers = WorkerUser(
        name="w", uid=65534, gid=65534, groups=(), home="/", folders=tmp_path
    )
    assert find_proxy_user(()) is None
    try:
        account = pwd.getpwnam(PROXY_USER)
    except KeyError:
        with pytest.raises(HaProxyError, match="useradd --system haproxy"):
            find_proxy_user((workers,))
        return
    found = ProxyUser(uid=account.pw_uid, gid=account.pw_gid)
    assert find_proxy_user((workers,)) == found
    with pytest.raises(HaProxyError, match="name another one"):
        find_proxy_user((workers, replace(workers, uid=account.pw_uid)))
