"""The fake MPS control daemon: answers as release 550 does (or 535), and lets processes be its clients.

    Daemon ── Server (at most one, of one UID; a child process, so that its PID exists) ── Client (a connected process)

One message per packet on the daemon's sockets, JSON both ways but for commands, which are text:

    command 0 ps                                    → 0, and each line of the answer behind a line feed
    {"client": {"pid", "uid", "percent", ...}}      → {"percent": 37.5} or {"error": 807}; later perhaps {"error": 810}
    {"lab": "fault", "stays": false}                → {}: a client has broken the GPU

A server is INITIALIZING until its program, found in PATH, prints a line. What the real daemon's environment does not
hold, all optional:

    FAKE_MPS_RELEASE      535 or 550 (the default)
    FAKE_MPS_UID          whose daemon this is; of a command: who gives it
    FAKE_MPS_QUIT_S       how long `quit` takes beyond its wait for clients
    FAKE_MPS_LINGER_S     how long the lock is held after `quit` was answered
    FAKE_MPS_TERMINATE    what `terminate_client` answers instead of 0
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mps_commands

MAX_CLIENTS = 48
MAX_STARTS = 3
"""Of a server for one client that waits."""
NOT_READY, TOO_MANY, TERMINATED, BROKEN = 807, 808, 810, 719
"""CUDA's errors; 719 stands for the sticky error that a fatal fault leaves in every client."""


@dataclass(eq=False)
class Client:
    """One process that has connected."""

    pid: int
    uid: int
    connection: socket.socket
    percent: float


@dataclass(eq=False)
class Server:
    """The server of one user."""

    uid: int
    process: "subprocess.Popen[bytes]"
    percent: float
    limits: dict[str, str]
    state: str = "INITIALIZING"
    clients: list[Client] = field(default_factory=list)
    is_closing: bool = False
    stays_broken: bool = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid


class Daemon:
    """State of the daemon; every method is called with `changed` held unless it says otherwise."""

    def __init__(self, pipe: str, log: str) -> None:
        self.pipe, self.log_path = pipe, log
        self.release = int(os.environ.get("FAKE_MPS_RELEASE", "550"))
        self.uid = int(os.environ.get("FAKE_MPS_UID", os.getuid()))
        self.percent = (
            mps_commands.percentage(
                os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
            )
            or 100.0
        )
        priority = os.environ.get("CUDA_MPS_CLIENT_PRIORITY", "0")
        self.priority = int(priority) if priority in ("0", "1") else 0
        self.limits: dict[str, str] = {}
        self.server: Server | None = None
        self.has_failed = False
        self.listeners: list[socket.socket] = []
        self.changed = threading.Condition()

    def log(self, text: str) -> None:
        """Write a line as the real one does."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with (
            contextlib.suppress(OSError),
            Path(self.log_path, "control.log").open("a") as file,
        ):
            file.write(f"[{stamp}.000 Control {os.getpid():5d}] {text}\n")

    def start_server(self, uid: int) -> None:
        """Start a server unless there is one; failure shows in the log only."""
        if self.server is not None:
            return
        program = shutil.which("nvidia-cuda-mps-server")
        if program is None:
            number = os.getpid() + 1
            self.log(f"Starting new server {number} for user {uid}")
            self.log(f"Server {number} exited with status 1")
            self.has_failed = True
            return
        # It ends with this process, however that ends: its standard input does.
        process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.log(f"Starting new server {process.pid} for user {uid}")
        self.server = Server(
            uid=uid, process=process, percent=self.percent, limits=dict(self.limits)
        )
        threading.Thread(
            target=self._initialize, args=(self.server,), daemon=True
        ).start()

    def _initialize(self, server: Server) -> None:
        """Make the server ACTIVE when it says that it is up; takes `changed` itself."""
        assert server.process.stdout is not None
        is_up = bool(server.process.stdout.readline())
        with self.changed:
            if is_up:
                server.state = "ACTIVE"
                self.log(f"NEW SERVER {server.pid}: Ready")
            elif server is self.server:
                self.log(
                    f"Server {server.pid} exited with status {server.process.wait()}"
                )
                self.server, self.has_failed = None, True
            self.changed.notify_all()

    def end_server(self) -> None:
        """End the server at once; its clients lose their connections."""
        if self.server is not None:
            for client in self.server.clients:
                with contextlib.suppress(OSError):
                    client.connection.shutdown(socket.SHUT_RDWR)
            self.server.process.kill()
            self.server.process.wait()
            self.server = None
        self.changed.notify_all()

    def break_gpu(self, stays: bool) -> None:
        """A fatal fault: every client gets a sticky error; new ones are refused until all have gone."""
        if self.server is not None:
            self.server.state, self.server.stays_broken = "FAULT", stays
            self.log(f"Server {self.server.pid} is handling a fatal GPU error.")
            for client in self.server.clients:
                tell(client.connection, {"error": BROKEN})

    def terminate(self, client: Client) -> None:
        """Take the client's work off the GPU; its process stays, with an error that sticks."""
        tell(client.connection, {"error": TERMINATED})

    def leave(self, client: Client) -> None:
        """A client's process has ended."""
        server = self.server
        if server is None or client not in server.clients:
            return
        server.clients.remove(client)
        if not server.clients and server.is_closing:
            self.end_server()
        elif not server.clients and server.state == "FAULT" and not server.stays_broken:
            server.state = "ACTIVE"
        self.changed.notify_all()


