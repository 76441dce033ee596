"""One fault after the other under load: partitions, slow and lost connections, full disks and pools, wrong clocks.

Each is held for some seconds. Then, and after it ended and every node was answered and the controller decided again,
the oracle judges what is there, nothing may have been deleted, and the audit must tell of the fault.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import aiohttp
import psycopg

from bench.campaign import oracle
from bench.campaign.deployment import clock, namespaces
from bench.campaign.deployment.changes import changing_services
from bench.campaign.deployment.plane import (
    LOOK_S,
    POLICY,
    SERVICES,
    PlaneOptions,
    RunningPlane,
    running_plane,
)
from bench.campaign.deployment.proxy import Proxy
from bench.campaign.faults.hosts import HOST_FAULTS
from bench.campaign.faults.kinds import (
    FAULTS,
    SILENT,
    Fault,
    Surroundings,
    small_disk,
)
from bench.campaign.outcome import (
    BACK_WITHIN_S,
    GIVEN_UP_S,
    RowOptions,
    RowOutcome,
)
from bench.report import Figures

STALE_AFTER_S = 4.0
LONG_SILENT_S = STALE_AFTER_S + 2.0
"""And a tick, which comes once a second: by then the loop has told that a node is silent."""
RETENTION = {"PLIMSOLL_RETENTION_DAYS": "8"}
"""The least that may be set; the database's clock jumps beyond it."""
HELD_S = 6.0
"""Longer than the control plane waits for a silent node, so that it must notice."""
NODES = 3
NEEDS = {
    "clock": "no C compiler, which the clock's library needs",
    "disk": "this user may mount no disk",
    "host": "this user may make no network namespace",
}

_EVENTS = """
SELECT kind, count(*) FROM event WHERE id > {after} AND kind NOT IN ('PlanPushed', 'ServiceChanged')
GROUP BY kind ORDER BY kind
"""
"""All but the load's own."""


@dataclass(slots=True, kw_only=True)
class FaultRun:
    """The faults of one run and what came of them."""

    around: Surroundings
    session: aiohttp.ClientSession
    seen: oracle.Seen
    """After the fault before."""
    figures: list[Figures] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    too_slow: list[str] = field(default_factory=list)

    async def make(self, fault: Fault) -> None:
        """Begin it, hold it, end it, wait until all is well, and judge."""
        newest_event = await self._newest_event()
        began_s = time.monotonic()
        problems: list[str] = []
        try:
            async with fault.begin(self.around):
                await asyncio.sleep(HELD_S)
            ended_s = time.monotonic()
            await self._until_well(ended_s)
        except TimeoutError:
            ended_s = time.monotonic() - GIVEN_UP_S
            problems.append(f"not well again after {GIVEN_UP_S:.0f} s")
        back_s = time.monotonic() - ended_s
        back_s = max(back_s, self.around.took_s.get(fault.name, 0.0))
        if BACK_WITHIN_S < back_s < GIVEN_UP_S:
            self.too_slow.append(
                f"{fault.name}: all was back within {back_s:.1f} s, which must be {BACK_WITHIN_S:.0f} s at most"
            )
        before, self.seen = self.seen, await _look(self.around.plane)
        events = await self._events(newest_event)
        problems += _news(before, self.seen)
        problems += _deleted(before.kept, self.seen.kept)
        answered_s = self.around.plane.all_answered_s(asked_after_s=began_s)
        wanted = _must_tell(fault, began_s, answered_s)
        if wanted and not events.keys() & set(wanted):
            problems.append(f"no event of {' or '.join(wanted)}")
        self.violations += [f"{fault.name}: {each}" for each in problems]
        self.figures.append(
            _row(
                fault,
                "failed" if problems else "passed",
                held_s=ended_s - began_s,
                back_s=back_s,
                events=" ".join(f"{kind}:{count}" for kind, count in events.items()),
            )
        )

    async def _until_well(self, since_s: float) -> None:
        """Every node was answered, and the controller has decided. Raises TimeoutError."""
        plane = self.around.plane
        before = await plane.ticks(self.session)
        async with asyncio.timeout(GIVEN_UP_S):
            await plane.until_answered(since_s)
            # A controller that was started again counts again.
            while await plane.ticks(self.session) in (before, 0):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

    async def _newest_event(self) -> int:
        ((newest,),) = await self._ask("SELECT coalesce(max(id), 0) FROM event")
        return int(str(newest))

    async def _events(self, after: int) -> dict[str, int]:
        """How many of each kind came since."""
        found = await self._ask(_EVENTS.format(after=after))
        return {str(kind): int(str(count)) for kind, count in found}

    async def _ask(self, query: str) -> list[tuple[object, ...]]:
        url = self.around.plane.database.server.conninfo
        async with await psycopg.AsyncConnection.connect(url) as connection:
            return await (await connection.execute(query.encode())).fetchall()


