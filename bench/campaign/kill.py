"""kill -9 of PostgreSQL, the API, the controller, its solver and agents at moments that a seed chose, under load.

The load: every agent reports four times a second, and a service changes twice a second, so that plans, pushes and
commands are always under way. A round kills one to three processes within a second, so that some die while others or
they themselves come back; the next round waits until everything is back. Back is: after PostgreSQL or the API every
node was answered, after an agent its node was; after the controller or its solver the controller decided something,
where the first tick after a solver's death does not count, since it may be the one that lost it. Times are
counted from the kill, also where another process died in between.
"""

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias, get_args

import aiohttp
import numpy as np

from bench.campaign import oracle
from bench.campaign.outcome import RowOptions, RowOutcome
from bench.campaign.plane import LOOK_S, SERVICES, Kept, RunningPlane, running_plane
from bench.report import Figures

Victim: TypeAlias = Literal["postgresql", "api", "controller", "solver", "agent"]

BACK_WITHIN_S = 10.0
"""99 of 100 times."""
GIVEN_UP_S = 60.0
AT_WORK_WITHIN_S = 120.0
"""At the start, when all processes load their programs at once."""
KILLS_PER_ROUND = (1, 1, 2, 3)
LARGEST_GAP_S = 1.0
CHANGE_PERIOD_S = 0.5
CHANGED = "s00"
"""The service that changes."""
MIN_TICKS = {"controller": 1, "solver": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """One process that was killed."""

    victim: Victim
    at_s: float
    node: str = ""
    ticks_before: int = 0
    """Of the same process, which has lost its solver."""


@dataclass(slots=True, kw_only=True)
class KillRun:
    """The kills of one run and what came of them."""

    plane: RunningPlane
    session: aiohttp.ClientSession
    draw: Random
    changes: Counter[str] = field(default_factory=Counter)
    back_s: dict[Victim, list[float]] = field(
        default_factory=lambda: {each: [] for each in get_args(Victim)}
    )
    violations: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(map(len, self.back_s.values()))

    async def round(self) -> None:
        """Kill one to three, and wait until they are back."""
        killed = []
        for _ in range(self.draw.choice(KILLS_PER_ROUND)):
            await asyncio.sleep(self.draw.uniform(0.0, LARGEST_GAP_S))
            one = await self._kill(self.draw.choice(get_args(Victim)))
            killed += [one] if one else []
        for one, back_s in zip(
            killed, await asyncio.gather(*map(self._back_s, killed)), strict=True
        ):
            self.back_s[one.victim].append(back_s)
            if back_s >= GIVEN_UP_S:
                self.violations.append(f"{one.victim} {one.node} did not come back")

    async def _kill(self, victim: Victim) -> Killed | None:
        """None: it was not there to be killed."""
        plane = self.plane
        node, ticks = "", 0
        if victim == "solver":
            ticks = await plane.ticks(self.session)
            is_killed = plane.controller.kill_child()
        elif victim == "agent":
            node = self.draw.choice(sorted(plane.agents))
            is_killed = plane.agents[node].kill()
        else:
            whole: dict[Victim, Kept] = {
                "postgresql": plane.database,
                "api": plane.api,
                "controller": plane.controller,
            }
            is_killed = whole[victim].kill()
        killed = Killed(
            victim=victim, at_s=time.monotonic(), node=node, ticks_before=ticks
        )
        return killed if is_killed else None

    async def _back_s(self, killed: Killed) -> float:
        """Seconds from the kill; GIVEN_UP_S where it took longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVEN_UP_S):
                while (back_at_s := await self._back_at_s(killed)) is None:  # noqa: ASYNC110  other processes tell nobody
                    await asyncio.sleep(LOOK_S)
                return back_at_s - killed.at_s
        return GIVEN_UP_S

    async def _back_at_s(self, killed: Killed) -> float | None:
        """When it was back; None: it is not."""
        plane, after_s = self.plane, killed.at_s
        if killed.victim == "agent":
            return plane.journals[killed.node].first_answer_s(asked_after_s=after_s)
        if killed.victim in ("postgresql", "api"):
            return plane.first_answers_s(asked_after_s=after_s)
        ticks = await plane.ticks(self.session)
        # A controller that was killed, too, counts anew.
        since = ticks - killed.ticks_before if ticks >= killed.ticks_before else ticks
        return time.monotonic() if since >= MIN_TICKS[killed.victim] else None


async def run(options: RowOptions) -> RowOutcome:
    """Kill until the kills or the seconds are over, then judge what is left."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-campaign-") as name:
        async with (
            running_plane(Path(name), nodes=options.nodes) as plane,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
        ):
            run = KillRun(plane=plane, session=session, draw=Random(options.seed))
            await _until_at_work(run)
            async with _changing(run):
                await _kill_all(run, options)
            await plane.stop()
            journals = {node: each.read() for node, each in plane.journals.items()}
            seen = await asyncio.to_thread(
                oracle.look, plane.database.server.url, journals, SERVICES
            )
    return RowOutcome(
        figures=_rows(run, seen),
        violations=(*run.violations, *_late(run), *seen.violations),
    )


