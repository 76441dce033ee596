"""Where agents' metrics and nodes' routers are, as agents say with every sync: kept in the database, and looked at
again now and then."""

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from time import monotonic
from typing import Final

from starlette.requests import Request

from agents.base.addresses import plain_ip
from agents.base.protocol import METRICS_HEADER, ROUTER_HEADER
from app.base.errors import Unavailable
from app.db.base.transaction import Engine, transaction
from app.db.fleet import nodes
from app.db.fleet.nodes import NodeAddresses

ASK_AGAIN_S: Final = 300.0
"""Another process of the API may have been told of another address meanwhile."""

_ADDRESS = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})"
)


def own_address(said: str, peer: str) -> str:
    """Where others find a port of an agent's, by what it says and the address that it says it from; empty: nowhere.

    An agent chooses the port only. Prometheus and the gateway follow these addresses with rights of their own, and a
    name may resolve to whatever its owner likes, a cloud's metadata included.
    """
    found, own = _ADDRESS.fullmatch(said), _ip(peer)
    if found is None or own is None or not 0 < int(found[2]) <= 65535:
        return ""
    # A name is that of the machine which says it. Another address than its own is never followed.
    if _ip(found[1].strip("[]")) not in (None, own):
        return ""
    # Never one that many machines have, as 169.254.169.254.
    if own.is_link_local or own.is_multicast or own.is_unspecified:
        return ""
    return f"[{own}]:{int(found[2])}" if own.version == 6 else f"{own}:{int(found[2])}"


def own_url(said: str, peer: str) -> str:
    """The same of a base URL, as `http://10.0.0.7:8000`."""
    scheme, _, address = said.partition("://")
    kept = own_address(address, peer)
    return f"{scheme}://{kept}" if kept and scheme in ("http", "https") else ""


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    """None: it is a name."""
    try:
        return plain_ip(text)
    except ValueError:
        return None


@dataclass(slots=True)
class AgentAddresses:
    """What this process wrote down, so that not every sync asks the database."""

    known: dict[str, tuple[NodeAddresses, float]] = field(default_factory=dict)

    async def note(self, engine: Engine, node: str, request: Request) -> None:
        """Keep the addresses that a known node's agent says, or that it says none."""
        peer = "" if request.client is None else request.client.host
        addresses = NodeAddresses(
            metrics=own_address(request.headers.get(METRICS_HEADER, ""), peer),
            router=own_url(request.headers.get(ROUTER_HEADER, ""), peer),
        )
        now_s = monotonic()
        known, asked_s = self.known.get(node, (None, 0.0))
        if known == addresses and now_s - asked_s < ASK_AGAIN_S:
            return
        try:
            async with transaction(engine) as connection:
                await nodes.set_addresses(connection, node, addresses)
        except Unavailable:
            return  # The observation itself is durable; the addresses can wait for the next one.
        self.known[node] = (addresses, now_s)
