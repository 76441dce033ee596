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

HAProxy counts what it does per service (`agents.router.haproxy.counts` reads it), and beside that here, in a table of
its own, the answers within the SLO: those below 500 whose head came in time.

Against the agent's own router it lacks: the queue of a service without a replica, deadlines that shrink on their way, a
last replica that stays in, and latency histograms per service. Verified with 2.6.
"""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from agents.base.device import DeviceError, ServiceRoute
from agents.base.durable_files import replace_file
from agents.router.haproxy.config import HaProxySettings, make_config

MAX_WEIGHT = 256
_MAX_LINE = 8 * 1024
"""Bytes of one line of commands; HAProxy's buffer has twice as many."""
_MAX_REPLY = 16 * 1024 * 1024
_MAX_SOCKET_PATH = 100
_MAINTENANCE, _DRAIN = 0x01, 0x08
"""Bits of `srv_admin_state` that an operator sets."""
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,253}")

Address = tuple[str, int]


class HaProxyError(DeviceError):
    """HAProxy does not answer, has no place left, or did not do as it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendServer:
    """One server of one backend as HAProxy has it."""

    backend: str
    name: str
    address: Address
    weight: int
    is_ready: bool
    """Whether it may get new requests, failures aside."""
    is_parked: bool = False
    """Whether HAProxy leaves it alone; neither ready nor parked is draining, with probes."""
    in_flight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyState:
    """Everything that a switch looks at."""

    backends: Mapping[str, str]
    """Service → backend."""
    places: tuple[BackendServer, ...]

    def by_backend(self) -> dict[str, list[BackendServer]]:
        """The places of each backend."""
        found: dict[str, list[BackendServer]] = {}
        for place in self.places:
            found.setdefault(place.backend, []).append(place)
        return found


class HaProxy:
    """HAProxy as the front of one node."""

    def __init__(self, settings: HaProxySettings) -> None:
        if len(os.fsencode(settings.socket_path)) > _MAX_SOCKET_PATH:
            raise HaProxyError(
                f"{settings.socket_path} is too long for a socket; choose a shorter folder"
            )
        self._settings = settings
        self._routes: tuple[ServiceRoute, ...] = ()
        self._addresses: dict[str, Address] = {}

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table that was put in force last."""
        return self._routes

    def write_config(self) -> None:
        """Configuration and empty map, each whole or not at all; a HAProxy that is started with them has no table."""
        self._routes, self._addresses = (), {}
        replace_file(self._settings.config_path, make_config(self._settings).encode())
        replace_file(self._settings.map_path, b"")
        replace_file(self._settings.slo_path, b"")

    def switch(
        self, routes: tuple[ServiceRoute, ...], addresses: Mapping[str, str]
    ) -> None:
        """Put a new table in force. `addresses`: base URL of every replica that the routes name.

        Raises KeyError when a replica has no address, ValueError when it is none, HaProxyError when a name or the
        number of services or replicas cannot be had; then nothing was changed. HaProxyError also when HAProxy does not
        answer or did not do it: then the same call puts it right.
        """
        needed = {
            each: parse_address(addresses[each])
            for route in routes
            for each, _ in route.shares
        }
        wanted = {route.service: _weights(route, needed) for route in routes}
        self._tell(plan_commands(self.state(), wanted, self._settings))
        slos_ms = {route.service: route.slo_ms for route in routes}
        self._tell(plan_slos(self._slos(), slos_ms, self._settings))
        problems = differences(after := self.state(), wanted)
        if left := plan_slos(self._slos(), slos_ms, self._settings):
            problems.append(f"it did not do {left[0]!r}")
        if problems:
            raise HaProxyError(
                f"HAProxy is not as it was told: {'; '.join(problems[:5])}"
            )
        self._routes = routes
        busy = {place.address for place in after.places if place.in_flight}
        self._addresses = {
            each: where for each, where in self._addresses.items() if where in busy
        } | needed

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
        stat, servers = (
            self.ask("show stat -1 4 -1"),
            self.ask("show servers state"),
        )  # 4: servers only
        return parse_state(
            servers, stat, self.ask(f"show map {self._settings.map_path}")
        )

    def _slos(self) -> dict[str, str]:
        return dict(_entries(self.ask(f"show map {self._settings.slo_path}")))

    def _tell(self, commands: Iterable[str]) -> None:
        for line in _lines(commands):
            self.ask(line)

    def ask(self, line: str) -> str:
        """The answer to a line of commands. Raises HaProxyError."""
        path, reply = str(self._settings.socket_path), bytearray()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._settings.timeout_s)
                connection.connect(path)
                connection.sendall(line.encode() + b"\n")
                while (data := connection.recv(65536)) and len(reply) < _MAX_REPLY:
                    reply += data
        except OSError as error:
            raise HaProxyError(
                f"HAProxy does not answer at {path}: {error}; is it running?"
            ) from error
        return reply.decode("utf-8", "replace")


