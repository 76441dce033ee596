"""kill -9 of PostgreSQL, the API, the controller, its solver, agents, HAProxies and replicas, under load.

The load: every agent reports four times a second, a service changes every two seconds, so that plans, pushes, starts
and commands are always under way, and four requests a second go to the nodes' routers. Each victim has moments of its
own, drawn by the seed over all of the row's time, so that any of them die together or while others come back; one
that is not back yet is waited for. When each counts as back stands in `bench.campaign.faults.victims`.
"""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from random import Random

import aiohttp
import numpy as np

from agents.processes.process import HOST
from bench.campaign import oracle
from bench.campaign.deployment.changes import changing_services
from bench.campaign.deployment.plane import (
    LOOK_S,
    PROGRAMS,
    SERVICES,
    PlaneOptions,
    RunningPlane,
    running_plane,
)
from bench.campaign.deployment.processes import beside
from bench.campaign.faults.victims import (
    OF_NODE,
    OF_PLANE,
    Killed,
    Recovery,
    Victim,
    Victims,
    undisturbed,
)
from bench.campaign.outcome import (
    BACK_WITHIN_S,
    GIVEN_UP_S,
    RowOptions,
    RowOutcome,
    too_few,
)
from bench.report import Figures

SHARES: Mapping[Victim, float] = {
    **dict.fromkeys(OF_PLANE, 0.05),
    "agent": 0.45,
    "router": 0.32,
    "worker": 0.03,
}
"""Of all kills: 50 of 1,000 for each part of the control plane, whose starts cost the most; a replica may be killed
once in ten minutes only."""
RARE_S = 1.5
"""Where the mean time between two kills is at least this, the recovery times of all kills are judged. Where kills are
more frequent, most victims need something that is dead at that moment, and only undisturbed kills are judged."""
DRAWN_SHARE = 0.95
"""Of the row's time moments are drawn in: what then waits for a victim that is not back yet has the rest."""
GPUS_PER_NODE = 4
STRAYS_GONE_WITHIN_S = 20.0
MIN_PER_S = 0.05
"""Of changes accepted, targets and commands obeyed; there is about one in two seconds while nothing is dead."""
REQUEST_PERIOD_S = 0.25
REQUEST_LIMIT = aiohttp.ClientTimeout(total=1.0)


