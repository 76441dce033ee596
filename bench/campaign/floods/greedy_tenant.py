"""One token on fifty connections that take all: `python -m bench.campaign.floods.greedy_tenant SPEC RESULT`.

They flood lists, stream, export, ask for reports and explanations, and simulate; one that is answered asks again at
once, and streams and half of the files are never read.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.campaign.floods.flood import FloodResult, FloodSpec, read_spec, write_result

V1 = "/api/v1"
SIMULATED_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Appetite:
    """What some of the connections ask for."""

    connections: int
    path: str
    method: str = "GET"
    body: Any = None
    is_read: bool = True
    """False: of an answer that may begin nothing is taken."""


def appetites(plan_id: int) -> tuple[Appetite, ...]:
    """Of fifty connections."""
    explain = f"{V1}/plans/{plan_id}/explain"
    export = f"{V1}/reports/plan_history/export"
    return (
        Appetite(connections=18, path=f"{V1}/services"),
        Appetite(connections=8, path=explain),
        Appetite(connections=4, path=f"{explain}?thorough=true"),
        Appetite(connections=6, path=f"{V1}/reports/plan_history?limit=500"),
        Appetite(connections=3, path=export),
        Appetite(connections=3, path=export, is_read=False),
        Appetite(connections=4, path="/live?topic=header&topic=fleet", is_read=False),
        Appetite(
            connections=4, path=f"{V1}/simulations", method="POST", body=_scenario()
        ),
    )


def _scenario() -> dict[str, Any]:
    return {"example": "spike", "duration_s": SIMULATED_S}


def main() -> None:
    """Take until the seconds are over."""
    write_result(asyncio.run(_take_all(read_spec())))


async def _take_all(spec: FloodSpec) -> FloodResult:
    result = FloodResult()
    headers = {"Authorization": f"Bearer {spec.secrets['greedy']}"}
    async with aiohttp.ClientSession(
        spec.url,
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=120.0),
    ) as session:
        async with session.get(f"{V1}/plans?limit=1") as answer:
            plan_id = (await answer.json())["items"][0]["id"]
        ends_s = time.monotonic() + spec.seconds
        eating = [
            asyncio.create_task(_take(session, each, result))
            for each in appetites(plan_id)
            for _ in range(each.connections)
        ]
        await asyncio.sleep(ends_s - time.monotonic())
        for task in eating:
            task.cancel()
        await asyncio.gather(*eating, return_exceptions=True)
    return result


async def _take(
    session: aiohttp.ClientSession, appetite: Appetite, result: FloodResult
) -> None:
    what = f"{appetite.method} {appetite.path}"
    result.taken_by.setdefault(what, 0)
    while True:
        try:
            async with session.request(
                appetite.method, appetite.path, json=appetite.body
            ) as answer:
                result.note(answer.status, what, answer.headers.get("Retry-After"))
                result.taken_by[what] += answer.ok
                if not appetite.is_read and answer.ok:
                    await asyncio.Event().wait()
                # A file is taken to its end; half of one would free its place sooner.
                with contextlib.suppress(aiohttp.ClientPayloadError):
                    await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            result.note(None, f"{what}: {error!r}", None)


if __name__ == "__main__":
    main()
