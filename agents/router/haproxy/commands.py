"""The commands that bring HAProxy from the state that it has to the wanted routes; nothing here talks to it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from agents.base.device import ServiceRoute
from agents.router.haproxy.state import (
    MODEL_BACKENDS,
    Address,
    BackendServer,
    HaProxyError,
    ProxyState,
)

MAX_WEIGHT = 256
_MAX_LINE = 8 * 1024
"""Bytes of one line of commands; HAProxy's buffer has twice as many."""

_NAME = re.compile(r"[A-Za-z0-9._~-]{1,253}")

Wanted = Mapping[str, Mapping[Address, int]]
"""Service → address → weight."""


class PlaceLimits(Protocol):
    """What plans need of a configuration."""

    @property
    def map_path(self) -> Path:
        """The map from services to backends."""
        ...

    @property
    def replicas(self) -> int:
        """Places of each backend."""
        ...

    @property
    def starts_down(self) -> bool:
        """Whether a server that is added counts as down until its first good check."""
        ...


def plan_commands(
    state: ProxyState,
    wanted: Wanted,
    settings: PlaceLimits,
    models: Set[str] = frozenset(),
    between: Iterable[str] = (),
) -> list[str]:
    """The commands that make it so, in the order in which none is without a replica. `models`: services of language
    models, which have backends of their own; `between`: commands that come once new replicas take requests, and while
    old ones still do. Raises HaProxyError."""
    backends = assign_backends(state, wanted, models)
    # Places where requests wait are filled apart from these.
    state = state.only("s")
    places = state.by_backend()
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
            opening += _open(place, address, weight, settings)
        closing += [
            _drain(place)
            for place in mine
            if place.is_ready and place.address not in weights
        ]
    # Names come after their servers are open, and old servers drain after that.
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
    return [*_park(state, opening), *opening, *new, *between, *gone, *closing]


def plan_map(
    path: Path, known: Mapping[str, str], wanted: Mapping[str, str]
) -> list[str]:
    """The commands by which a map has the wanted entries and no others."""
    changed = [key for key, value in wanted.items() if known.get(key) != value]
    return [
        *(
            f"{'set' if key in known else 'add'} map {path} {key} {wanted[key]}"
            for key in changed
        ),
        *(f"del map {path} {key}" for key in known if key not in wanted),
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


def assign_backends(
    state: ProxyState, wanted: Wanted, models: Set[str] = frozenset()
) -> dict[str, str]:
    """Backends of all services, known ones as they are; new ones get those that none has and that are idle."""
    for service in wanted:
        if not _NAME.fullmatch(service):
            raise HaProxyError(
                f"service {service!r} is not a valid name for HAProxy; use letters, digits and . _ ~ -"
            )
    # A backend with requests under way must not take another service's.
    busy = {
        place.backend for place in state.places if place.is_ready or place.in_flight
    }
    everything = state.by_backend()
    taken = set(state.backends.values())
    free = [each for each in everything if each not in busy and each not in taken]
    streaming = iter([each for each in free if each.startswith(MODEL_BACKENDS)])
    plain = iter([each for each in free if not each.startswith(MODEL_BACKENDS)])
    assigned = {
        service: state.backends.get(service)
        or next(streaming if service in models else plain, "")
        for service in wanted
    }
    if lacking := [service for service, backend in assigned.items() if not backend]:
        raise HaProxyError(
            f"no backend is free for {', '.join(lacking[:5])}; HAProxy has {len(everything)} of them"
        )
    return assigned


def _open(
    place: BackendServer, address: Address, weight: int, settings: PlaceLimits
) -> Iterator[str]:
    server = f"set server {place.backend}/{place.name}"
    if place.address != address:
        # Who held the place may be gone, and so count as down: only who comes from maintenance counts as up again.
        if not place.is_parked:
            yield f"{server} state maint"
        yield f"{server} addr {address[0]} port {address[1]}"
    if place.weight != weight:
        yield f"{server} weight {weight}"
    if not place.is_ready:
        # In one line, between whose commands HAProxy sends nothing.
        down = f"; {server} health down" if settings.starts_down else ""
        yield f"{server} state ready{down}"


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


def weights_of(
    route: ServiceRoute, addresses: Mapping[str, Address]
) -> dict[Address, int]:
    """Integer weights, the largest MAX_WEIGHT; who shall get nothing has 0, and if all shall, they share evenly."""
    largest = max((weight for _, weight in route.shares), default=0.0)
    # HAProxy sends nothing to weight 0, so replicas without rates get the same weight.
    if largest <= 0.0:
        return {addresses[each]: 1 for each, _ in route.shares}
    return {
        addresses[each]: max(1, round(MAX_WEIGHT * weight / largest))
        if weight > 0.0
        else 0
        for each, weight in route.shares
    }


def command_lines(commands: Iterable[str]) -> Iterator[str]:
    """As many commands on a line as may be: those of one line are done without a pause between them."""
    line: list[str] = []
    length = 0
    for command in commands:
        # A longer line might not fit HAProxy's buffer.
        if length + len(command) > _MAX_LINE:
            yield _joined(line)
            line, length = [], 0
        line.append(command)
        length += len(command) + 2
    if line:
        yield _joined(line)


def _joined(commands: Sequence[str]) -> str:
    return "; ".join(commands)
