"""How cost grows with the fleet: 100, 1,000 and 10,000 GPUs with 20, 100 and 1,000 services, through the real loop.

Run: `python -m bench.scale [--gpus 100 1000 10000] [--picture FILE]`. Prints a table and the slopes, writes
bench/results/scale.json and, where wanted, an SVG.

PostgreSQL with fsync and the solver's process are real; nodes of four GPUs are simulated by their reports alone: each
follows its newest command at once and says what its replicas serve, every five seconds. A slope is that of a figure's
logarithm over the fleet's from one size to the next: 1 is a cost in proportion to the fleet.

    first tick      everything is placed again, within the policy's seconds
    kept tick       rates as before
    changed tick    each rate drawn again within 10 % of its mean
    overview, explain  what the dashboard's first page shows of all GPUs; why the first plan is as it is
    batch           a job is dispatched to one GPU: what stays of its plan, target and commands; the first one after a
                    new plan writes what the next ones share with it
"""

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import msgspec
import psutil
import uvloop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from agents.base.digests import digest_of
from agents.base.protocol import (
    NodeCommand,
    Observation,
    ReplicaReading,
    ServiceReading,
)
from app.base.clock import ManualControlClock
from app.db.postgres_store import PostgresStore
from app.loop.tick import Loop, TickOutcome, tick
from app.serve.plane import settle_memory
from app.solver.process import SolverWorker
from app.store.ingest_queue import MAX_BATCH
from app.store.store import PolicySettings
from bench.real_store import (
    Fleet,
    observations,
    open_fleet,
    temporary_database,
)
from bench.report import ROOM, Figure, Figures, print_table, write_results
from bench.scale_costs import batch_bytes, explain_s, overview_s
from bench.scale_picture import picture

FLEETS = (
    Fleet(nodes=25, gpus_per_node=4, services=20),
    Fleet(nodes=250, gpus_per_node=4, services=100),
    Fleet(nodes=2500, gpus_per_node=4, services=1000),
)
WINDOW_S = 5.0
RATE_PER_GPU_RPS = 100.0
"""Mean demand over all GPUs, of which some stay free."""
SECONDS_PER_GPU = 1e-3
"""The policy's seconds, of which it has one at least: as docs/operations.md advises for large fleets."""
KEPT, CHANGED = 5, 3
SLOPE_MUST = 1.1
DAY_S = 86_400.0
MIB = 2**20
GROWING = (
    "snapshot_ms",
    "kept_tick_ms",
    "changed_tick_ms",
    "push_ms",
    "ingest_ms_per_window",
    "overview_ms",
    "explain_ms",
    "telemetry_kb_per_window",
    "batch_kb",
    "loop_mib",
)
"""Figures whose slopes count."""
_TELEMETRY = (
    "observation",
    "service_observation",
    "gpu_observation",
    "replica_observation",
    "use_observation",
    "service_window",
)


@dataclass(slots=True)
class _Agents:
    """All nodes: each follows its newest command."""

    fleet: Fleet
    store: PostgresStore
    clock: ManualControlClock
    commands: dict[str, NodeCommand] = field(default_factory=dict)
    windows: int = 0

    async def report(self, rates_rps: Mapping[str, float]) -> float:
        """One window of every node, in groups as the API commits them; the seconds that it took to store them."""
        self.clock.advance(WINDOW_S)
        self.windows += 1
        at = self.clock.now()
        empty = observations(
            self.fleet, {}, sequence=self.windows, end=at, window_s=WINDOW_S
        )
        holders = self._holders()
        seen = [
            self._full(entry, position, rates_rps, holders)
            for position, entry in enumerate(empty)
        ]
        began_s = time.perf_counter()
        for begin in range(0, len(seen), MAX_BATCH):
            await self.store.ingest(tuple(seen[begin : begin + MAX_BATCH]), at)
        return time.perf_counter() - began_s

    async def follow(self, generation: int) -> None:
        """Take up what a target changed."""
        for command in await self.store.commands_of(generation):
            self.commands[command.node] = command

    def _holders(self) -> Counter[str]:
        """Replicas by service."""
        return Counter(
            replica.service
            for command in self.commands.values()
            for gpu in command.gpus
            for replica in gpu.replicas
        )

    def _full(
        self,
        entry: Observation,
        position: int,
        rates_rps: Mapping[str, float],
        holders: Counter[str],
    ) -> Observation:
        command = self.commands.get(entry.node)
        served: dict[str, float] = defaultdict(float)
        replicas = []
        for gpu in command.gpus if command else ():
            for each in gpu.replicas:
                share = rates_rps[each.service] / holders[each.service]
                served[each.service] += share
                replicas.append(
                    ReplicaReading(
                        id=each.id,
                        service=each.service,
                        gpu_index=gpu.index,
                        state="ready",
                        sm_percent=each.sm_percent,
                        batch=each.batch,
                        memory_mib=1024.0,
                        batches=round(share * WINDOW_S / each.batch),
                        requests=round(share * WINDOW_S),
                        execution_ms=10.0,
                    )
                )
        # What has no replica yet comes to some node all the same.
        homeless = [
            name
            for name in list(rates_rps)[position :: self.fleet.nodes]
            if name not in holders
        ]
        served |= {name: rates_rps[name] for name in homeless}
        counts = {name: round(rate * WINDOW_S) for name, rate in served.items()}
        return msgspec.structs.replace(
            entry,
            generation=0 if command is None else command.generation,
            command_digest=digest_of(command),
            replicas=tuple(replicas),
            services=tuple(
                ServiceReading(
                    service=name,
                    arrivals=count,
                    served=count,
                    in_slo=count,
                    latency_buckets=((24, count),),
                )
                for name, count in counts.items()
            ),
        )


