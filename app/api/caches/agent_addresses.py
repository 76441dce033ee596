"""Where agents' metrics are, as they say with every sync: kept in the database, looked at again now and then."""

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from time import monotonic
from typing import Final

from starlette.requests import Request

from agents.base.addresses import plain_ip
from agents.base.protocol import METRICS_HEADER
from app.base.errors import Unavailable
from app.db.base.transaction import Engine, transaction
from app.db.fleet import nodes

ASK_AGAIN_S: Final = 300.0
"""Another process of the API may have been told of another address meanwhile."""

_ADDRESS = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})"
)


def own_address(said: str, peer: str) -> str:
    """Where scrapers find an agent's metrics, by what it says and the address that it says it from; empty: nowhere.

    An agent chooses the port only. Prometheus follows these addresses with rights of its own, and a name may resolve to
    whatever its owner likes, a cloud's metadata included.
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


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    """None: it is a name."""
    try:
        return plain_ip(text)
    except ValueError:
        return None


@dataclass(slots=True)
class AgentAddresses:
    """What this process wrote down, so that not every sync asks the database."""

    known: dict[str, tuple[str, float]] = field(default_factory=dict)

    async def note(self, engine: Engine, node: str, request: Request) -> None:
        """Keep the address that a known node's agent says, or that it says none."""
        address = own_address(
            request.headers.get(METRICS_HEADER, ""),
            "" if request.client is None else request.client.host,
        )
        now_s = monotonic()
        known, asked_s = self.known.get(node, (None, 0.0))
        if known == address and now_s - asked_s < ASK_AGAIN_S:
            return
        try:
            async with transaction(engine) as connection:
                await nodes.set_metrics_address(connection, node, address)
        except Unavailable:
            return  # The observation itself is durable; the address can wait for the next one.
        self.known[node] = (address, now_s)
