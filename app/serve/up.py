"""Everything on one machine: database, catalogue, first token, API, control loop, and simulated nodes as processes."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import uvloop

from app.base.errors import PlimsollError
from app.base.settings import Settings
from app.base.token_file import keep_token, write_token
from app.catalogue.install import install_catalogue
from app.db.base import migrate
from app.db.base.engine import make_engine
from app.db.base.listen import conninfo
from app.db.base.transaction import Engine, transaction
from app.db.operations import tokens
from app.db.operations.token_secrets import (
    TokenOrder,
    create_locally,
    digest,
    token_id,
)
from app.db.operations.tokens import LIFETIMES
from app.postgres.files import claim, try_flock
from app.postgres.process import DataDirRefused
from app.serve.api_process import serve_plane
from app.serve.connections import open_socket
from app.serve.kept_processes import kept_processes
from app.serve.local_gateway import LOCAL, LocalGateway, find_gateway
from app.serve.plane import Plane, make_plane, on_stop_signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where the person who starts everything reads what there is to say."""

    say: Callable[[str], None]
    is_seen: bool
    """False: it goes to a file or a log."""


FIRST_ROUTER_PORT = 9411
"""Routers of the simulated nodes listen from here on; 9410 is the node agent's own."""
GATEWAY_TOKEN = "local-gateway"
LAUNCH_S = "2"
"""A fake replica's start takes that long: a first service must not wait for one that is only simulated."""
NODE_GPU_TYPES = ("T4", "V100-32GB")


def run_everything(
    settings: Settings, url: str, *, nodes: int, token_path: Path, terminal: Terminal
) -> None:
    """Set the database up where it is new, then serve until SIGTERM or SIGINT.

    `nodes`: simulated nodes to start, each with two GPUs and CPU workers behind a real router. `token_path`: where the
    first admin's token goes, when the database has none.
    Raises PlimsollError where another `up` works with the same data directory, the port is taken, or TLS is asked for.
    """
    if settings.tls_cert is not None:
        raise PlimsollError(
            "`plimsoll up` serves plain HTTP to this machine; `plimsoll serve` serves HTTPS"
        )
    with (
        alone(settings.data_dir, "up.lock", _other_up),
        open_socket(settings) as listening,
    ):
        gateway = find_gateway(settings, terminal.say)
        if gateway is not None:
            settings = settings.model_copy(update={"gateway_url": gateway.url})
        # Before the event loop starts, since Alembic works synchronously; the port is taken already, so that a second
        # start on it fails before it touches the database.
        migrate.upgrade(url)
        plane = make_plane(settings, url)
        start = _LocalStart(nodes=nodes, token_path=token_path, gateway=gateway)
        try:
            uvloop.run(_run(plane, listening, start, terminal))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


@contextlib.contextmanager
def alone(
    data_dir: Path, lock_name: str, other: Callable[[Path], str]
) -> Iterator[Path]:
    """Keep a second process away that works with the same directory; yields the lock's file, which stays.

    `other`: what is said of the first one, by the lock's file. Raises PlimsollError.
    """
    # Also where the database is elsewhere: the embedded one, used later, refuses a directory that is not marked ours.
    try:
        layout = claim(data_dir)
    except (DataDirRefused, OSError) as error:
        raise PlimsollError(
            f"cannot use the data directory {data_dir}: {error}"
        ) from error
    path = layout.root / lock_name
    lock = try_flock(path)
    if lock is None:
        raise PlimsollError(
            f"{other(path)}; stop it first, or choose another directory by --data-dir"
        )
    try:
        yield path
    finally:
        os.close(lock)


def _other_up(lock: Path) -> str:
    """A second `up` would start nodes of the same names and end the first one's token."""
    return f"another `plimsoll up` runs with the data directory {lock.parent}"


async def _run(
    plane: Plane,
    listening: socket.socket,
    start: "_LocalStart",
    terminal: Terminal,
) -> None:
    task = asyncio.current_task()
    assert task is not None
    # An exception of a signal handler would be lost where the interpreter ignores those, as while it forks.
    on_stop_signals(task.cancel)
    say, gateway = terminal.say, start.gateway
    engine = make_engine(plane.url, pool_size=2, application="plimsoll-up")
    try:
        at = plane.clock.now()
        types, networks = await install_catalogue(engine, at)
        if types or networks:
            say(f"catalogue: {types} GPU types and {networks} networks added")
        await first_token(engine, plane, start.token_path, terminal)
        nodes = [_LocalNode.of(plane.settings, 1 + at) for at in range(start.nodes)]
        await _write_tokens(engine, plane, nodes, gateway)
    finally:
        await engine.dispose()
    address = f"http://{plane.settings.host}:{listening.getsockname()[1]}"
    # Without the token: an address that logs in could come from anybody, and log in as them.
    say(f"dashboard: {address}/login")
    say(f"API: {address}/api/v1, documented at {address}/docs; stop with Ctrl-C")
    if plane.settings.database_url is None:
        say(f"SQL: psql '{conninfo(plane.url)}'")
    async with (
        _gateway(gateway, address, terminal),
        _agents(nodes, address, terminal),
    ):
        await serve_plane(plane, listening)


