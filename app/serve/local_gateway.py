"""The gateway that `plimsoll up` starts on its machine: whether there can be one, and its program."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.base.settings import Settings

LOCAL = "127.0.0.1"
GATEWAY_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGateway:
    """The gateway that is started here."""

    folder: Path
    url: str = f"http://{LOCAL}:{GATEWAY_PORT}"

    @property
    def token_file(self) -> Path:
        """Where the start writes the token by which it reads where services are."""
        return self.folder / "token-of-this-start"

    def command(self, address: str) -> list[str]:
        """The program and its arguments; `address`: of the API, which need not answer yet."""
        return [
            *(sys.executable, "-m", "agents.gateway.command"),
            *("--url", address, "--token-file", str(self.token_file)),
            *("--port", str(GATEWAY_PORT), "--log-level", "error"),
            *("--state-dir", str(self.folder), "--parent", str(os.getpid())),
        ]


def find_gateway(settings: Settings, say: Callable[[str], None]) -> LocalGateway | None:
    """The gateway that is to be started; None where the operator names one of their own, or it cannot be."""
    if settings.gateway_url is not None:
        return None
    # As the gateway itself has it: a socket's path may not be long.
    folder = (settings.data_dir / "gateway").absolute()
    reason = _why_no_gateway(folder)
    if reason is None:
        return LocalGateway(folder=folder)
    say(
        f"no gateway: {reason} for one address of all services; `plimsoll get endpoints` lists the nodes' own"
    )
    return None


def _why_no_gateway(folder: Path) -> str | None:
    """What is to be done for one; None where it can run, with its files in that folder."""
    # Imported late: only this needs aiohttp here.
    from agents.gateway.config import GatewaySettings
    from agents.router.haproxy.runtime_socket import RuntimeSocket
    from agents.router.haproxy.state import HaProxyError
    from agents.router.haproxy.supervised import PLACES, find_program

    try:
        find_program(f"{os.environ.get('PATH', '')}:{PLACES}")
    except HaProxyError:
        return "install HAProxy (Debian's package haproxy)"
    try:
        RuntimeSocket(GatewaySettings(folder=folder).socket_path)
    except HaProxyError:
        return "choose a --data-dir with a shorter path"
    try:
        # Taken by another program, it would keep HAProxy from starting.
        socket.create_server((LOCAL, GATEWAY_PORT)).close()
    except OSError as error:
        return f"free port {GATEWAY_PORT} ({error.strerror})"
    return None