def parse_address(url: str) -> Address:
    """Host and port of `http://127.0.0.1:8001`. Raises ValueError."""
    parts = urlsplit(url)
    if (
        parts.scheme != "http"
        or not re.fullmatch(r"[0-9.]+", parts.hostname or "")
        or parts.path not in ("", "/")
    ):
        raise ValueError(
            f"{url!r} is no address for HAProxy; it must look like http://127.0.0.1:8001"
        )
    return parts.hostname or "", parts.port or 80


def parse_state(servers: str, stat: str, services: str) -> ProxyState:
    """What `show servers state`, `show stat` and `show map` say. Raises HaProxyError."""
    _, _, table = servers.partition("# ")
    names, *rows = table.strip().splitlines() or [""]
    try:
        busy = dict(map(_sessions, stat.strip().splitlines()[1:]))
        places = [
            _place(dict(zip(names.split(), row.split(), strict=False)), busy)
            for row in rows
            if row
        ]
    except (KeyError, ValueError) as error:
        raise HaProxyError(
            f"cannot read HAProxy's servers: {error!r} in {servers[:200]!r}, {stat[:200]!r}"
        ) from error
    return ProxyState(backends=dict(_entries(services)), places=tuple(places))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values that `show map` tells."""
    for line in text.splitlines():
        if line.startswith("0x"):
            _, key, value = line.split()
            yield key, value


def _sessions(line: str) -> tuple[tuple[str, str], int]:
    """Of one line of `show stat`, whose columns begin with pxname, svname, qcur, qmax, scur."""
    backend, name, queued, _, running, _ = line.split(",", 5)
    return (backend, name), int(queued or 0) + int(running or 0)


def _place(
    row: Mapping[str, str], busy: Mapping[tuple[str, str], int]
) -> BackendServer:
    return BackendServer(
        backend=row["be_name"],
        name=row["srv_name"],
        address=(row["srv_addr"], int(row["srv_port"])),
        weight=int(row["srv_uweight"]),
        is_ready=not int(row["srv_admin_state"]) & (_MAINTENANCE | _DRAIN),
        is_parked=bool(int(row["srv_admin_state"]) & _MAINTENANCE),
        in_flight=busy.get((row["be_name"], row["srv_name"]), 0),
    )


Wanted = Mapping[str, Mapping[Address, int]]
"""Service → address → weight."""


def plan_commands(
    state: ProxyState, wanted: Wanted, settings: HaProxySettings
) -> list[str]:
    """The commands that make it so, in the order in which nobody is without a replica. Raises HaProxyError."""
    backends, places = _assign(state, wanted), state.by_backend()
    opening: list[str] = []
    closing: list[str] = []
    for service, weights in wanted.items():
        mine = places[backends[service]]
        held = {
            place.address: place for place in mine if place.is_ready or place.in_flight
        }
        free = iter(
            [place for place in mine if not place.is_ready and not place.in_flight]
        )
        for address, weight in weights.items():
            place = held.get(address) or next(free, None)
            if place is None:
                raise HaProxyError(
                    f"service {service} has more replicas than the {settings.replicas} places for them"
                )
            opening += _open(place, address, weight)
        closing += [
            _drain(place)
            for place in mine
            if place.is_ready and place.address not in weights
        ]
    new = [
        f"add map {settings.map_path} {service} {backend}"
        for service, backend in backends.items()
        if service not in state.backends
    ]
    gone = [
        f"del map {settings.map_path} {service}"
        for service in state.backends
        if service not in wanted
    ]
    left = {
        state.backends[service] for service in state.backends if service not in wanted
    }
    closing += [
        _drain(place)
        for place in state.places
        if place.backend in left and place.is_ready
    ]
    return [*_park(state, opening), *opening, *new, *gone, *closing]


def plan_slos(
    known: Mapping[str, str], wanted: Mapping[str, float], settings: HaProxySettings
) -> list[str]:
    """The commands by which the map of SLOs is as wanted, in whole ms."""
    path, texts = (
        settings.slo_path,
        {service: str(int(slo_ms)) for service, slo_ms in wanted.items()},
    )
    changed = [service for service, text in texts.items() if known.get(service) != text]
    return [
        *(
            f"{'set' if each in known else 'add'} map {path} {each} {texts[each]}"
            for each in changed
        ),
        *(f"del map {path} {service}" for service in known if service not in wanted),
    ]


def _park(state: ProxyState, opening: Iterable[str]) -> Iterator[str]:
    """Those that have drained need no more probes, unless they are wanted again."""
    wanted = {command.split(" ", 3)[2] for command in opening}
    for place in state.places:
        if not (
            place.is_ready
            or place.is_parked
            or place.in_flight
            or f"{place.backend}/{place.name}" in wanted
        ):
            yield f"set server {place.backend}/{place.name} state maint"


def _assign(state: ProxyState, wanted: Wanted) -> dict[str, str]:
    """Backends of all services, known ones as they are; new ones get those that nobody has and that are idle."""
    for service in wanted:
        if not _NAME.fullmatch(service):
            raise HaProxyError(
                f"service {service!r} cannot be told to HAProxy; use letters, digits and . _ ~ -"
            )
    busy = {
        place.backend for place in state.places if place.is_ready or place.in_flight
    }
    everything, taken = state.by_backend(), set(state.backends.values())
    free = iter([each for each in everything if each not in busy and each not in taken])
    assigned = {
        service: state.backends.get(service) or next(free, "") for service in wanted
    }
    if lacking := [service for service, backend in assigned.items() if not backend]:
        raise HaProxyError(
            f"no backend is free for {', '.join(lacking[:5])}; HAProxy has {len(everything)} of them"
        )
    return assigned


def _open(place: BackendServer, address: Address, weight: int) -> Iterator[str]:
    server = f"set server {place.backend}/{place.name}"
    if place.address != address:
        # Who held the place may be gone, and so count as down: only who comes from maintenance counts as up again.
        if not place.is_parked:
            yield f"{server} state maint"
        yield f"{server} addr {address[0]} port {address[1]}"
    if place.weight != weight:
        yield f"{server} weight {weight}"
    if not place.is_ready:
        yield f"{server} state ready"


def _drain(place: BackendServer) -> str:
    return f"set server {place.backend}/{place.name} state drain"


def differences(state: ProxyState, wanted: Wanted) -> list[str]:
    """What is not as wanted, in words."""
    found = [
        f"service {each} has no backend"
        for each in wanted
        if each not in state.backends
    ]
    found += [
        f"service {each} is still there"
        for each in state.backends
        if each not in wanted
    ]
    places = state.by_backend()
    for service, weights in wanted.items():
        mine = places.get(state.backends.get(service, ""), [])
        ready = {place.address: place.weight for place in mine if place.is_ready}
        if ready != dict(weights):
            found.append(f"service {service} goes to {ready}, not to {dict(weights)}")
    return found


def _weights(
    route: ServiceRoute, addresses: Mapping[str, Address]
) -> dict[Address, int]:
    """Integer weights, the largest MAX_WEIGHT; who shall get nothing has 0, and if all shall, they share evenly."""
    largest = max((weight for _, weight in route.shares), default=0.0)
    if largest <= 0.0:
        return {addresses[each]: 1 for each, _ in route.shares}
    return {
        addresses[each]: max(1, round(MAX_WEIGHT * weight / largest))
        if weight > 0.0
        else 0
        for each, weight in route.shares
    }


def _lines(commands: Iterable[str]) -> Iterator[str]:
    """As many commands on a line as may be: those of one line are done without a pause between them."""
    line: list[str] = []
    length = 0
    for command in commands:
        if length + len(command) > _MAX_LINE:
            yield _joined(line)
            line, length = [], 0
        line.append(command)
        length += len(command) + 2
    if line:
        yield _joined(line)


def _joined(commands: Sequence[str]) -> str:
    return "; ".join(commands)
