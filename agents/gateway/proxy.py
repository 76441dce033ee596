"""HAProxy as the gateway: its files, and the commands that bring a table into force.

A node gets a service's requests from the first good check of its readiness on, not before: it is added as down. One
that leaves the table drains. What waits while no node is ready goes to backup places, which have no check.
"""

import asyncio
from pathlib import Path

from agents.base.durable_files import replace_file
from agents.gateway.config import (
    NODES_BACKEND,
    NODES_PLACES,
    GatewaySettings,
    make_gateway_config,
    tls_file,
)
from agents.gateway.table import GatewayTable
from agents.router.haproxy.commands import (
    assign_backends,
    differences,
    plan_commands,
    plan_map,
)
from agents.router.haproxy.runtime_socket import RuntimeSocket
from agents.router.haproxy.state import HaProxyError, ProxyState
from agents.router.haproxy.waiting import fill_places

EMPTY = GatewayTable(weights={}, waiting={})


class GatewayProxy:
    """HAProxy in front of all nodes."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.table = EMPTY
        """The one that was put in force last."""
        self.is_in_force = False
        """Whether HAProxy has that table: one that was just started has none, and one of an earlier gateway another."""
        self._turn = asyncio.Lock()
        self._settings = settings
        self._socket = RuntimeSocket(settings.socket_path)

    @property
    def config_path(self) -> Path:
        """The file that it is started with."""
        return self._settings.config_path

    @property
    def socket_path(self) -> Path:
        """Where it answers."""
        return self._settings.socket_path

    def config_text(self) -> str:
        """What the file must hold. Raises OSError."""
        return make_gateway_config(self._settings)

    def write_config(self) -> None:
        """Configuration and empty maps; a HAProxy that is started with them has no table."""
        self.is_in_force = False
        settings = self._settings
        if certificate := tls_file(settings):
            replace_file(settings.tls_path, certificate, mode=0o600)
        replace_file(settings.config_path, self.config_text().encode())
        replace_file(settings.map_path, b"")
        replace_file(settings.names_path, b"")

    def state(self) -> ProxyState:
        """What it has. Raises HaProxyError."""
        return self._socket.state(self._settings.map_path)

    async def put(self, table: GatewayTable) -> None:
        """Put a table in force, one at a time. Raises HaProxyError; then the same call puts it right."""
        async with self._turn:
            # In a thread, since HAProxy may take its time to answer.
            await asyncio.to_thread(self._switch, table)

    def _switch(self, table: GatewayTable) -> None:
        state = self.state()
        ready = state.only("s")
        commands = plan_commands(ready, table.weights, self._settings)
        backends = assign_backends(ready, table.weights)
        names = {backend: service for service, backend in backends.items()}
        # Checks ask by the names, so these come before the servers.
        self._socket.run(
            plan_map(
                self._settings.names_path,
                self._socket.entries(self._settings.names_path),
                names,
            )
        )
        waiting = {
            backend: table.waiting.get(service, ())
            for service, backend in backends.items()
        }
        waiting[NODES_BACKEND] = table.nodes[:NODES_PLACES]
        places = state.only("w").by_backend()
        # A new service is named when its requests can wait somewhere.
        self._socket.run(fill_places(places, waiting))
        self._socket.run(commands)
        after = self.state().only("s")
        if problems := differences(after, table.weights):
            raise HaProxyError(
                f"HAProxy's state differs from its commands: {'; '.join(problems[:5])}"
            )
        self.table, self.is_in_force = table, True
