"""The commands of the fake MPS control daemon, except `quit`: words in, lines out, as the real one prints them."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from mps_daemon import Daemon, Server

Lines: TypeAlias = list[str]
NO_RIGHT = (
    "Insufficient privileges for UID {}. Control deamon settings can only be modified by the user started it or by the "
    "root user."
)
"""As release 550 writes it. Release 535 lets every user change settings."""


def answer_of(daemon: "Daemon", words: Lines, uid: int) -> Lines:
    """What is printed for one line; `uid` gave the command."""
    name, arguments = words[0], words[1:]
    if name == "quit":
        return ["Not enough privilege to execute quit command"]
    if name == "start_server":
        return _start_server(daemon, arguments, uid)
    if name not in COMMANDS or (name == "get_server_status" and daemon.release < 550):
        return [f'Unknown command "{name}"']
    is_setter = name.startswith("set_default_")
    if is_setter and daemon.release >= 550 and uid not in (0, daemon.uid):
        return [NO_RIGHT.format(uid)]
    return COMMANDS[name](daemon, arguments)


def percentage(text: str) -> float | None:
    """A value in (0, 100], None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 100.0 else None


def _start_server(daemon: "Daemon", arguments: Lines, uid: int) -> Lines:
    if arguments[:1] != ["-uid"] or len(arguments) < 2 or not arguments[1].isdigit():
        return ["A user id (UID) is required to start a new server"]
    wanted = int(arguments[1])
    if uid not in (0, wanted):
        words = f"Insufficient privileges for UID {uid}"
        return [
            f"{words}. Only the root user may start server for another user."
            if daemon.release >= 550
            else words
        ]
    daemon.start_server(wanted)
    return []


def _find(daemon: "Daemon", arguments: Lines) -> "Server | str":
    """The server of that PID, or what is printed when there is none; a missing PID reads as 0."""
    wanted = arguments[0] if arguments and arguments[0].isdigit() else "0"
    if daemon.server is not None and str(daemon.server.pid) == wanted:
        return daemon.server
    return f"Server {wanted} not found"


def _server_list(daemon: "Daemon", arguments: Lines) -> Lines:
    return [str(daemon.server.pid)] if daemon.server is not None else []


def _server_status(daemon: "Daemon", arguments: Lines) -> Lines:
    if not arguments:
        return ["A server PID is required"]
    server = _find(daemon, arguments)
    return [server] if isinstance(server, str) else [server.state]


def _client_list(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    return (
        [server]
        if isinstance(server, str)
        else [str(client.pid) for client in server.clients]
    )


def _device_client_list(daemon: "Daemon", arguments: Lines) -> Lines:
    if daemon.server is None or not daemon.server.clients:
        return []
    return ["Device 0", *(str(client.pid) for client in daemon.server.clients)]


def _ps(daemon: "Daemon", arguments: Lines) -> Lines:
    if daemon.server is None:
        return ["Server not found"]
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "GPU-0")[:12]
    header = f"{'PID':<8}{'ID':<6}{'SERVER':<8}{'DEVICE':<14}{'NAMESPACE':<12}COMMAND"
    server = daemon.server.pid
    return [
        header,
        *(
            f"{each.pid:<8}{1:<6}{server:<8}{device:<14}{4026531836:<12}python"
            for each in daemon.server.clients
        ),
    ]


def _default_percent(daemon: "Daemon", arguments: Lines) -> Lines:
    return [f"{daemon.percent:.1f}"]


def _set_default_percent(daemon: "Daemon", arguments: Lines) -> Lines:
    """A value out of range is told in the log alone."""
    daemon.percent = percentage(arguments[0] if arguments else "") or daemon.percent
    return [f"{daemon.percent:.1f}"]


def _percent(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    return [server] if isinstance(server, str) else [f"{server.percent:.1f}"]


def _set_percent(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    if isinstance(server, str):
        return [server]
    server.percent = (
        percentage(arguments[1] if len(arguments) > 1 else "") or server.percent
    )
    return [f"{server.percent:.1f}"]


def _limit_text(text: str) -> str | None:
    """`2G` stays, a number without unit is MiB: `1024` reads back as `1G`."""
    number, unit = (
        (text[:-1], text[-1].upper())
        if text[-1:].upper() in ("G", "M")
        else (text, "M")
    )
    if not number.isdigit():
        return None
    mib = int(number) * (1024 if unit == "G" else 1)
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _put(limits: dict[str, str], arguments: Lines) -> None:
    if len(arguments) == 2 and (text := _limit_text(arguments[1])):
        limits[arguments[0]] = text


def _got(limits: dict[str, str], arguments: Lines) -> Lines:
    return [limits[arguments[0]]] if arguments and arguments[0] in limits else []


def _set_default_limit(daemon: "Daemon", arguments: Lines) -> Lines:
    _put(daemon.limits, arguments)
    return []


def _default_limit(daemon: "Daemon", arguments: Lines) -> Lines:
    return _got(daemon.limits, arguments)


def _set_limit(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    if isinstance(server, str):
        return [server]
    _put(server.limits, arguments[1:])
    return []


def _limit(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    return [server] if isinstance(server, str) else _got(server.limits, arguments[1:])


def _set_priority(daemon: "Daemon", arguments: Lines) -> Lines:
    if arguments[:1] not in (["0"], ["1"]):
        return ["Invalid priority value - must be 0 or 1!"]
    daemon.priority = int(arguments[0])
    return []


def _priority(daemon: "Daemon", arguments: Lines) -> Lines:
    return [str(daemon.priority)]


def _terminate(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    if isinstance(server, str):
        return [server, f"{server}!", "1"]
    found = [client for client in server.clients if arguments[1:2] == [str(client.pid)]]
    answer = os.environ.get("FAKE_MPS_TERMINATE", "0" if found else "1")
    if answer == "0":
        daemon.terminate(found[0])
    return [answer]


def _shutdown(daemon: "Daemon", arguments: Lines) -> Lines:
    server = _find(daemon, arguments)
    if isinstance(server, str):
        return [server]
    if "-f" in arguments or not server.clients:
        daemon.end_server()
    else:
        server.is_closing = True
    return []


COMMANDS: dict[str, Callable[["Daemon", Lines], Lines]] = {
    "get_server_list": _server_list,
    "get_server_status": _server_status,
    "get_client_list": _client_list,
    "get_device_client_list": _device_client_list,
    "ps": _ps,
    "get_default_active_thread_percentage": _default_percent,
    "set_default_active_thread_percentage": _set_default_percent,
    "get_active_thread_percentage": _percent,
    "set_active_thread_percentage": _set_percent,
    "set_default_device_pinned_mem_limit": _set_default_limit,
    "get_default_device_pinned_mem_limit": _default_limit,
    "set_device_pinned_mem_limit": _set_limit,
    "get_device_pinned_mem_limit": _limit,
    "set_default_client_priority": _set_priority,
    "get_default_client_priority": _priority,
    "terminate_client": _terminate,
    "shutdown_server": _shutdown,
}
