"""What HAProxy has, as its runtime socket tells it: backends, their servers and the requests that they hold."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from agents.base.device import DeviceError

_MAINTENANCE, _DRAIN = 0x01, 0x08
"""Bits of `srv_admin_state` that an operator sets."""

METADATA_BACKEND = "metadata"
"""Asks replicas of all services what is no request; a map leads to them, so that its server is no place."""

MODEL_BACKENDS = "model"
"""Backends of language models begin with it, and no others."""

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

    def only(self, kind: str) -> "ProxyState":
        """With the places of one kind, by the letter that their names begin with: s serve, at w requests wait."""
        places = (each for each in self.places if each.name.startswith(kind))
        return replace(self, places=tuple(places))


def parse_state(servers: str, stat: str, services: str) -> ProxyState:
    """What `show servers state`, `show stat` and `show map` say. Raises HaProxyError."""
    # The first line is the format's version, the second the names of the columns.
    _, _, table = servers.partition("# ")
    names, *rows = table.strip().splitlines() or [""]
    try:
        busy = dict(map(_sessions, stat.strip().splitlines()[1:]))
        columns = [
            dict(zip(names.split(), row.split(), strict=False)) for row in rows if row
        ]
        places = [
            _place(each, busy)
            for each in columns
            if each["be_name"] != METADATA_BACKEND
        ]
    except (KeyError, ValueError) as error:
        raise HaProxyError(
            f"cannot read HAProxy's servers: {error!r} in {servers[:200]!r}, {stat[:200]!r}"
        ) from error
    return ProxyState(backends=dict(map_entries(services)), places=tuple(places))


def map_entries(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values that `show map` tells."""
    for line in text.splitlines():
        # Each entry begins with a pointer; other lines are messages.
        if line.startswith("0x"):
            _, key, value = line.split()
            yield key, value


def _sessions(line: str) -> tuple[tuple[str, str], int]:
    """Place and requests by one line of `show stat`, whose columns begin with pxname, svname, qcur, qmax, scur."""
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