async def run(options: RowOptions) -> RowOutcome:
    """As many of the faults as there is time for, in their order, from the one on that the seed says."""
    first = options.seed % len(FAULTS)
    with tempfile.TemporaryDirectory(prefix="plim-") as name:
        async with (
            _surroundings(Path(name)) as around,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
            AsyncExitStack() as stack,
        ):
            await around.plane.until_at_work(session)
            ends_s = time.monotonic() + options.seconds
            run = FaultRun(
                around=around, session=session, seen=await _look(around.plane)
            )
            changing = changing_services(around.plane, session, Random(options.seed))
            await stack.enter_async_context(changing)
            # A short slice makes the first ones only: another seed, other ones.
            for fault in (*FAULTS[first:], *FAULTS[:first], *HOST_FAULTS):
                has = {
                    "clock": bool(around.clocks),
                    "disk": around.disk is not None,
                    "host": around.host is not None,
                }
                if not has.get(fault.needs, True):
                    run.figures.append(_row(fault, f"skipped: {NEEDS[fault.needs]}"))
                elif time.monotonic() > ends_s:
                    run.figures.append(_row(fault, "left out: no time"))
                else:
                    await run.make(fault)
            await stack.aclose()
            run.violations += await around.plane.not_following()
    return RowOutcome(
        figures=tuple(run.figures),
        violations=tuple(run.violations),
        too_slow=tuple(run.too_slow),
        not_done=_not_made(run.figures),
    )


@asynccontextmanager
async def _surroundings(directory: Path) -> AsyncIterator[Surroundings]:
    """A deployment whose parts reach each other through proxies, with clocks and a disk of its own where it may."""
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(Proxy()) for _ in range(3)]
        to_api, api_to_database, controller_to_database = proxies
        disk = stack.enter_context(small_disk(directory / "disk"))
        library = await asyncio.to_thread(clock.build, directory)
        clocks = {
            of: clock.Clock(library, directory / f"clock of {of}".replace(" ", "-"))
            for of in ("agents", "plane", "database")
            if library is not None
        }
        programs = (
            clocks["database"].postgres_programs(directory / "programs")
            if clocks
            else None
        )
        host = None
        if namespaces.may_make():
            host = stack.enter_context(namespaces.other_host())
            programs = host.postgres_programs(directory / "listening", programs)
        options = PlaneOptions(
            nodes=NODES,
            address=host.here if host else "127.0.0.1",
            policy=replace(POLICY, stale_after_s=STALE_AFTER_S),
            to_api=to_api.http,
            api_to_database=api_to_database.database,
            controller_to_database=controller_to_database.database,
            of_agents=clocks["agents"].environment if clocks else {},
            of_plane={
                **RETENTION,
                **(clocks["plane"].environment if clocks else {}),
            },
            data_in=disk,
            postgres_programs=programs,
        )
        plane = await stack.enter_async_context(running_plane(directory, options))
        yield Surroundings(
            plane=plane,
            to_api=to_api,
            api_to_database=api_to_database,
            controller_to_database=controller_to_database,
            clocks=clocks,
            disk=disk,
            host=host,
        )


async def _look(plane: RunningPlane) -> oracle.Seen:
    return await asyncio.to_thread(
        oracle.look, plane.database.server.url, plane.journals, SERVICES
    )


def _not_made(figures: Sequence[Figures]) -> tuple[str, ...]:
    """Faults that were skipped or left out."""
    return tuple(
        f"{each['fault']}: {each['result']}"
        for each in figures
        if each["result"] not in ("passed", "failed")
    )


def _must_tell(
    fault: Fault, began_s: float, answered_s: float | None
) -> tuple[str, ...]:
    """Kinds of events of which there must be one; `answered_s`: when the last node was answered for the first time."""
    is_long = answered_s is None or answered_s - began_s > LONG_SILENT_S
    return fault.events or (SILENT if is_long else ())


def _news(before: oracle.Seen, after: oracle.Seen) -> list[str]:
    """What was not wrong before."""
    return [each for each in after.violations if each not in before.violations]


def _deleted(
    before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]]
) -> list[str]:
    return [
        f"{len(gone)} rows of {table} were deleted, for example {min(gone)}"
        for table, rows in before.items()
        if (gone := rows - after[table])
    ]


def _row(
    fault: Fault,
    result: str,
    *,
    held_s: float | None = None,
    back_s: float | None = None,
    events: str = "",
) -> Figures:
    return {
        "fault": fault.name,
        "result": result,
        "held_s": held_s,
        "back_s": back_s,
        "events": events,
    }
