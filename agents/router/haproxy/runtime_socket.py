"""HAProxy's runtime socket (management guide §9.3): questions, commands, and the state that they show."""

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from agents.router.haproxy.commands import command_lines
from agents.router.haproxy.state import (
    HaProxyError,
    ProxyState,
    map_entries,
    parse_state,
)

ANSWER_TIMEOUT_S = 2.0
"""HAProxy answers at once while it runs."""
_MAX_REPLY = 16 * 1024 * 1024
_MAX_PATH = 97
"""HAProxy binds a longer name first, which the kernel's 108 bytes must hold, too."""


class RuntimeSocket:
    """One connection for each line of commands."""

    def __init__(self, path: Path) -> None:
        """Raises HaProxyError for a path that no socket can have."""
        if len(os.fsencode(path)) > _MAX_PATH:
            raise HaProxyError(
                f"{path} is too long for a socket; choose a shorter folder"
            )
        self._path = path

    def state(self, map_path: Path) -> ProxyState:
        """What a switch looks at, as it is now; `map_path`: from services to backends. Raises HaProxyError."""
        # 4: servers only
        stat = self.ask("show stat -1 4 -1")
        servers = self.ask("show servers state")
        return parse_state(servers, stat, self.ask(f"show map {map_path}"))

    def entries(self, map_path: Path) -> Mapping[str, str]:
        """What a map holds. Raises HaProxyError."""
        return dict(map_entries(self.ask(f"show map {map_path}")))

    def run(self, commands: Iterable[str]) -> None:
        """Give commands in their order; the state shows whether they were done. Raises HaProxyError."""
        for line in command_lines(commands):
            self.ask(line)

    def ask(self, line: str) -> str:
        """The answer to a line of commands. Raises HaProxyError."""
        path = str(self._path)
        reply = bytearray()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                connection.connect(path)
                connection.sendall(line.encode() + b"\n")
                while (data := connection.recv(65536)) and len(reply) < _MAX_REPLY:
                    reply += data
        except OSError as error:
            raise HaProxyError(
                f"HAProxy does not answer at {path}: {error}; is it running?"
            ) from error
        return reply.decode("utf-8", "replace")