def tell(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send, unless the other side has gone."""
    with contextlib.suppress(OSError):
        connection.send(json.dumps(message).encode())


def serve(daemon: Daemon, on_ready: Callable[[], None]) -> None:
    """Listen until `quit` ends this process."""
    with contextlib.suppress(OSError):  # Without logs it runs as well.
        Path(daemon.log_path).mkdir(mode=0o700, exist_ok=True)
    pipe = Path(daemon.pipe)
    for name, mode in (("control", 0o666), ("control_privileged", 0o755)):
        path = pipe / name
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(64)
        daemon.listeners.append(listener)
        threading.Thread(target=_accept, args=(daemon, listener), daemon=True).start()
    if not (pipe / "log").exists():
        os.mkfifo(pipe / "log", 0o777)
    if daemon.release >= 550:
        (pipe / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    daemon.log(f"Starting control daemon using socket {pipe}/control")
    on_ready()
    threading.Event().wait()


def _accept(daemon: Daemon, listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_attend, args=(daemon, connection), daemon=True).start()


def _attend(daemon: Daemon, connection: socket.socket) -> None:
    """One connection from beginning to end."""
    daemon.log("Accepting connection...")
    with contextlib.suppress(OSError):
        while packet := connection.recv(65536):
            if packet.startswith(b"command "):
                _, uid, *line = packet.decode().split(" ", 2)
                _command(daemon, connection, line[0] if line else "", int(uid))
                continue
            message = json.loads(packet)
            if "lab" in message:
                with daemon.changed:
                    daemon.break_gpu(bool(message["stays"]))
                tell(connection, {})
            else:
                _client(daemon, connection, message["client"])
    connection.close()


def _command(daemon: Daemon, connection: socket.socket, line: str, uid: int) -> None:
    daemon.log(f"Cmd:{line}")
    words = line.split() or [""]
    if words[0] == "quit" and uid in (0, daemon.uid):
        _quit(daemon, connection, words[1:])
        return
    with daemon.changed:
        _answer(connection, 0, mps_commands.answer_of(daemon, words, uid))


def _answer(connection: socket.socket, status: int, lines: list[str]) -> None:
    """To a command, unless the other side has gone."""
    with contextlib.suppress(OSError):
        connection.send("\n".join((str(status), *lines)).encode())


def _quit(daemon: Daemon, connection: socket.socket, options: list[str]) -> None:
    """Wait for the clients, by -t for so long only; then answer and end this process."""
    wait_s = float(options[1]) if options[:1] == ["-t"] and len(options) > 1 else None
    with daemon.changed:
        daemon.changed.wait_for(
            lambda: daemon.server is None or not daemon.server.clients, wait_s
        )
        time.sleep(float(os.environ.get("FAKE_MPS_QUIT_S", "0")))
        daemon.end_server()
        for name in ("nvidia-cuda-mps-control.pid", "log"):
            Path(daemon.pipe, name).unlink(missing_ok=True)
        for listener in daemon.listeners:  # Their files stay, as the real one's do.
            listener.shutdown(socket.SHUT_RDWR)
        daemon.log(f"Exit with status {int(daemon.has_failed)}")
        _answer(connection, int(daemon.has_failed), [])
        time.sleep(float(os.environ.get("FAKE_MPS_LINGER_S", "0")))
        os._exit(0)


def _client(daemon: Daemon, connection: socket.socket, wish: dict[str, Any]) -> None:
    """Let a process in, and wait until it goes."""
    with daemon.changed:
        server = _server_for(daemon, wish, connection)
        if server is None:
            return
        if server.state == "FAULT" or len(server.clients) >= MAX_CLIENTS:
            tell(
                connection,
                {"error": NOT_READY if server.state == "FAULT" else TOO_MANY},
            )
            return
        limit = min(
            server.percent, mps_commands.percentage(str(wish["percent"])) or 100.0
        )
        client = Client(
            pid=int(wish["pid"]),
            uid=int(wish["uid"]),
            connection=connection,
            percent=limit,
        )
        server.clients.append(client)
        daemon.log(
            f"NEW CLIENT {client.pid} from user {client.uid}: Server already exists"
        )
        tell(connection, {"percent": limit})
    with contextlib.suppress(OSError):
        connection.recv(1)
    with daemon.changed:
        daemon.leave(client)


def _server_for(
    daemon: Daemon, wish: dict[str, Any], connection: socket.socket
) -> Server | None:
    """The user's server, once it is neither starting nor another user's; None when it fails or none waits."""
    uid, starts, is_pending = int(wish["uid"]), 0, False
    while True:
        server = daemon.server
        if server is not None and server.uid != uid and not server.clients:
            daemon.end_server()
            server = None
        if server is None:
            if starts == MAX_STARTS:
                return None
            starts += 1
            daemon.start_server(uid)
            server = daemon.server
        if server is not None and server.uid == uid and server.state != "INITIALIZING":
            return server
        if not is_pending:
            is_pending = True
            daemon.log(
                f"NEW CLIENT {wish['pid']} from user {uid}: Server is not ready, push client to pending list"
            )
        daemon.changed.wait(0.05)
        with contextlib.suppress(BlockingIOError):
            if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return None


def take_lock(pipe: str) -> int | None:
    """The lock's descriptor; None when another daemon holds it."""
    lock = os.open(f"{pipe}/control_lock", os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
