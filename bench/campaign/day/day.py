"""A day of 200 GPUs in minutes: what the database grows by, what retention leaves of it, and whether memory is flat.

The clock of the control plane and of its agents runs faster; all else is real: `plimsoll serve` with its controller and
solver as processes, PostgreSQL, agents over HTTP, one sync per node and five simulated minutes. Every hour a service is
deployed, every second hour an agent starts again, every third hour a node is drained and taken back; in the fourth hour
the control plane itself is started again.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import aiohttp
import numpy as np
import psutil

from app.base.clock import WallClock
from app.db.operations.token_secrets import TokenOrder
from app.store.store import PolicySettings
from bench.campaign.day.fleet import HOUR_S, PERIOD_S, DayFleet
from bench.campaign.day.growth import (
    LONG_AFTER,
    TableSize,
    forget_all,
    kept_bytes,
    measure,
    unbounded,
)
from bench.campaign.deployment.changes import manifest
from bench.campaign.deployment.plane import LOOK_S
from bench.campaign.deployment.processes import Program, beside
from bench.campaign.outcome import RowOptions, RowOutcome, too_few
from bench.real_store import (
    Fleet,
    agent_orders,
    make_tokens,
    observations,
    open_fleet,
    temporary_server,
)
from bench.report import Figures
from bench.sync import until_ready
from tests.ports import a_free_port, own_environment

FLEET = Fleet(nodes=25, gpus_per_node=8, services=10)
POLICY = PolicySettings(
    period_s=PERIOD_S,
    window_s=PERIOD_S,
    # Some wall seconds at any speed: on a busy machine reports are late.
    stale_after_s=HOUR_S,
)
RESTART_HOUR, WARM_HOURS = 3, 6.0
LARGEST_SLOPE_PERCENT = 1.0
MIN_ARRIVED = 0.9
"""Of the reports that are due, and of the looks at each process."""
OF_REPORTS = (
    "observation",
    "gpu_observation",
    "service_observation",
    "service_window",
)
"""Tables with rows of every report."""
SAMPLES_PER_HOUR = 4
MIB = 2**20


@dataclass(slots=True, kw_only=True)
class DayRun:
    """One day's parts, and what was seen of them."""

    program: Program
    fleet: DayFleet
    clock: WallClock
    session: aiohttp.ClientSession
    admin: str
    draw: Random
    began_s: float
    rss: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By process: hours of the day and MiB."""
    looks: int = 0
    """At the memory of all processes."""
    refused: list[str] = field(default_factory=list)

    @property
    def hours(self) -> float:
        return (self.clock.now_s() - self.began_s) / HOUR_S

    async def until(self, hour: float) -> None:
        await self.clock.sleep((hour - self.hours) * HOUR_S)

    async def call(self, method: str, path: str, body: object = None) -> None:
        """What an operator does; refusals are noted."""
        headers = {"Authorization": f"Bearer {self.admin}", "If-Match": "*"}
        url = f"{self.fleet.url}/api/v1/{path}"
        async with self.session.request(
            method, url, json=body, headers=headers
        ) as answer:
            if answer.status >= 400:
                self.refused.append(
                    f"{method} {path}: {answer.status} {(await answer.text())[:200]}"
                )


async def run(options: RowOptions) -> RowOutcome:
    """The simulated hours in the seconds given, then retention."""
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-campaign-") as name,
        temporary_server() as server,
    ):
        now = datetime.now(UTC)
        async with open_fleet(server.url, FLEET, POLICY, now) as engine:
            orders = agent_orders(FLEET.node_types())
            orders += [TokenOrder(name="admin", scope="admin")]
            secrets = await make_tokens(engine, orders)
        before = measure(server.url)
        async with _running(Path(name), server.url, secrets, options) as run:
            await _live(run, options.hours)
            failed = (*run.fleet.failed(), *run.refused)
        grown = measure(server.url)
        await _let_forget(server.url, run.clock.now())
        left = measure(server.url)
    flat = _slopes(run, options.hours)
    return RowOutcome(
        figures=(
            *_growth(before, grown, left, options.hours),
            {"what": "reports", "bytes_each": _bytes_per_report(before, grown)},
            _kept_for_ever(before, grown, left, options.hours),
            *_memory(run, flat),
        ),
        violations=(
            *failed,
            *unbounded(before, grown, left, gpus=FLEET.gpus),
        ),
        too_slow=tuple(_uneven(flat, options.hours)),
        not_done=(
            *_too_little(before, grown, options.hours),
            *_unseen(run.rss, run.looks),
        ),
    )


@asynccontextmanager
async def _running(
    directory: Path, url: str, secrets: Mapping[str, str], options: RowOptions
) -> AsyncIterator[DayRun]:
    anchor_s, speed = time.time(), options.hours * HOUR_S / options.seconds
    port = a_free_port()
    program = Program(
        arguments=(
            "-m",
            "bench.campaign.deployment.fast_plane",
            str(anchor_s),
            str(speed),
        ),
        environment={
            **own_environment(),
            "PLIMSOLL_DATABASE_URL": url,
            "PLIMSOLL_LOG_LEVEL": "warning",
            "PLIMSOLL_PORT": str(port),
        },
        log=directory / "plane.log",
    )
    address = f"http://127.0.0.1:{port}"
    clock = WallClock(speed=speed, anchor_s=anchor_s)
    fleet = DayFleet(
        fleet=FLEET, url=address, secrets=secrets, anchor_s=anchor_s, speed=speed
    )
    async with beside(program.keep()), aiohttp.ClientSession(address) as session:
        await _until_up(session)
        async with fleet:
            yield DayRun(
                program=program,
                fleet=fleet,
                clock=clock,
                session=session,
                admin=secrets["admin"],
                draw=Random(options.seed),
                began_s=clock.now_s(),
            )


async def _until_up(session: aiohttp.ClientSession) -> None:
    await asyncio.sleep(LOOK_S)
    await until_ready(session)


async def _live(run: DayRun, hours: float) -> None:
    """Hour by hour what people and machines do."""
    for step in range(int(hours * SAMPLES_PER_HOUR)):
        await run.until(step / SAMPLES_PER_HOUR)
        if step % SAMPLES_PER_HOUR == 0:
            await _happen(run, step // SAMPLES_PER_HOUR)
        _sample(run)
    await run.until(hours)


async def _happen(run: DayRun, hour: int) -> None:
    nodes = sorted(FLEET.node_types())
    if hour == RESTART_HOUR:
        run.program.kill()
        await _until_up(run.session)
    service = run.draw.choice(FLEET.nouns()).name
    await run.call("PUT", f"services/{service}", _manifest(service, 1 + hour % 4))
    if hour % 2 == 0:
        await run.fleet.restart(run.draw.choice(nodes))
    if hour % 3 == 0:
        node = nodes[hour % len(nodes)]
        await run.call("POST", f"nodes/{node}/drain", {})
    if hour % 3 == 1 and hour > 1:
        await run.call("POST", f"nodes/{nodes[(hour - 1) % len(nodes)]}/undrain", {})


def _manifest(name: str, min_replicas: int) -> dict[str, object]:
    service = next(each for each in FLEET.nouns() if each.name == name)
    slo_ms = service.slo.latency_ms
    return manifest(name, min_replicas, network=service.network, latency_ms=slo_ms)


def _sample(run: DayRun) -> None:
    """The memory of the control plane's processes; of one that is not there yet, nothing."""
    assert run.program.process is not None
    run.looks += 1
    with contextlib.suppress(psutil.NoSuchProcess):
        api = psutil.Process(run.program.process.pid)
        # The controller is the only child of the API that has children of its own.
        controllers = [each for each in api.children() if each.children()]
        found = {"api": api}
        found.update(("controller", each) for each in controllers[:1])
        for name, process in found.items():
            mib = process.memory_info().rss / MIB
            run.rss.setdefault(name, []).append((run.hours, mib))


