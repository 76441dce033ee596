"""Fuzzed calls and fuzzed syncs against real processes: no server error, and nothing holds the event loop for long.

Both floods go at the same time, one process each, at lower priority. Next to them an honest node reports twice a second
and must be answered 200 each time.
"""

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import msgspec

from bench.campaign.deployment.plane import PlaneOptions, RunningPlane, running_plane
from bench.campaign.deployment.processes import beside
from bench.campaign.deployment.watched import (
    HOLDS_FILE,
    WATCHED_API,
    Hold,
    forget_holds,
    read_holds,
)
from bench.campaign.floods.callers import CALLERS, NO_CALLERS
from bench.campaign.floods.flood import FloodResult, FloodSpec, run_flood
from bench.campaign.floods.honest import HonestNodes, add_tokens
from bench.campaign.outcome import RowOptions, RowOutcome, too_few
from bench.real_store import agent_orders
from bench.report import Figures
from bench.sync import until_ready

NODES_FLOODING = 40
"""Each may send twenty syncs a second."""
HONEST = "honest-node"
HONEST_PERIOD_S = 0.5
LONGEST_HOLD_MS = 250.0
NO_LIMIT = 10**9
MIN_PER_S = {"calls": 10.0, "syncs": 20.0}
"""Where no number is asked for: drawing a call takes some 20 ms, and both floods share two cores with the API."""
SETTINGS = {
    # The limits of one token are another row's; here they would refuse most calls before anything looks at them.
    "PLIMSOLL_TOKEN_RATE": "100000",
}

MIN_TAKEN = 0.05
"""Part that is answered 2xx: what is refused at the door tests the door alone."""


@dataclass(slots=True, kw_only=True)
class FuzzRun:
    """One run's parts."""

    plane: RunningPlane
    honest: HonestNodes
    kept_ids: tuple[str, ...]
    """Of the tokens that the run itself needs."""
    answers: Counter[str] = field(default_factory=Counter)
    """The honest node's, by status."""


