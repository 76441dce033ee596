"""Hosts in the row `fault` that vanish, or lose one way: no connection is closed, and nothing answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import psycopg

from agents.sync.transport import ANSWER_TIMEOUT_S
from app.db.base.engine import KEEPALIVES
from bench.campaign.deployment.namespaces import OtherHost
from bench.campaign.deployment.node import SPEC, NodeSpec
from bench.campaign.deployment.plane import RunningPlane
from bench.campaign.deployment.processes import LOOK_S, Program, beside
from bench.campaign.faults.kinds import (
    LED,
    LED_WITHIN_S,
    SILENT,
    Fault,
    Surroundings,
    hand_over,
    second_controller,
    until_led_by,
)

LEADERS_HOST = "leader's host vanishes"
APIS_WAY = "API's packets to the database are lost"
PATIENCE_S = KEEPALIVES["tcp_user_timeout"] / 1000.0
_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE client_addr = %s::inet"


@asynccontextmanager
async def _leaders_host(around: Surroundings) -> AsyncIterator[None]:
    """A controller on another host leads; that host vanishes until no session of it is left, and comes back.

    Meanwhile this machine's controller takes over: that counts as back with its first decision.
    """
    plane, host = around.plane, around.host
    assert host is not None
    url = host.to_database(plane.database.server.url)
    async with second_controller(plane, url, host.command) as away:
        await hand_over(plane, plane.controller, away)
        host.cut()
        cut_s = time.monotonic()
        try:
            await _until_decided(plane)
            around.took_s[LEADERS_HOST] = time.monotonic() - cut_s
            await _until_no_session_of(plane, host)
        finally:
            host.heal()
        yield


async def _until_decided(plane: RunningPlane) -> None:
    """The deployment's own controller, which does not lead yet, leads and has decided. Raises TimeoutError."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(LED_WITHIN_S):
        before = await plane.ticks(session)
        # It may end what it had begun when it led before: that is no decision of a leader.
        await until_led_by(plane, plane.controller)
        while await plane.ticks(session) == before:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def _until_no_session_of(plane: RunningPlane, host: OtherHost) -> None:
    """PostgreSQL has given up all of them. Raises TimeoutError."""

    def sessions() -> int:
        with psycopg.connect(plane.database.server.conninfo) as connection:
            found = connection.execute(_SESSIONS, (host.there,)).fetchone()
        return int(found[0]) if found else 0

    async with asyncio.timeout(LED_WITHIN_S):
        while await asyncio.to_thread(sessions):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _apis_way_to_database(around: Surroundings) -> AsyncIterator[None]:
    """An API on another host, whom all agents ask, reaches them and not the database, for longer than TCP's patience.

    It counts as back when it has answered every node again; then agents ask this machine's API as before.
    """
    plane, host = around.plane, around.host
    assert host is not None
    url = host.to_database(plane.database.server.url)
    other = {host.here: host.there}
    away = Program(
        arguments=[other.get(each, each) for each in plane.api.arguments],
        environment={**plane.api.environment, "PLIMSOLL_DATABASE_URL": url},
        log=plane.api.log.with_name("other-api.log"),
        before=host.command,
    )
    async with beside(away.keep()), asyncio.timeout(LED_WITHIN_S):
        try:
            _ask_at(around, plane.url.replace(host.here, host.there))
            await plane.until_answered(time.monotonic())
            host.cut_database()
            await asyncio.sleep(PATIENCE_S)
            yield
            host.heal()
            healed_s = time.monotonic()
            await plane.until_answered(healed_s)
            around.took_s[APIS_WAY] = time.monotonic() - healed_s
        finally:
            host.heal()
            # It does not wait for answers: after a failure they may never come, and SIGTERM must end the row soon.
            _ask_at(around, plane.url)
        await plane.until_answered(time.monotonic())


def _ask_at(around: Surroundings, url: str) -> None:
    """Agents ask there from now on."""
    around.to_api.http(url)
    # Connections to the API of before would stay.
    around.to_api.fail("reset")
    around.to_api.fail("none")


@asynccontextmanager
async def _agents_host(around: Surroundings) -> AsyncIterator[None]:
    """An agent goes to another host, which vanishes for longer than the agent waits for an answer."""
    plane, host = around.plane, around.host
    assert host is not None
    agent = plane.agents[max(plane.agents)]
    path = Path(agent.arguments[-1]) / SPEC
    spec = msgspec.json.decode(path.read_bytes(), type=NodeSpec)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(spec, url=plane.url)))
    # It stays there: a start at the end would hide how it follows again.
    agent.before = host.command
    agent.kill()
    await plane.until_answered(time.monotonic())
    host.cut()
    try:
        await asyncio.sleep(ANSWER_TIMEOUT_S)
        yield
    finally:
        host.heal()


# The agent of the last one stays on the host, which the others would take from it.
HOST_FAULTS: Sequence[Fault] = (
    Fault(name=LEADERS_HOST, begin=_leaders_host, events=LED, needs="host"),
    Fault(name=APIS_WAY, begin=_apis_way_to_database, events=SILENT, needs="host"),
    Fault(
        name="agent's host vanishes",
        begin=_agents_host,
        events=("NodeSilent",),
        needs="host",
    ),
)