async def first_token(
    engine: Engine, plane: Plane, path: Path, terminal: Terminal
) -> None:
    """Make the first admin's token where there is none, keep it where the CLI looks for it, and show it this once.

    A token that is there already belongs to another control plane and stays; ours goes into the data directory.
    """
    at = plane.clock.now()
    async with transaction(engine) as connection:
        # The holder of an admin's token can make others; a second start must not hand out a new one.
        rows = await tokens.list_rows(connection)
    admins = {row.id for row in rows if row.scope == "admin" and row.is_valid(at)}
    if admins:
        files = (_own_token_path(plane.settings.data_dir), path)
        await asyncio.to_thread(_say_where, admins, files, terminal)
        return
    order = TokenOrder(
        name="first-admin", scope="admin", expires_at=at + LIFETIMES["admin"]
    )
    made = await create_locally(engine, order, at=at)
    await asyncio.to_thread(
        _keep_first, made.secret, path, plane.settings.data_dir, terminal
    )


def _keep_first(secret: str, path: Path, data_dir: Path, terminal: Terminal) -> None:
    ours = _own_token_path(data_dir) if path.exists() else path
    about = keep_token(ours, secret, is_seen=terminal.is_seen)
    terminal.say(f"admin token, {about}")
    if ours != path:
        terminal.say(
            f"  {path} holds another control plane's; for this one: export PLIMSOLL_TOKEN_FILE={ours.absolute()}"
        )


def _say_where(admins: Set[str], files: Sequence[Path], terminal: Terminal) -> None:
    """Name the file that an earlier start left: the commands' own may hold another control plane's token."""
    for file in files:
        # Another user's cannot be read, and is nothing to fail for.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            secret = file.read_text(encoding="utf-8").strip()
            if token_id(digest(secret)) in admins:
                terminal.say(
                    f"admin token, kept by an earlier start: export PLIMSOLL_TOKEN_FILE={file.absolute()}"
                )
                return


def _own_token_path(data_dir: Path) -> Path:
    return data_dir / "admin-token"


async def _write_tokens(
    engine: Engine,
    plane: Plane,
    nodes: Sequence["_LocalNode"],
    gateway: LocalGateway | None,
) -> None:
    """Write the tokens of this start's nodes and gateway into their files; those of earlier starts end."""
    at = plane.clock.now()
    orders = {
        node.token_file: TokenOrder(name=node.name, scope="agent", node=node.name)
        for node in nodes
    }
    if gateway is not None:
        # It only reads where services are.
        orders[gateway.token_file] = TokenOrder(
            name=GATEWAY_TOKEN, scope="viewer", expires_at=at + LIFETIMES["viewer"]
        )
    for file, order in orders.items():
        await _end_earlier(engine, order, at)
        made = await create_locally(engine, order, at=at)
        write_token(file, made.secret)


async def _end_earlier(engine: Engine, order: TokenOrder, at: datetime) -> None:
    async with transaction(engine) as connection:
        for row in await tokens.list_rows(connection):
            is_earlier = (row.name, row.scope) == (order.name, order.scope)
            if is_earlier and row.is_valid(at):
                await tokens.revoke(connection, row.id, at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalNode:
    """A simulated node that is started here."""

    name: str
    folder: Path
    gpu_type: str
    usual_port: int
    """Where its router listens, if no other program does."""

    @property
    def token_file(self) -> Path:
        return self.folder / "token-of-this-start"

    @staticmethod
    def of(settings: Settings, number: int) -> "_LocalNode":
        """The node with that number, from 1 on."""
        name = f"local-{number}"
        return _LocalNode(
            name=name,
            folder=settings.data_dir / "nodes" / name,
            gpu_type=NODE_GPU_TYPES[(number - 1) % len(NODE_GPU_TYPES)],
            usual_port=FIRST_ROUTER_PORT + number - 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalStart:
    """What is started next to the control plane."""

    nodes: int
    token_path: Path
    """Where the first admin's token goes."""
    gateway: LocalGateway | None


@asynccontextmanager
async def _gateway(
    gateway: LocalGateway | None, address: str, terminal: Terminal
) -> AsyncIterator[None]:
    """The gateway as a process of its own; it asks until the API answers, and ends with it."""
    if gateway is None:
        yield
        return
    terminal.say(f"requests: {gateway.url}/v2/models/SERVICE/infer (the gateway)")
    async with kept_processes({"gateway": gateway.command(address)}):
        yield


@asynccontextmanager
async def _agents(
    nodes: Sequence[_LocalNode], address: str, terminal: Terminal
) -> AsyncIterator[None]:
    """Simulated nodes as processes of their own; they try until the API answers, and end with it."""
    ports = [free_port(LOCAL, node.usual_port) for node in nodes]
    programs = {
        f"agent of {node.name}": _agent_command(node, port, address)
        for node, port in zip(nodes, ports, strict=True)
    }
    if nodes:
        taken = sorted({node.usual_port for node in nodes} - {*ports})
        why = (
            f" ({', '.join(map(str, taken))} taken by other programs)" if taken else ""
        )
        terminal.say(
            f"simulated nodes: {len(nodes)}, each with 2 GPUs; requests to ports {', '.join(map(str, ports))}{why}"
        )
    async with kept_processes(programs):
        yield


def free_port(host: str, usual: int) -> int:
    """That port where no program listens there, else any free one. Raises PlimsollError."""
    for port in (usual, 0):
        with (
            contextlib.suppress(OSError),
            socket.create_server((host, port)) as found,
        ):
            return int(found.getsockname()[1])
    raise PlimsollError(f"no free port on {host}")


def _agent_command(node: _LocalNode, port: int, address: str) -> list[str]:
    return [
        *(sys.executable, "-m", "agents.main"),
        *("--url", address, "--node", node.name, "--device", "fake"),
        *("--gpu-type", node.gpu_type, "--gpus", "2"),
        *("--launch-s", LAUNCH_S),
        *("--router-port", str(port), "--log-level", "error"),
        *("--parent", str(os.getpid())),
        *("--state-dir", str(node.folder)),
        *("--token-file", str(node.token_file)),
    ]