@dataclass(slots=True, kw_only=True)
class KillRun:
    """The kills of one run and what came of them."""

    victims: Victims
    draw: Random
    ends_s: float
    changes_accepted: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """Of the load, by what became of them."""
    due: Counter[Victim] = field(default_factory=Counter)
    """Kills that were to be made."""
    recoveries: list[Recovery] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    async def kill_at(
        self, moments_s: Sequence[float], victim: Victim, node: str = ""
    ) -> None:
        """Kill it at each of these moments, or as soon after it as it is there."""
        self.due[victim] += len(moments_s)
        for at_s in moments_s:
            await asyncio.sleep(at_s - time.monotonic())
            killed = None
            while killed is None:
                # At least one of each kind, however short the run or slow the machine.
                if time.monotonic() > self.ends_s and self.times_s()[victim]:
                    return
                killed = await self.victims.kill(victim, node)
                await asyncio.sleep(0.0 if killed else LOOK_S)
            back_s = await self._back_s(killed)
            self.recoveries.append(
                Recovery(victim=victim, node=node, at_s=killed.at_s, back_s=back_s)
            )
            if back_s >= GIVEN_UP_S:
                self.violations.append(f"{victim} {node} did not come back")

    def times_s(self, *, is_undisturbed: bool = False) -> dict[Victim, list[float]]:
        """How long each kill's victim took to be back, by victim."""
        found: dict[Victim, list[float]] = {each: [] for each in SHARES}
        for each in undisturbed(self.recoveries) if is_undisturbed else self.recoveries:
            found[each.victim].append(each.back_s)
        return found

    async def _back_s(self, killed: Killed) -> float:
        """Seconds from the kill; GIVEN_UP_S where it took longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVEN_UP_S):
                while (back_at_s := await self.victims.back_at_s(killed)) is None:  # noqa: ASYNC110  no process says so
                    await asyncio.sleep(LOOK_S)
                return back_at_s - killed.at_s
        return GIVEN_UP_S


async def run(options: RowOptions) -> RowOutcome:
    """Kill until the kills or the seconds are over, then judge what is left."""
    wanted = PlaneOptions(
        nodes=options.nodes, gpus_per_node=GPUS_PER_NODE, has_replicas=True
    )
    # Below /tmp by a short path, because HAProxy's sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="plim-") as name:
        async with (
            running_plane(Path(name), wanted) as plane,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
        ):
            await plane.until_at_work(session)
            draw = Random(options.seed)
            run = KillRun(
                victims=Victims(plane=plane, session=session, draw=draw),
                draw=draw,
                ends_s=time.monotonic() + options.seconds,
            )
            async with (
                changing_services(plane, session, draw) as changes,
                beside(_send_requests(run)),
            ):
                await _kill_all(run, options.kills)
            run.changes_accepted = changes["200"]
            run.violations += await _strays(plane)
            run.violations += await plane.not_following()
            await plane.stop()
            seen = await asyncio.to_thread(
                oracle.look, plane.database.server.url, plane.journals, SERVICES
            )
    return RowOutcome(
        figures=_rows(run, seen),
        violations=(*run.violations, *seen.violations),
        too_slow=tuple(_late(run, options)),
        not_done=(*_not_killed(run.due, run.times_s()), *_little(run, seen, options)),
    )


async def _send_requests(run: KillRun) -> None:
    """To one node after the other, for a service that it is to run; they fail while what they need is dead."""
    plane, session = run.victims.plane, run.victims.session
    for node in cycle(sorted(plane.router_ports)):
        await asyncio.sleep(REQUEST_PERIOD_S)
        command = plane.files[node].wanted()
        gpus = command.gpus if command else ()
        if services := [each.service for gpu in gpus for each in gpu.replicas]:
            path = f"v2/models/{run.draw.choice(services)}/infer"
            url = f"http://{HOST}:{plane.router_ports[node]}/{path}"
            is_answered = False
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.post(url, timeout=REQUEST_LIMIT) as answer:
                    is_answered = answer.ok
            run.requests["answered" if is_answered else "failed"] += 1


async def _kill_all(run: KillRun, kills: int) -> None:
    """All victims next to each other; what was not done by the end is left out."""
    began_s = time.monotonic()

    def moments(victim: Victim, of: int) -> list[float]:
        # However few are killed in all, each kind is.
        count = max(1, round(kills * SHARES[victim] / of))
        last_s = began_s + DRAWN_SHARE * (run.ends_s - began_s)
        return sorted(run.draw.uniform(began_s, last_s) for _ in range(count))

    nodes = sorted(run.victims.plane.agents)
    of_node = [each for each in OF_NODE if each != "router" or _has_haproxy()]
    killing = [run.kill_at(moments(each, 1), each) for each in OF_PLANE]
    killing += [
        run.kill_at(moments(each, len(nodes)), each, node)
        for each in of_node
        for node in nodes
    ]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(run.ends_s + GIVEN_UP_S):
            await asyncio.gather(*killing)


def _has_haproxy() -> bool:
    return shutil.which("haproxy", path=PROGRAMS) is not None


async def _strays(plane: RunningPlane) -> list[str]:
    """Replicas that live without a record once all agents are back."""
    ends_s = time.monotonic() + STRAYS_GONE_WITHIN_S
    found: list[str] = []
    for node, files in plane.files.items():
        # A child whose agent died before its record was complete leaves by itself, so it may need a moment.
        while strays := await asyncio.to_thread(files.strays):
            if time.monotonic() > ends_s:
                found.append(f"{node} has {len(strays)} replicas without a record")
                break
            await asyncio.sleep(LOOK_S)
    return found


def _rows(run: KillRun, seen: oracle.Seen) -> tuple[Figures, ...]:
    """All kills together, then each victim's."""
    times_s, undisturbed_s = run.times_s(), run.times_s(is_undisturbed=True)
    return (
        {
            "victim": "all",
            **_times(times_s.values(), undisturbed_s.values()),
            "acknowledged": seen.acknowledged,
            "commands_obeyed": seen.obeyed,
            "targets": seen.targets,
            "changes_accepted": run.changes_accepted,
            "requests_answered": run.requests["answered"],
            "requests_failed": run.requests["failed"],
        },
        *(
            {"victim": _name(victim), **_times([times], [undisturbed_s[victim]])}
            for victim, times in times_s.items()
        ),
    )


def _name(victim: Victim) -> str:
    is_skipped = victim == "router" and not _has_haproxy()
    return f"{victim} (skipped: no haproxy here)" if is_skipped else victim


def _times(
    times_s: Iterable[Sequence[float]], undisturbed_s: Iterable[Sequence[float]]
) -> Figures:
    """How many kills, and how long until what was killed was back; no times without any."""
    back_s, alone_s = (
        [*chain.from_iterable(times_s)],
        [*chain.from_iterable(undisturbed_s)],
    )
    percentiles = np.percentile(back_s, (50, 99)) if back_s else (None, None)
    return {
        "kills": len(back_s),
        "back_s_p50": percentiles[0],
        "back_s_p99": percentiles[1],
        "back_s_max": max(back_s, default=None),
        "undisturbed": len(alone_s),
        "undisturbed_p99_s": np.percentile(alone_s, 99) if alone_s else None,
    }


def _not_killed(
    due: Mapping[Victim, int], back_s: Mapping[Victim, Sequence[float]]
) -> tuple[str, ...]:
    return too_few(
        {f"kills of {victim}": len(times) for victim, times in back_s.items()},
        # However few are killed in all, each kind is.
        {f"kills of {victim}": max(1, due.get(victim, 0)) for victim in back_s},
    )


def _little(run: KillRun, seen: oracle.Seen, options: RowOptions) -> tuple[str, ...]:
    found = {
        "changes accepted": run.changes_accepted,
        "targets": seen.targets,
        "commands obeyed": seen.obeyed,
    }
    return too_few(found, dict.fromkeys(found, options.seconds * MIN_PER_S))


def _late(run: KillRun, options: RowOptions) -> Iterator[str]:
    judged = {
        f"{victim}, undisturbed,": times
        for victim, times in run.times_s(is_undisturbed=True).items()
    }
    if options.seconds / options.kills >= RARE_S:
        judged["what was killed"] = [*chain.from_iterable(run.times_s().values())]
    for what, times in judged.items():
        if times and (p99_s := np.percentile(times, 99)) > BACK_WITHIN_S:
            yield f"{what} was back within {p99_s:.1f} s (p99); {BACK_WITHIN_S:.0f} s are the limit"
