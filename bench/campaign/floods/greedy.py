"""One greedy tenant on fifty connections: what others notice of it, as a ratio within one run.

Twenty nodes report once a second each and somebody reads the services twice a second, first alone and then next to the
greedy tenant, with the limits that the API ships with. A request leaves when it is due, however long those before it
take, and its latency counts from then. The greedy tenant runs at lower priority, so that on two cores it takes the
API's time and not the machine's.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import numpy as np

from app.db.operations.token_secrets import TokenOrder
from bench.campaign.deployment.plane import (
    PlaneOptions,
    running_plane,
)
from bench.campaign.deployment.processes import beside
from bench.campaign.floods.flood import FloodResult, FloodSpec, run_flood
from bench.campaign.floods.honest import HonestNodes, add_tokens
from bench.campaign.outcome import RowOptions, RowOutcome, too_few
from bench.real_store import agent_orders
from bench.report import Figures
from bench.sync import until_ready

GREEDY_TENANT = "bench.campaign.floods.greedy_tenant"
HONEST_NODES = 20
SYNC_PERIOD_S, READ_PERIOD_S = 1.0, 0.5
LARGEST_RATIO = 2.0
FLOOD_STARTS_WITHIN_S = 3.0
PLANNED_WITHIN_S = 60.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one kind of request was answered in one phase."""

    statuses: Counter[str] = field(default_factory=Counter)
    latency_ms: list[float] = field(default_factory=list)

    def figures(self, phase: str, what: str) -> Figures:
        latency_ms = self.latency_ms or [0.0]
        others = self.statuses.total() - self.statuses["200"]
        return {
            "phase": phase,
            "what": what,
            "answers": self.statuses.total(),
            "not_200": others,
            "ms_p50": float(np.percentile(latency_ms, 50)),
            "ms_p99": float(np.percentile(latency_ms, 99)),
            "ms_max": max(latency_ms),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Honest requests of some seconds."""

    syncs: Tally = field(default_factory=Tally)
    reads: Tally = field(default_factory=Tally)


async def run(options: RowOptions) -> RowOutcome:
    """A third of the seconds alone, the rest next to the greedy tenant."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-campaign-") as name:
        async with (
            running_plane(Path(name), PlaneOptions(nodes=options.nodes)) as plane,
            aiohttp.ClientSession(
                plane.url, timeout=aiohttp.ClientTimeout(total=60.0)
            ) as session,
        ):
            await until_ready(session)
            nodes = [f"honest-{number}" for number in range(HONEST_NODES)]
            secrets = await add_tokens(
                plane,
                [
                    *agent_orders(nodes),
                    TokenOrder(name="reader", scope="viewer"),
                    TokenOrder(name="greedy", scope="operator"),
                ],
            )
            honest = HonestNodes(session=session, secrets=secrets)
            async with asyncio.timeout(PLANNED_WITHIN_S):
                await plane.until_planned(session)
            for node in nodes:
                await honest.sync(node)
            before = await _measure(honest, nodes, options.seconds / 3.0)
            spec = FloodSpec(
                url=plane.url,
                secrets=secrets,
                seconds=options.seconds * 2.0 / 3.0 + FLOOD_STARTS_WITHIN_S,
                count=0,
                seed=options.seed,
            )
            sending = run_flood(GREEDY_TENANT, spec, Path(name) / "greedy")
            async with beside(sending) as flood:
                # What is measured while a process starts would count as next to it.
                await asyncio.sleep(FLOOD_STARTS_WITHIN_S)
                during = await _measure(honest, nodes, options.seconds * 2.0 / 3.0)
                taken = await flood
    return _outcome(before, during, taken)


async def _measure(honest: HonestNodes, nodes: list[str], seconds: float) -> Phase:
    """All honest requests of `seconds` seconds."""
    phase = Phase()
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, node in enumerate(nodes):
            # Spread over the period, as agents that were started by hand are.
            first_s = began_s + SYNC_PERIOD_S * number / len(nodes)
            due = np.arange(first_s, began_s + seconds, SYNC_PERIOD_S).tolist()
            group.create_task(_send(partial(honest.sync, node), due, phase.syncs))
        due = np.arange(began_s, began_s + seconds, READ_PERIOD_S).tolist()
        group.create_task(_send(honest.read_services, due, phase.reads))
    return phase


async def _send(
    request: Callable[[], Awaitable[int]], due: Iterable[float], tally: Tally
) -> None:
    """One after the other, as agents and scripts do; what was due meanwhile is sent late, and counts from then."""
    for due_s in due:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        try:
            tally.statuses[str(await request())] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.statuses[type(error).__name__] += 1
        tally.latency_ms.append(1000.0 * (time.monotonic() - due_s))


def _outcome(before: Phase, during: Phase, greedy: FloodResult) -> RowOutcome:
    ratio = _ratio(before.syncs, during.syncs)
    violations = list(greedy.broken)
    too_slow = (
        [f"others' sync p99 became {ratio:.1f} times what it was"]
        if ratio > LARGEST_RATIO
        else []
    )
    tallies: Mapping[str, Tally] = {
        "syncs before": before.syncs,
        "reads before": before.reads,
        "syncs": during.syncs,
        "reads": during.reads,
    }
    for what, tally in tallies.items():
        if set(tally.statuses) != {"200"}:
            violations.append(f"others' {what} were answered {dict(tally.statuses)}")
    taken = {f"2xx to {what}": count for what, count in greedy.taken_by.items()}
    figures: tuple[Figures, ...] = (
        before.syncs.figures("before", "others' syncs"),
        during.syncs.figures("during", "others' syncs"),
        before.reads.figures("before", "others' reads"),
        during.reads.figures("during", "others' reads"),
        {
            "phase": "during",
            "what": "greedy tenant",
            "answers": greedy.sent,
            "not_200": greedy.sent - greedy.statuses.get("200", 0),
            **{f"answers_{each}": n for each, n in sorted(greedy.statuses.items())},
        },
        {"phase": "during", "what": "ratio of syncs' p99", "ratio": ratio},
    )
    return RowOutcome(
        figures=figures,
        violations=tuple(violations),
        too_slow=tuple(too_slow),
        not_done=too_few(taken, dict.fromkeys(taken, 1)),
    )


def _ratio(before: Tally, during: Tally) -> float:
    return float(
        np.percentile(during.latency_ms, 99) / np.percentile(before.latency_ms, 99)
    )
