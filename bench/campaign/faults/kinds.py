"""What goes wrong in the row `fault`: how each fault begins, how it ends, and which events must tell of it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import psycopg

from app.db.base.leader import LEADER_LOCK
from bench.campaign.deployment.clock import Clock
from bench.campaign.deployment.namespaces import OtherHost
from bench.campaign.deployment.plane import RunningPlane
from bench.campaign.deployment.processes import LOOK_S, Program
from bench.campaign.deployment.proxy import Failure, Proxy

HOUR_S = 3600
BEYOND_RETENTION_H = 9 * 24
"""More than `fault.RETENTION`."""
SILENT = ("LoopHeld", "NodeSilent")
"""The loop hears no node, or not this one."""
LED = ("LeadTaken",)
SKEWED = ("NodeClockSkewed",)
LED_WITHIN_S = 120.0
TAKEOVERS = 3
GOES_ON_S = 1.0
"""For what a controller had begun when it was stopped."""
_END_LEAD = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND ((classid::bigint << 32) | objid::bigint) = %s
"""
_CONNECTIONS = 200
"""More than PostgreSQL takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What faults are made with."""

    plane: RunningPlane
    to_api: Proxy
    api_to_database: Proxy
    controller_to_database: Proxy
    clocks: "dict[str, Clock]"
    """Of `agents`, `plane` and `database`; empty without a C compiler."""
    disk: Path | None
    """A small disk that holds PostgreSQL's data; None where none may be mounted."""
    host: OtherHost | None
    """Which can vanish; None where none may be made."""
    took_s: dict[str, float] = field(default_factory=dict)
    """By fault: how long something was away while it lasted, where the fault alone can tell."""