async def measure(url: str, fleet: Fleet) -> Figures:
    """One row."""
    clock = ManualControlClock()
    settings = PolicySettings(
        window_s=WINDOW_S,
        max_replicas_per_gpu=6,
        solve_seconds=max(1.0, SECONDS_PER_GPU * fleet.gpus),
    )
    async with open_fleet(url, fleet, settings, clock.now()) as engine:
        store, solver = PostgresStore(engine), SolverWorker(threads=2)
        await solver.start()
        try:
            loop = Loop(store=store, solver=solver, clock=clock)
            return await _measured(loop, _Agents(fleet, store, clock), engine)
        finally:
            await solver.close()


async def _measured(loop: Loop, agents: _Agents, engine: AsyncEngine) -> Figures:
    fleet, draw = agents.fleet, Random(agents.fleet.gpus)
    mean_rps = RATE_PER_GPU_RPS * fleet.gpus / fleet.services
    means = {each.name: draw.uniform(0.5, 1.5) * mean_rps for each in fleet.nouns()}

    async def ticked(rates_rps: Mapping[str, float]) -> TickOutcome:
        stored_s.append(await agents.report(rates_rps))
        outcome = await tick(loop)
        await agents.follow(outcome.generation)
        return outcome

    stored_s: list[float] = []
    first = await ticked(means)
    # So that the windows of before the first replicas are over, and all rates are known.
    for _ in range(2):
        await ticked(means)
    stored_s.clear()
    kept = [await ticked(means) for _ in range(KEPT)]
    changed = [
        await ticked(
            {name: draw.uniform(0.9, 1.1) * each for name, each in means.items()}
        )
        for _ in range(CHANGED)
    ]
    # So that all nodes have said that they follow what they were given.
    stored_s.append(await agents.report(means))
    snapshot = await loop.store.load_snapshot(loop.clock.now())
    if snapshot.target is None:
        raise SystemExit(f"{fleet.gpus} GPUs got no plan: {first.reason}")
    rows, size = await _telemetry(engine, agents.windows)
    batches = await batch_bytes(loop, agents, engine, means)
    return {
        "gpus": fleet.gpus,
        "services": fleet.services,
        "gpus_used": len(snapshot.target.gpus),
        "first_tick_ms": 1000.0 * first.seconds["total"],
        "kept_tick_ms": _median_ms(kept, "total"),
        "kept": ", ".join(f"{n} {what}" for what, n in _states(kept).items()),
        "changed_tick_ms": _median_ms(changed, "total"),
        "snapshot_ms": _median_ms((*kept, *changed), "snapshot"),
        "push_ms": _median_ms(
            [one for one in changed if "push" in one.seconds], "push"
        ),
        "ingest_ms_per_window": 1000.0 * median(stored_s),
        "telemetry_rows_per_gpu_and_day": rows * DAY_S / WINDOW_S / fleet.gpus,
        "telemetry_kb_per_window": size / 1000.0,
        "overview_ms": 1000.0 * await overview_s(engine, loop.clock.now()),
        "explain_ms": 1000.0 * await explain_s(engine, first.plan_id),
        "first_batch_kb": batches[0] / 1000.0,
        "batch_kb": median(batches[1:]) / 1000.0,
        "loop_mib": psutil.Process().memory_info().rss / MIB,
    }


def _states(outcomes: Iterable[TickOutcome]) -> Counter[str]:
    return Counter(str(outcome.state) for outcome in outcomes)


def _median_ms(outcomes: Iterable[TickOutcome], step: str) -> float:
    seconds = [outcome.seconds[step] for outcome in outcomes]
    return 1000.0 * median(seconds) if seconds else math.nan


async def _telemetry(engine: AsyncEngine, windows: int) -> tuple[float, float]:
    """Rows and bytes that one window of all nodes takes, without indexes."""
    rows = size = 0
    async with engine.connect() as connection:
        for table in _TELEMETRY:
            count = (
                f"SELECT count(*), coalesce(sum(pg_column_size(t)), 0) FROM {table} t"
            )
            counted, taken = (await connection.execute(text(count))).one()
            rows, size = rows + int(counted), size + int(taken)
    return rows / windows, size / windows


def slopes(rows: Sequence[Figures]) -> list[Figures]:
    """From each size to the next, the exponent with which each figure grows, and whether all are as they must be."""
    made: list[Figures] = []
    for small, large in pairwise(rows):
        growth = math.log(_number(large["gpus"]) / _number(small["gpus"]))
        of = {
            name: math.log(_number(large[name]) / _number(small[name])) / growth
            for name in GROWING
        }
        made.append(
            {
                "from": small["gpus"],
                "to": large["gpus"],
                **of,
                "met": "must" if max(of.values()) <= SLOPE_MUST else "no",
            }
        )
    return made


def _number(value: Figure) -> float:
    assert isinstance(value, int | float)
    return float(value)


def main() -> int:
    """Measure each size on a database of its own, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = [fleet.gpus for fleet in FLEETS]
    parser.add_argument(
        "--gpus",
        type=int,
        nargs="+",
        choices=sizes,
        default=sizes,
        help="(default: all)",
    )
    parser.add_argument("--picture", type=Path, help="draw them as SVG, here")
    options = parser.parse_args()
    wanted = options.gpus
    settle_memory()
    rows = []
    for fleet in FLEETS:
        if fleet.gpus in wanted:
            with temporary_database() as url:
                rows.append(uvloop.run(measure(url, fleet)))
            print_table(rows[-1:], room=None)
    print_table(slopes(rows), room=ROOM)
    write_results("scale", [*rows, *slopes(rows)])
    if options.picture is not None:
        options.picture.write_text(picture(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