async def _let_forget(url: str, ended: datetime) -> None:
    (last, *_) = observations(
        FLEET, {}, sequence=1, end=ended + LONG_AFTER, window_s=PERIOD_S
    )
    await forget_all(url, last, ended)


def _added(
    before: Mapping[str, TableSize], grown: Mapping[str, TableSize], table: str
) -> int:
    return grown[table].rows - before[table].rows


def _too_little(
    before: Mapping[str, TableSize], grown: Mapping[str, TableSize], hours: float
) -> tuple[str, ...]:
    """What a day must have brought, or its figures say nothing of one."""
    least = {
        "observation": _expected(hours) * MIN_ARRIVED,
        # A service is deployed every hour, now and then as it was.
        "plan": hours,
        "target": hours / 2.0,
    }
    return too_few(
        {f"new rows of {table}": _added(before, grown, table) for table in least},
        {f"new rows of {table}": count for table, count in least.items()},
    )


def _unseen(
    rss: Mapping[str, Sequence[tuple[float, float]]], looks: int
) -> tuple[str, ...]:
    """Processes whose memory was seen so seldom that a slope says nothing."""
    seen = {name: len(rss.get(name, ())) for name in ("api", "controller")}
    return too_few(
        {f"looks at the memory of {name}": count for name, count in seen.items()},
        {f"looks at the memory of {name}": looks * MIN_ARRIVED for name in seen},
    )