Begin: TypeAlias = Callable[[Surroundings], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong for some seconds."""

    name: str
    begin: Begin
    """Entering begins it, leaving ends it."""
    events: tuple[str, ...]
    """Kinds of which at least one must be in the audit; empty: only where a node stays without an answer for long."""
    needs: str = ""
    """`clock`, `disk` or `host`: what it is skipped without."""


def _link(name: str, failure: Failure, *, ends_by: Failure = "none") -> Begin:
    """One connection of the deployment fails that way, and at the end for a moment in another one."""

    @asynccontextmanager
    async def begin(around: Surroundings) -> AsyncIterator[None]:
        proxy: Proxy = getattr(around, name)
        proxy.fail(failure)
        try:
            yield
        finally:
            proxy.fail(ends_by)
            proxy.fail("none")

    return begin


@asynccontextmanager
async def _two_controllers(around: Surroundings) -> AsyncIterator[None]:
    """Three times the leader hangs, loses the session with the lock alone, and goes on while the other one leads.

    Its other sessions live, so that nothing but the epoch keeps it from writing what it had begun.
    """
    plane = around.plane
    async with second_controller(plane, plane.database.server.url) as second:
        leads, follows = plane.controller, second
        for _ in range(TAKEOVERS):
            await hand_over(plane, leads, follows)
            leads, follows = follows, leads
        yield


@asynccontextmanager
async def second_controller(
    plane: RunningPlane, url: str, before: Sequence[str] = ()
) -> AsyncIterator[Program]:
    """Next to the deployment's own, on that database; `before` starts it on another host."""
    second = Program(
        arguments=plane.controller.arguments[:-2],
        environment={**plane.controller.environment, "PLIMSOLL_DATABASE_URL": url},
        log=plane.controller.log.with_name("second.log"),
        before=before,
    )
    keeper = asyncio.create_task(second.keep())
    try:
        yield second
    finally:
        plane.controller.send(signal.SIGCONT)
        keeper.cancel()
        await asyncio.wait([keeper])


async def hand_over(plane: RunningPlane, leads: Program, follows: Program) -> None:
    """The leader hangs until the other one leads. Raises TimeoutError."""
    leads.send(signal.SIGSTOP)
    await asyncio.to_thread(_end_lead, plane)
    await until_led_by(plane, follows)
    leads.send(signal.SIGCONT)
    await asyncio.sleep(GOES_ON_S)


def _end_lead(plane: RunningPlane) -> None:
    """End the session that holds the leader's lock, and no other."""
    with psycopg.connect(plane.database.server.conninfo) as connection:
        connection.execute(_END_LEAD, (LEADER_LOCK,))


async def _until_led_anew(plane: RunningPlane) -> None:
    """The controller that was killed is there again and leads. Raises TimeoutError."""
    killed = plane.controller.process
    async with asyncio.timeout(LED_WITHIN_S):
        while plane.controller.process is killed:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    await until_led_by(plane, plane.controller)


async def until_led_by(plane: RunningPlane, program: Program) -> None:
    """Raises TimeoutError."""

    def leads() -> bool:
        with psycopg.connect(plane.database.server.conninfo) as connection:
            found = connection.execute("SELECT holder FROM leader").fetchone()
        # Its process now: a program that was killed is started again.
        process = program.process
        assert process is not None
        return found is not None and str(found[0]).endswith(f":{process.pid}")

    async with asyncio.timeout(LED_WITHIN_S):
        while not await asyncio.to_thread(leads):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _full_pool(around: Surroundings) -> AsyncIterator[None]:
    """Somebody takes every connection that PostgreSQL has; the deployment's are reset, so that it needs new ones."""
    around.api_to_database.fail("reset")
    around.controller_to_database.fail("reset")
    url = around.plane.database.server.conninfo
    taken = await asyncio.to_thread(_connections, url)
    around.api_to_database.fail("none")
    around.controller_to_database.fail("none")
    try:
        yield
    finally:
        for each in taken:
            each.close()


def _connections(url: str) -> Sequence[psycopg.Connection]:
    taken: list[psycopg.Connection] = []
    with contextlib.suppress(psycopg.OperationalError):
        while len(taken) < _CONNECTIONS:
            taken.append(psycopg.connect(url, autocommit=True))
    return taken


@asynccontextmanager
async def _full_disk(around: Surroundings) -> AsyncIterator[None]:
    assert around.disk is not None
    ballast = around.disk / "ballast"
    await asyncio.to_thread(_fill, ballast)
    try:
        yield
    finally:
        ballast.unlink()


def _fill(path: Path) -> None:
    """Until there is no room."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, bytes(1 << 16)):
            pass
    os.close(file)


def _clock(of: str, offset_s: int) -> Begin:
    """The clock of those processes jumps; Plimsoll's are started again, since a running one follows no step.

    So the API alone sees another date than the controller: both have one clock, and the controller runs on.

    The database's is followed at once, but what is kept is decided by the hour and by a controller that begins to
    lead: that one is started again, and leads before the fault is held.
    """

    @asynccontextmanager
    async def begin(around: Surroundings) -> AsyncIterator[None]:
        plane = around.plane
        programs: dict[str, tuple[Program, ...]] = {
            "agents": tuple(plane.agents.values()),
            "api": (plane.api,),
            "plane": (plane.api, plane.controller),
            "database": (plane.controller,),
        }

        def jump(to_s: int) -> None:
            around.clocks["plane" if of == "api" else of].set(to_s)
            for each in programs[of]:
                each.kill()

        jump(offset_s)
        try:
            if of == "database":
                await _until_led_anew(plane)
            else:
                await plane.until_answered(time.monotonic())
            yield
        finally:
            jump(0)

    return begin


@contextmanager
def small_disk(directory: Path) -> Iterator[Path | None]:
    """A disk in memory, gone afterwards; None where this user may mount none."""
    directory.mkdir()
    mount = shutil.which("mount")
    command = [
        mount or "",
        "-t",
        "tmpfs",
        "-o",
        f"size={_DISK},mode=755",
        "plimsoll",
        str(directory),
    ]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield directory
    finally:
        # Lazily: a process of PostgreSQL may live a moment longer.
        subprocess.run(["umount", "--lazy", directory], check=True)


def _cut_off(name: str) -> Begin:
    """A partition that outlasts TCP's patience of 7 s (`app.db.base.engine`), told in less: both sides give up."""
    return _link(name, "silent", ends_by="reset")


_DISK = "640m"
"""PostgreSQL's own files, its log of 80 MB and more, and what a run writes."""

_LINKS: Sequence[tuple[str, Failure, tuple[str, ...], tuple[str, ...]]] = (
    ("slow connections", "slow", (), SILENT),
    ("resets", "reset", SILENT, SILENT),
    ("half-open connections", "half open", (), ()),
)
"""How a connection fails; events where it is the agents', then where it is the API's to the database."""

FAULTS: Sequence[Fault] = (
    Fault(
        name="agents cut off from the API",
        begin=_link("to_api", "silent"),
        events=SILENT,
    ),
    Fault(
        name="API cut off from the database",
        begin=_cut_off("api_to_database"),
        events=SILENT,
    ),
    Fault(
        name="controller cut off from the database",
        begin=_cut_off("controller_to_database"),
        events=LED,
    ),
    Fault(name="two controllers at once", begin=_two_controllers, events=LED),
    Fault(
        name="database's connections all taken",
        begin=_full_pool,
        events=(*SILENT, *LED),
    ),
    Fault(
        name="database's disk is full",
        begin=_full_disk,
        events=(*SILENT, *LED),
        needs="disk",
    ),
    *(
        Fault(name=f"{words} of agents", begin=_link("to_api", failure), events=events)
        for words, failure, events, _ in _LINKS
    ),
    *(
        Fault(
            name=f"{words} of the API to the database",
            begin=_link("api_to_database", failure),
            events=events,
        )
        for words, failure, _, events in _LINKS
    ),
    Fault(
        name="half-open connections of the controller",
        begin=_link("controller_to_database", "half open"),
        events=LED,
    ),
    *(
        Fault(
            name=f"clock of {words} {hours:+} h",
            begin=_clock(of, hours * HOUR_S),
            events=events,
            needs="clock",
        )
        for of, words, events in (
            ("agents", "agents", SKEWED),
            ("api", "the API alone", SKEWED),
            ("plane", "API and controller", SKEWED),
            ("database", "the database", LED),
        )
        for hours in (1, -1, *([BEYOND_RETENTION_H] if of == "database" else []))
    ),
)
