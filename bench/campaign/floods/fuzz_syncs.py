"""A flood of syncs that are not quite right: `python -m bench.campaign.floods.fuzz_syncs SPEC RESULT`.

Hypothesis draws observations from the protocol's types, their bounds more often than all between; each goes as it is,
and several times with bytes changed, to a node that is registered and with that node's own token.
"""

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import aiohttp
import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from msgspec import inspect

from agents.base.protocol import Observation
from bench.campaign.floods.flood import FloodResult, FloodSpec, read_spec, write_result
from bench.campaign.floods.mutations import mutate
from bench.real_store import GPU_TYPES, json_headers
from tests.integration.wire_values import values

DRAWN_AT_ONCE = 40
MUTANTS = 4
"""Of each observation; drawing one takes several times as long as an answer."""
SENDERS = 12
WAITS = ("", "", "", "?wait_s=0.01", "?wait_s=-1", "?wait_s=nan")
ABOUT_NOW = 0.7
"""Part of the observations whose window ends now: older ones are mostly left out before they are looked at."""


def main() -> None:
    """Send until the seconds or the count are over."""
    spec = read_spec()
    write_result(asyncio.run(_flood(spec)))


async def _flood(spec: FloodSpec) -> FloodResult:
    draw, result = Random(spec.seed), FloodResult()
    ends_s = time.monotonic() + spec.seconds
    # A kept connection may be closed as idle, while bodies are drawn, just as the next one is written to it.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        spec.url, connector=connector, timeout=aiohttp.ClientTimeout(total=30.0)
    ) as session:
        while time.monotonic() < ends_s and result.sent < spec.count:
            bodies = _bodies(spec, draw)[: spec.count - result.sent]
            shares = [bodies[start::SENDERS] for start in range(SENDERS)]
            await asyncio.gather(
                *(_send_until(ends_s, session, spec, share, result) for share in shares)
            )
    return result


async def _send_until(
    ends_s: float,
    session: aiohttp.ClientSession,
    spec: FloodSpec,
    bodies: Sequence[tuple[str, bytes]],
    result: FloodResult,
) -> None:
    for node, body in bodies:
        # A group takes a second, or minutes where cores are short.
        if time.monotonic() > ends_s:
            return
        path = f"/api/v1/nodes/{node}/sync"
        # Chosen by the body, so that the same seed sends the same.
        wait = WAITS[len(body) % len(WAITS)]
        headers = json_headers(spec.secrets[node])
        try:
            async with session.post(path + wait, data=body, headers=headers) as answer:
                await answer.read()
                retry_after = answer.headers.get("Retry-After")
                result.note(answer.status, _words(path + wait, body), retry_after)
        except (aiohttp.ClientError, TimeoutError) as error:
            result.note(None, f"{_words(path + wait, body)}: {error!r}", None)


def _words(path: str, body: bytes) -> str:
    return f"POST {path} {body[:300]!r}"


def _bodies(spec: FloodSpec, draw: Random) -> list[tuple[str, bytes]]:
    """Nodes and what is sent to them; first each as it was drawn, then its mutants."""
    nodes = sorted(spec.secrets)
    found: list[tuple[str, bytes]] = []
    for drawn in _observations(nodes, draw.getrandbits(32)):
        node = draw.choice(nodes)
        body = msgspec.json.encode(_aimed(drawn, node, draw))
        found.append((node, body))
        found += [(node, mutate(body, draw)) for _ in range(MUTANTS)]
    return found


def _observations(nodes: Sequence[str], number: int) -> list[dict[str, Any]]:
    names = st.sampled_from([*nodes, *GPU_TYPES, "s00", "s01", "no-such", "boot"])
    drawn: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=DRAWN_AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(values(inspect.type_info(Observation), names))
    def take(observation: dict[str, Any]) -> None:
        drawn.append(observation)

    take()
    return drawn


def _aimed(drawn: dict[str, Any], node: str, draw: Random) -> dict[str, Any]:
    """Mostly of the node whose token it comes with, and of now: what is refused at the door tests the door alone."""
    aimed = dict(drawn)
    if draw.random() < ABOUT_NOW:
        aimed |= {"window_start_s": time.time() - 2.0, "window_s": 2.0}
        aimed |= {"boot": "boot", "sequence": draw.randint(1, 10**6)}
    if draw.random() < 0.95:
        aimed["node"] = node
    return aimed


if __name__ == "__main__":
    main()
