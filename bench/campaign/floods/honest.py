"""Those who do nothing wrong next to a fault or a flood: nodes that report, somebody who reads."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import msgspec

from agents.base.protocol import Observation
from app.db.base.engine import make_engine
from app.db.operations.token_secrets import TokenOrder
from bench.campaign.deployment.plane import RunningPlane
from bench.real_store import Fleet, json_headers, make_tokens, observations

WINDOW_S = 1.0


@dataclass(slots=True, kw_only=True)
class HonestNodes:
    """Nodes of two GPUs that register themselves with their first report, and one reader."""

    session: aiohttp.ClientSession
    secrets: Mapping[str, str]
    """By the node's name; `reader`'s is a viewer's."""
    sent: Counter[str] = field(default_factory=Counter)

    async def sync(self, node: str) -> int:
        """Report the window that ends now; the answer's status."""
        self.sent[node] += 1
        body = msgspec.json.encode(_observation(node, self.sent[node]))
        async with self.session.post(
            f"/api/v1/nodes/{node}/sync",
            data=body,
            headers=json_headers(self.secrets[node]),
        ) as answer:
            await answer.read()
            return answer.status

    async def read_services(self) -> int:
        """As a dashboard or a script does; the answer's status."""
        headers = {"Authorization": f"Bearer {self.secrets['reader']}"}
        async with self.session.get("/api/v1/services", headers=headers) as answer:
            await answer.read()
            return answer.status


async def add_tokens(
    plane: RunningPlane, orders: Iterable[TokenOrder]
) -> dict[str, str]:
    """New tokens, by name."""
    engine = make_engine(plane.database.server.url, application="plimsoll-bench")
    try:
        return await make_tokens(engine, orders)
    finally:
        await engine.dispose()


def _observation(node: str, sequence: int) -> Observation:
    one = Fleet(nodes=1, gpus_per_node=2, services=1)
    (observation,) = observations(
        one, {}, sequence=sequence, end=datetime.now(UTC), window_s=WINDOW_S
    )
    return msgspec.structs.replace(observation, node=node)
