"""How long a tick takes, from reading the snapshot to the committed plan: real PostgreSQL, real solver process.

Run: `python -m bench.tick`. Prints a table and writes bench/results/tick.json.

Every tick sees new rates (seeded: each service's rate is drawn anew between half and one and a half times its mean),
so that the policy has something to decide; ticks that changed nothing are left out of the figures, and counted.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random
from statistics import mean

import numpy as np

from app.clock import ManualClock
from app.control.loop import Loop, TickOutcome, tick
from app.control.store import PolicySettings
from app.control.worker import SolverWorker
from app.db import plans
from app.db.postgres_store import PostgresStore
from bench.real_store import Fleet, observations, open_fleet, temporary_database
from bench.report import Figures, print_table, write_results

WINDOW_S = 2.0
WINDOWS_PER_TICK = 20
"""40 s of trace time between ticks: longer than the scale-down delay lets the last rate count."""
STEPS = ("snapshot", "decide", "record", "push")


async def measure(url: str, fleet: Fleet, *, ticks: int, mean_rps: float) -> Figures:
    """One row: the ticks that changed the target, after one that is not counted (it fills caches)."""
    draw, clock = Random(fleet.gpus), ManualClock()
    settings = PolicySettings(window_s=WINDOW_S, max_replicas_per_gpu=6)
    means = {service.name: draw.uniform(0.5, 1.5) * mean_rps for service in fleet.nouns()}
    async with open_fleet(url, fleet, settings, clock.now()) as engine:
        store, solver = PostgresStore(engine), SolverWorker(threads=2)
        await solver.start()
        try:
            loop = Loop(store=store, solver=solver, clock=clock)
            outcomes: list[TickOutcome] = []
            for number in range(ticks + 1):
                rates = {name: draw.uniform(0.5, 1.5) * rate for name, rate in means.items()}
                await _observe(store, fleet, clock, rates, number)
                outcomes.append(await tick(loop))
        finally:
            await solver.close()
        async with engine.connect() as connection:
            statuses = Counter(row.status for row in await plans.list_rows(connection))
    return _figures(fleet, outcomes[1:], statuses)


async def _observe(
    store: PostgresStore, fleet: Fleet, clock: ManualClock, rates: Mapping[str, float], number: int
) -> None:
    """Windows of telemetry at constant rates, from every node."""
    arrivals = {name: round(rate * WINDOW_S) for name, rate in rates.items()}
    for window in range(WINDOWS_PER_TICK):
        clock.advance(WINDOW_S)
        sequence = number * WINDOWS_PER_TICK + window + 1
        batch = observations(fleet, arrivals, sequence=sequence, end=clock.now(), window_s=WINDOW_S)
        await store.ingest(batch, clock.now())


def _figures(fleet: Fleet, outcomes: list[TickOutcome], statuses: Counter[str]) -> Figures:
    pushed = [outcome for outcome in outcomes if outcome.state == "target"]
    total_ms = [1000.0 * outcome.seconds["total"] for outcome in pushed]
    steps = {f"{step}_ms_mean": 1000.0 * mean(outcome.seconds[step] for outcome in pushed) for step in STEPS}
    return {
        "gpus": fleet.gpus,
        "services": fleet.services,
        "ticks": len(outcomes),
        "pushed": len(pushed),
        "total_ms_p50": float(np.percentile(total_ms, 50)),
        "total_ms_p99": float(np.percentile(total_ms, 99)),
        "total_ms_max": max(total_ms),
        **steps,
        "answers": ", ".join(f"{count} {status}" for status, count in statuses.most_common()),
    }


def run() -> list[Figures]:
    """Both sizes of the issue's numbers, each on a database of its own."""
    sizes = (
        (Fleet(nodes=4, gpus_per_node=2, services=4), 150, 80.0),
        (Fleet(nodes=25, gpus_per_node=4, services=30), 15, 120.0),
    )
    rows = []
    for fleet, ticks, mean_rps in sizes:
        with temporary_database() as url:
            rows.append(asyncio.run(measure(url, fleet, ticks=ticks, mean_rps=mean_rps)))
    return rows


def main() -> None:
    """Measure, print the table, write the JSON."""
    rows = run()
    print("Tick, snapshot to committed plan, milliseconds")
    print_table(rows)
    write_results("tick", rows)


if __name__ == "__main__":
    main()