async def run(options: RowOptions) -> RowOutcome:
    """Send both floods until their seconds or their counts are over."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-campaign-") as name:
        directory = Path(name)
        holds = directory / "holds"
        settings = {**SETTINGS, HOLDS_FILE: str(holds)}
        wanted = PlaneOptions(nodes=1, api=WATCHED_API, of_api=settings)
        async with (
            running_plane(directory, wanted) as plane,
            aiohttp.ClientSession(plane.url) as session,
        ):
            await until_ready(session)
            run = await _prepare(plane, session)
            # A start imports and compiles; that is no call's doing.
            forget_holds(holds)
            before = await plane.ticks(session)
            async with beside(_report(run)):
                calls, syncs = await _send_floods(run, options, directory)
            ticks = await plane.ticks(session) - before
            outcome = _outcome(run, calls, syncs, read_holds(holds), ticks)
            return replace(outcome, not_done=_not_done(options, calls, syncs))


async def _prepare(plane: RunningPlane, session: aiohttp.ClientSession) -> FuzzRun:
    """Tokens of many nodes, which register themselves."""
    nodes = [HONEST, *(f"fuzz-{number}" for number in range(NODES_FLOODING))]
    secrets = await add_tokens(plane, [*agent_orders(nodes), *CALLERS])
    headers = {"Authorization": f"Bearer {plane.admin}"}
    async with session.get("/api/v1/tokens?limit=500", headers=headers) as answer:
        tokens = (await answer.json())["items"]
    honest = HonestNodes(session=session, secrets=secrets)
    for node in nodes:
        assert await honest.sync(node) == 200, node
    # Who revokes the token that all calls come with ends the run.
    kept_ids = tuple(each["id"] for each in tokens)
    return FuzzRun(plane=plane, honest=honest, kept_ids=kept_ids)


async def _report(run: FuzzRun) -> None:
    while True:
        try:
            run.answers[str(await run.honest.sync(HONEST))] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            run.answers[type(error).__name__] += 1
        await asyncio.sleep(HONEST_PERIOD_S)


async def _send_floods(
    run: FuzzRun, options: RowOptions, directory: Path
) -> tuple[FloodResult, FloodResult]:
    secrets = run.honest.secrets
    callers = {each.name: secrets[each.name] for each in CALLERS}
    others = {HONEST, *callers}
    flooding = {name: each for name, each in secrets.items() if name not in others}
    spec = FloodSpec(
        url=run.plane.url,
        secrets={"admin": run.plane.admin, **callers, **NO_CALLERS},
        seconds=options.seconds,
        count=options.calls or NO_LIMIT,
        seed=options.seed,
        kept=(HONEST, *run.kept_ids),
    )
    of_syncs = msgspec.structs.replace(spec, secrets=flooding)
    calls, syncs = await asyncio.gather(
        run_flood("bench.campaign.floods.fuzz_calls", spec, directory / "calls"),
        run_flood("bench.campaign.floods.fuzz_syncs", of_syncs, directory / "syncs"),
    )
    return calls, syncs


def _not_done(
    options: RowOptions, calls: FloodResult, syncs: FloodResult
) -> tuple[str, ...]:
    found: dict[str, float] = {
        "sequences of calls": calls.sequences,
        "kinds of callers": len(calls.sent_by),
    }
    kinds = 1 + len(CALLERS) + len(NO_CALLERS)
    minimum: dict[str, float] = {"sequences of calls": 1, "kinds of callers": kinds}
    for what, flood in {"calls": calls, "syncs": syncs}.items():
        found[what] = flood.sent
        minimum[what] = options.calls or round(options.seconds * MIN_PER_S[what])
        found[f"{what} that were taken"] = flood.taken
        minimum[f"{what} that were taken"] = math.ceil(flood.sent * MIN_TAKEN)
    return too_few(found, minimum)


def _outcome(
    run: FuzzRun,
    calls: FloodResult,
    syncs: FloodResult,
    holds: Sequence[Hold],
    ticks: int,
) -> RowOutcome:
    violations = [*calls.broken, *syncs.broken]
    too_slow = [
        f"the event loop was held {hold.held_ms:.0f} ms ({hold.wall_ms:.0f} ms on the wall) by {hold.what}"
        for hold in holds
        if hold.held_ms > LONGEST_HOLD_MS
    ]
    if set(run.answers) != {"200"}:
        violations.append(f"the honest node was answered {dict(run.answers)}")
    if ticks <= 0:
        violations.append("the controller decided nothing")
    longest = holds[0] if holds else Hold(wall_ms=0.0, cpu_ms=0.0, what="")
    figures: list[Figures] = [
        _figures("calls", calls),
        _figures("syncs", syncs),
        {
            "flood": "honest node",
            "sent": run.answers.total(),
            "2xx": run.answers["200"],
        },
        {
            "flood": "event loop",
            "held_ms_max": longest.held_ms,
            "held_wall_ms_max": max((hold.wall_ms for hold in holds), default=0.0),
            "held_by": longest.what,
        },
    ]
    return RowOutcome(
        figures=tuple(figures),
        violations=tuple(violations),
        too_slow=tuple(too_slow),
    )


def _figures(flood: str, result: FloodResult) -> Figures:
    by_class = Counter[str]()
    for status, count in result.statuses.items():
        by_class[f"{status[0]}xx" if status.isdigit() else status] += count
    return {
        "flood": flood,
        "sent": result.sent,
        "sequences": result.sequences,
        "2xx": by_class["2xx"],
        "4xx": by_class["4xx"],
        "5xx": by_class["5xx"],
        "no_answer": by_class["none"],
        "broken": result.broken_count,
        "admin_calls": result.sent_by.get("admin"),
        "wrong_queries_taken": result.wrong_queries_taken,
        "right_refused": result.right_refused,
    }
