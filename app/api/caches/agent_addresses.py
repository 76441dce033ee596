"""Where agents' metrics are, as they say with every sync: kept in the database, looked at again now and then."""

import re
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from starlette.requests import Request

from agents.base.protocol import METRICS_HEADER
from app.base.errors import Unavailable
from app.db.base.transaction import Engine, transaction
from app.db.fleet import nodes

ASK_AGAIN_S: Final = 300.0
"""Another process of the API may have been told of another address meanwhile."""

_ADDRESS = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
)


@dataclass(slots=True)
class AgentAddresses:
    """What this process wrote down, so that not every sync asks the database."""

    known: dict[str, tuple[str, float]] = field(default_factory=dict)

    async def note(self, engine: Engine, node: str, request: Request) -> None:
        """Keep the address that a known node's agent says, or that it says none."""
        said = request.headers.get(METRICS_HEADER, "")
        # Anything else is not kept: scrapers would follow it to wherever an agent's token holder likes.
        address = said if _ADDRESS.fullmatch(said) else ""
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