async def _until_at_work(run: KillRun) -> None:
    """Every node is answered and the loop decides. Raises TimeoutError."""
    async with asyncio.timeout(AT_WORK_WITHIN_S):
        while run.plane.first_answers_s(asked_after_s=0.0) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        while await run.plane.ticks(run.session) == 0:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


async def _kill_all(run: KillRun, options: RowOptions) -> None:
    ends_s = time.monotonic() + options.seconds
    while run.kills < options.kills and time.monotonic() < ends_s:
        await run.round()


@asynccontextmanager
async def _changing(run: KillRun) -> AsyncIterator[None]:
    """A service changes all the time; what the API answered is counted."""
    changing = asyncio.create_task(_change(run))
    try:
        yield
    finally:
        changing.cancel()
        await asyncio.wait([changing])


async def _change(run: KillRun) -> None:
    # Whatever the service is by now: nobody else changes it.
    headers = {"Authorization": f"Bearer {run.plane.admin}", "If-Match": "*"}
    url = f"{run.plane.url}/api/v1/services/{CHANGED}"
    for replicas in cycle((1, 2, 3)):
        try:
            async with run.session.put(
                url, json=_manifest(replicas), headers=headers
            ) as answer:
                run.changes[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError):
            run.changes["no answer"] += 1
        await asyncio.sleep(CHANGE_PERIOD_S)


def _manifest(min_replicas: int) -> dict[str, object]:
    return {
        "apiVersion": "plimsoll/v1",
        "kind": "Service",
        "metadata": {"name": CHANGED},
        "spec": {
            "network": "resnet50",
            "slo": {"latency_ms": 400.0, "percentile": 0.98},
            "scaling": {"min_replicas": min_replicas},
        },
    }


def _rows(run: KillRun, seen: oracle.Seen) -> tuple[Figures, ...]:
    """All kills together, then each victim's."""
    everything = [each for times in run.back_s.values() for each in times]
    return (
        {
            "victim": "all",
            **_times(everything),
            "acknowledged": seen.acknowledged,
            "commands_obeyed": seen.obeyed,
            "targets": seen.targets,
            "changes_accepted": run.changes["200"],
        },
        *({"victim": victim, **_times(times)} for victim, times in run.back_s.items()),
    )


def _times(back_s: Sequence[float]) -> Figures:
    """How many kills, and how long until what was killed was back; no times without any."""
    percentiles = np.percentile(back_s, (50, 99)) if back_s else (None, None)
    return {
        "kills": len(back_s),
        "back_s_p50": percentiles[0],
        "back_s_p99": percentiles[1],
        "back_s_max": max(back_s, default=None),
    }


def _late(run: KillRun) -> Iterator[str]:
    for victim, times in run.back_s.items():
        if times and (p99_s := np.percentile(times, 99)) > BACK_WITHIN_S:
            yield f"{victim} was back within {p99_s:.1f} s (p99), which must be {BACK_WITHIN_S:.0f} s at most"