def _expected(hours: float) -> float:
    return len(FLEET.node_types()) * hours * HOUR_S / PERIOD_S


def _bytes_per_report(
    before: Mapping[str, TableSize], grown: Mapping[str, TableSize]
) -> float:
    """By how much the tables that grow with each have grown: what a faster rate of reports costs follows from it."""
    size_bytes = sum(
        grown[table].size_bytes - before[table].size_bytes for table in OF_REPORTS
    )
    return size_bytes / max(_added(before, grown, "observation"), 1)


def _slopes(run: DayRun, hours: float) -> dict[str, float]:
    """Growth of each process in percent of its mean per simulated hour, after the warm-up."""
    warm = min(WARM_HOURS, hours / 2.0)
    found = {}
    for name, samples in run.rss.items():
        settled = np.array([each for each in samples if each[0] >= warm])
        if len(settled) > 1:
            slope = np.polyfit(settled[:, 0], settled[:, 1], 1)[0]
            found[name] = float(100.0 * slope / settled[:, 1].mean())
    return found


def _uneven(slopes: Mapping[str, float], hours: float) -> list[str]:
    # A shorter slice is over before caches are full.
    if hours < 2.0 * WARM_HOURS:
        return []
    return [
        f"memory of {name} grows by {slope:.2f} % per simulated hour"
        for name, slope in slopes.items()
        if slope > LARGEST_SLOPE_PERCENT
    ]


def _memory(run: DayRun, slopes: Mapping[str, float]) -> list[Figures]:
    return [
        {
            "what": f"memory of {name}",
            "mib_last": run.rss[name][-1][1],
            "percent_per_hour": slope,
        }
        for name, slope in slopes.items()
    ]


def _growth(
    before: Mapping[str, TableSize],
    grown: Mapping[str, TableSize],
    left: Mapping[str, TableSize],
    hours: float,
) -> list[Figures]:
    """Every table that grew, from the one that grew most; per GPU and day of 24 hours."""
    per_gpu_day = 24.0 / hours / FLEET.gpus
    rows: list[Figures] = [
        {
            "what": table,
            "rows_per_gpu_day": (size.rows - before[table].rows) * per_gpu_day,
            "bytes_per_gpu_day": (size.size_bytes - before[table].size_bytes)
            * per_gpu_day,
            "rows_left_per_gpu_day": (left[table].rows - before[table].rows)
            * per_gpu_day,
        }
        for table, size in grown.items()
        if size.rows > before[table].rows
    ]
    return sorted(rows, key=lambda row: -float(row["bytes_per_gpu_day"] or 0.0))


def _kept_for_ever(
    before: Mapping[str, TableSize],
    grown: Mapping[str, TableSize],
    left: Mapping[str, TableSize],
    hours: float,
) -> Figures:
    per_gpu_day = kept_bytes(before, grown, left) * 24.0 / hours / FLEET.gpus
    return {
        "what": "kept for ever",
        "kept_bytes_per_gpu_day": per_gpu_day,
        "kept_mib_per_gpu_year": per_gpu_day * 365.0 / MIB,
    }
