"""What open dashboards cost the API, and how soon a page shows what happened.

    python -m bench.dashboard [--open 50] [--seconds 20]

1,000 GPUs on 125 nodes with three replicas each and 200 services; every node reports each second, and the gauges of
every GPU change each time. `plimsoll serve` runs with an embedded PostgreSQL with the loop off. Prints the API
process's share of a core with no dashboard and with some open on the overview, their difference per page, and the
time from the acknowledgement of an observation to its event in a browser's stream. With Playwright and Chromium also
every page's weight over the wire and its first paint.
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from random import Random
from statistics import median

import aiohttp
import msgspec
import psutil

from agents.base.protocol import Observation, ReplicaReading, ServiceReading
from app.db.operations.token_secrets import TokenOrder
from app.store.store import PolicySettings
from app.web.pages import PAGES
from bench.real_store import (
    Fleet,
    agent_orders,
    json_headers,
    make_tokens,
    observations,
    open_fleet,
    place_replicas,
    temporary_database,
)
from bench.report import Figures, print_table, write_results
from bench.sync import serving, until_ready
from solvers.types.state import Mode

FLEET = Fleet(nodes=125, gpus_per_node=8, services=200)
REPLICAS_PER_GPU = 3
PERIOD_S = 1.0
VIEWER = "viewer"
TOPICS = "/live?" + "&".join(
    f"topic={name}"
    for name in (
        *("header", "fleet", "gauges", "services"),
        *("service_status", "budgets"),
    )
)
MARKS = 20
CHROMIUM = shutil.which("chromium")


def main() -> int:
    """Fill, measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.dashboard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--open", type=int, default=50, help="dashboards (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="of each measurement (default: %(default)s)",
    )
    options = parser.parse_args()
    with temporary_database() as url:
        secrets = asyncio.run(_fill(url))
        with serving(url) as (base, process):
            costs = asyncio.run(
                _measure(base, secrets, process, options.open, options.seconds)
            )
            pages = _pages(base, secrets[VIEWER])
    print_table(costs)
    print_table(pages)
    write_results("dashboard", [*costs, *pages])
    return 0


async def _fill(url: str) -> dict[str, str]:
    """The fleet; the tokens of its agents by their nodes, and a viewer's."""
    now = datetime.now(UTC)
    settings = PolicySettings(window_s=2.0, mode=Mode.OFF)
    async with open_fleet(url, FLEET, settings, now) as engine:
        viewer = TokenOrder(name=VIEWER, scope="viewer")
        seen = observations(FLEET, {}, sequence=1, end=now, window_s=PERIOD_S)
        await place_replicas(engine, [_full(each, Random(7)) for each in seen], now)
        return await make_tokens(engine, [viewer, *agent_orders(FLEET.node_types())])


async def _measure(
    base: str,
    secrets: dict[str, str],
    process: psutil.Process,
    pages: int,
    seconds: float,
) -> list[Figures]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        base, connector=connector, read_bufsize=2**24
    ) as session:
        await until_ready(session)
        reports = asyncio.create_task(_report(session, secrets))
        await asyncio.sleep(5.0)  # Connections are made and caches filled.
        alone = await _share(process, seconds)
        async with _opened(session, secrets[VIEWER], pages):
            await asyncio.sleep(3.0)  # Everybody has been sent everything once.
            watched = await _share(process, seconds)
            late_s = await _lateness(session, secrets)
        reports.cancel()
    row: Figures = {
        "gpus": FLEET.gpus,
        "services": FLEET.services,
        "dashboards": pages,
        "api_core_percent_without": alone,
        "api_core_percent_with": watched,
        "dashboards_core_percent": watched - alone,
        "event_after_ack_ms_p50": 1000.0 * median(late_s),
        "event_after_ack_ms_max": 1000.0 * max(late_s),
    }
    return [row]


async def _share(process: psutil.Process, seconds: float) -> float:
    """Percent of a core that a process took."""
    before, began_s = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return 100.0 * used_s / (time.monotonic() - began_s)


async def _report(session: aiohttp.ClientSession, secrets: dict[str, str]) -> None:
    """Every node says each second what it measures, one after the other over the period."""
    draw = Random(7)
    for sequence in count(1):
        began_s = time.monotonic()
        entries = observations(
            FLEET, {}, sequence=sequence, end=datetime.now(UTC), window_s=PERIOD_S
        )
        for at, entry in enumerate(
            entries[:-1]
        ):  # The last one tells of the moments that are looked for.
            await asyncio.sleep(
                max(0.0, began_s + PERIOD_S * at / FLEET.nodes - time.monotonic())
            )
            body = msgspec.json.encode(_full(entry, draw))
            headers = json_headers(secrets[entry.node])
            async with session.post(
                f"/api/v1/nodes/{entry.node}/sync", data=body, headers=headers
            ) as answer:
                await answer.read()


