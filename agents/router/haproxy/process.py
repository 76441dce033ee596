"""HAProxy in front of this node's workers, for nodes where the agent's own router shall carry no requests.

    proxy = HaProxy(HaProxySettings(port=8000, folder=Path("/run/plimsoll")))
    proxy.write_config()                    once, before HAProxy is started; it is never reloaded afterwards
    proxy.switch(routes, addresses)         as `agents.router.router.Router.switch`
    proxy.in_flight(replica_id), proxy.routes

The configuration has empty places: backends without a service, each with servers without an address. A map leads from a
service's name to its backend. A switch fills and empties places through the runtime socket (management guide §9.3),
in an order in which no service is ever without a replica: new replicas get address, weight and `ready`, then the map
names new services, and only then are old replicas told to `drain`. Who holds a place is read from HAProxy each time and
recognised by its address, so neither a restart of the agent nor one of HAProxy leaves anything to repair: the next
switch does. What HAProxy then has is read again and compared with what was wanted.

HAProxy counts what it does per service (`agents.router.haproxy.counts` reads it), and here, in a table of its own, the
answers within the SLO: those below 500 whose head came in time. Those of language models, replicas that fail and
clients that leave are judged by `meter.lua`. Readiness it answers itself; metadata is
asked of one replica of the service by way of a backend of its own, so that neither counts as a request.

What comes for a service without a replica it sends to `agents.router.haproxy.waiting`, which holds it.

Against the agent's own router it lacks: deadlines that shrink on their way, a last replica that stays in when it says
that it is not ready, and latency histograms per service. Verified with 2.6.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agents.base.device import ServerTraits, ServiceRoute
from agents.base.durable_files import replace_file
from agents.router.haproxy.commands import (
    Wanted,
    assign_backends,
    differences,
    plan_commands,
    plan_map,
    weights_of,
)
from agents.router.haproxy.config import (
    BINARY,
    HaProxySettings,
    access_files,
    make_config,
)
from agents.router.haproxy.runtime_socket import RuntimeSocket
from agents.router.haproxy.state import Address, HaProxyError, ProxyState
from agents.router.haproxy.waiting import fill_places
from agents.router.request_router import NO_TRAITS


class HaProxy:
    """HAProxy as the front of one node."""

    def __init__(self, settings: HaProxySettings) -> None:
        self._socket = RuntimeSocket(settings.socket_path)
        self._settings = settings
        self.waits_at: Address = ("127.0.0.1", 1)
        """Where requests of services without a replica are held."""
        self.secret = "1"
        """What those requests show there."""
        self._routes: tuple[ServiceRoute, ...] = ()
        self._addresses: dict[str, Address] = {}

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table that was put in force last."""
        return self._routes

    @property
    def config_path(self) -> Path:
        """The file that it is started with."""
        return self._settings.config_path

    @property
    def socket_path(self) -> Path:
        """Where it answers."""
        return self._settings.socket_path

    def config_text(self) -> str:
        """What that file must hold."""
        return make_config(self._settings)

    def write_config(self) -> None:
        """Configuration and empty map, each whole or not at all; a HAProxy that is started with them has no table."""
        self._routes, self._addresses = (), {}
        for path, content in access_files(self._settings).items():
            # One of them has a private key. HAProxy reads them as root, before it becomes its own user.
            replace_file(path, content, mode=0o600)
        replace_file(self.config_path, self.config_text().encode())
        settings = self._settings
        for path in (
            *(settings.map_path, settings.slo_path, settings.itl_path),
            *(settings.metadata_path, settings.leaving_path, settings.waiting_path),
            *(settings.ready_path, settings.limits_path),
        ):
            replace_file(path, b"")

    def switch(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
    ) -> None:
        """Put a new table in force. `addresses`: base URL of every replica that the routes name; `traits`: of their
        servers, where they are not as the agent's own workers.

        Raises KeyError when a replica has no address, ValueError when it is none, HaProxyError when a name or the
        number of services or replicas cannot be had; then nothing was changed. HaProxyError also when HAProxy does not
        answer or did not do it: then the same call puts it right.
        """
        # All addresses are read before the first command, so that a bad one changes nothing.
        needed = {
            each: parse_address(addresses[each])
            for route in routes
            for each, _ in route.shares
        }
        wanted = {route.service: weights_of(route, needed) for route in routes}
        models = {route.service for route in routes if route.slo_itl_ms is not None}
        before = self.state()
        maps = self._maps(routes, wanted)
        # A service that wakes has its replicas before requests go to them, and one that rests until they no longer do.
        commands = plan_commands(
            before, wanted, self._settings, models, between=self._plan_maps(maps)
        )
        backends = assign_backends(before, wanted, models)
        waiting = dict.fromkeys(backends.values(), (self.waits_at,))
        places = fill_places(before.only("w").by_backend(), waiting)
        self._socket.run([*places, *commands])
        traits_maps = self._traits_maps(
            {where: traits.get(each, ServerTraits()) for each, where in needed.items()}
        )
        self._socket.run(self._plan_maps(traits_maps))
        # The answers to the commands are not looked at: the state says whether they were done.
        problems = differences(after := self.state().only("s"), wanted)
        if left := self._plan_maps(maps | traits_maps):
            problems.append(f"it did not do {left[0]!r}")
        if problems:
            raise HaProxyError(
                f"HAProxy's state differs from its commands: {'; '.join(problems[:5])}"
            )
        self._routes = routes
        # Replicas that drain must still be asked for until their last request is answered.
        busy = {place.address for place in after.places if place.in_flight}
        self._addresses = {
            each: where for each, where in self._addresses.items() if where in busy
        } | needed

    def end_waiting(self) -> None:
        """Send nothing more to where requests wait: another process may get its port. Raises HaProxyError."""
        self._socket.run(fill_places(self.state().only("w").by_backend(), {}))

    def in_flight(self, replica_id: str, state: ProxyState | None = None) -> int:
        """Requests that a replica has or that wait for it, in this state or now; 0 also for one never routed to."""
        address = self._addresses.get(replica_id)
        if address is None:
            return 0
        return sum(
            place.in_flight
            for place in (state or self.state()).places
            if place.address == address
        )

    def state(self) -> ProxyState:
        """Everything that a switch looks at, as it is now. Raises HaProxyError."""
        return self._socket.state(self._settings.map_path)

    def ask(self, line: str) -> str:
        """The answer to a line of commands. Raises HaProxyError."""
        return self._socket.ask(line)

    def _maps(
        self, routes: tuple[ServiceRoute, ...], wanted: Wanted
    ) -> dict[Path, dict[str, str]]:
        """What the maps shall hold, apart from the one of backends and those of servers."""
        # One with the largest weight: who gets nothing may be about to leave.
        asked = {
            service: max(weights, key=weights.__getitem__)
            for service, weights in wanted.items()
            if weights
        }
        return {
            **self._slo_maps(routes),
            self._settings.waiting_path: {
                service: self.secret
                for service, weights in wanted.items()
                if not weights
            },
            self._settings.leaving_path: {
                route.service: "1" for route in routes if route.is_leaving
            },
            self._settings.metadata_path: {
                service: f"{host}:{port}" for service, (host, port) in asked.items()
            },
        }

    def _slo_maps(self, routes: tuple[ServiceRoute, ...]) -> dict[Path, dict[str, str]]:
        # In whole milliseconds, which is what HAProxy measures in.
        slos_ms = {route.service: str(int(route.slo_ms)) for route in routes}
        itls_us = {
            route.service: str(int(1000.0 * route.slo_itl_ms))
            for route in routes
            if route.slo_itl_ms is not None
        }
        return {self._settings.slo_path: slos_ms, self._settings.itl_path: itls_us}

    def _traits_maps(
        self, traits: Mapping[Address, ServerTraits]
    ) -> dict[Path, dict[str, str]]:
        """What the maps shall hold of servers: their places are those that they have now."""
        usual = ServerTraits().ready_path
        own = {
            each: trait.ready_path
            for each, trait in traits.items()
            if trait.ready_path != usual
        }
        lacks_binary = not all(each.is_binary for each in traits.values())
        return {
            self._settings.ready_path: {
                f"{place.backend}/{place.name}": own[place.address]
                # Usually there is none to look for.
                for place in (self.state().places if own else ())
                if place.address in own
            },
            self._settings.limits_path: {BINARY: "1"} if lacks_binary else {},
        }

    def _plan_maps(self, maps: Mapping[Path, Mapping[str, str]]) -> list[str]:
        commands: list[str] = []
        for path, texts in maps.items():
            commands += plan_map(path, self._socket.entries(path), texts)
        return commands


def parse_address(url: str) -> Address:
    """Host and port of `http://127.0.0.1:8001`. Raises ValueError."""
    parts = urlsplit(url)
    if (
        parts.scheme != "http"
        or not re.fullmatch(r"[0-9.]+", parts.hostname or "")
        or parts.path not in ("", "/")
    ):
        raise ValueError(
            f"{url!r} is not an address for HAProxy; it must look like http://127.0.0.1:8001"
        )
    return parts.hostname or "", parts.port or 80