def _full(entry: Observation, draw: Random) -> Observation:
    names = [service.name for service in FLEET.nouns()]
    first = int(entry.node[1:]) * FLEET.gpus_per_node
    gpus = tuple(
        msgspec.structs.replace(
            gpu, power_w=draw.uniform(60, 250), memory_used_mib=draw.uniform(1e3, 15e3)
        )
        for gpu in entry.gpus
    )
    replicas = tuple(
        ReplicaReading(
            id=f"{entry.node}-{gpu.index}-{place}",
            service=names[(first + 3 * gpu.index + place) % len(names)],
            gpu_index=gpu.index,
            state="ready",
            sm_percent=30.0,
            batch=8,
            memory_mib=1024.0,
        )
        for gpu in entry.gpus
        for place in range(REPLICAS_PER_GPU)
    )
    services = tuple(
        ServiceReading(
            service=name, arrivals=5, served=5, in_slo=5, latency_buckets=((20, 5),)
        )
        for name in names[:8]
    )
    return msgspec.structs.replace(
        entry, gpus=gpus, replicas=replicas, services=services
    )


@asynccontextmanager
async def _opened(
    session: aiohttp.ClientSession, secret: str, pages: int
) -> AsyncIterator[None]:
    """`pages` browsers' streams, read as they come."""
    tasks = [asyncio.create_task(_look(session, secret)) for _ in range(pages)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look(session: aiohttp.ClientSession, secret: str) -> None:
    async with session.get(
        TOPICS, headers={"Authorization": f"Bearer {secret}"}
    ) as answer:
        async for _ in answer.content.iter_any():
            pass


async def _lateness(
    session: aiohttp.ClientSession, secrets: dict[str, str]
) -> list[float]:
    """Seconds from the acknowledgement of an observation to the event that carries it, at moments that a seed chose."""
    draw, late_s = Random(11), []
    watching = {"Authorization": f"Bearer {secrets[VIEWER]}"}
    async with session.get("/live?topic=gauges", headers=watching) as answer:
        lines = aiter(answer.content)
        for mark in range(1, MARKS + 1):
            await asyncio.sleep(draw.uniform(0.0, 2.0))
            power_w = 1000.0 + mark
            await _post_mark(session, secrets, mark, power_w)
            acked_s = time.monotonic()
            while f",{power_w:.0f},".encode() not in await anext(lines):
                pass
            late_s.append(time.monotonic() - acked_s)
    return late_s


async def _post_mark(
    session: aiohttp.ClientSession,
    secrets: dict[str, str],
    sequence: int,
    power_w: float,
) -> None:
    entry = observations(
        FLEET, {}, sequence=sequence, end=datetime.now(UTC), window_s=PERIOD_S
    )[-1]
    gpus = tuple(msgspec.structs.replace(gpu, power_w=power_w) for gpu in entry.gpus)
    headers = json_headers(secrets[entry.node])
    body = msgspec.json.encode(msgspec.structs.replace(entry, gpus=gpus))
    async with session.post(
        f"/api/v1/nodes/{entry.node}/sync", data=body, headers=headers
    ) as answer:
        answer.raise_for_status()


def _pages(base: str, secret: str) -> list[Figures]:
    """Weight and first paint of every page about everything, in a browser without a cache."""
    if CHROMIUM is None:
        print("no Chromium: pages are not weighed", file=sys.stderr)
        return []
    from playwright.sync_api import sync_playwright

    rows: list[Figures] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for page in (each for each in PAGES if "{" not in each.address):
            context = browser.new_context()
            tab = context.new_page()
            tab.goto(f"{base}/login?next={page.address}")
            tab.fill("#token", secret)
            tab.click("button.primary")
            tab.wait_for_url(f"**{page.address}")
            rows.append({"page": page.name, **_weigh(tab)})
            context.close()
        browser.close()
    return rows


def _weigh(tab: object) -> Figures:
    """Reload without a cache; sum what came over the wire but the stream, and ask when something was painted."""
    from playwright.sync_api import Page

    assert isinstance(tab, Page)
    wire = tab.context.new_cdp_session(tab)
    wire.send("Network.enable")
    wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
    sizes: list[float] = []
    wire.on(
        "Network.loadingFinished",
        lambda event: sizes.append(event["encodedDataLength"]),
    )
    tab.reload(wait_until="load")
    tab.wait_for_timeout(2000)
    painted_ms = tab.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    return {"weight_kb": sum(sizes) / 1000.0, "first_paint_ms": float(painted_ms)}


if __name__ == "__main__":
    sys.exit(main())
