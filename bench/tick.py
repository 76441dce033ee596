"""How long a tick takes, from reading the snapshot to the committed plan: real PostgreSQL, real solver process.

Run: `python -m bench.tick`. Prints a table and writes bench/results/tick.json.

Every tick sees new rates (seeded: each service's rate is drawn again between half and one and a half times its mean),
so that the policy has something to decide. Policy `joint` has two kinds of ticks, which are counted apart: most keep or
change what runs; once per `min_dwell_s` it looks for something cheaper, for as long as `solve_seconds` at most. Ticks
of the first kind that pushed nothing are left out, since they were short; a look counts whatever came of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from statistics import mean
from typing import NamedTuple

import numpy as np
import uvloop

from app.base.clock import ManualControlClock
from app.db.decisions import plans
from app.db.decisions.plans import PlanSummary
from app.db.postgres_store import PostgresStore
from app.loop.tick import Loop, TickOutcome, tick
from app.solver.process import SolverWorker
from app.store.store import PolicySettings
from bench.real_store import Fleet, observations, open_fleet, temporary_database
from bench.report import ROOM, Figures, print_table, write_results

WINDOW_S = 2.0
WINDOWS_PER_TICK = 20
"""40 s of trace time between ticks: longer than the scale-down delay lets the last rate count."""
STEPS = ("snapshot", "decide", "record", "push")
KEEPS, LOOKS = "keeps or changes", "looks"


async def measure(
    url: str, fleet: Fleet, *, ticks: int, mean_rps: float
) -> list[Figures]:
    """A row per kind of ticks; the first tick is not counted (it fills caches)."""
    draw, clock = Random(fleet.gpus), ManualControlClock()
    settings = PolicySettings(window_s=WINDOW_S, max_replicas_per_gpu=6)
    means = {
        service.name: draw.uniform(0.5, 1.5) * mean_rps for service in fleet.nouns()
    }
    async with open_fleet(url, fleet, settings, clock.now()) as engine:
        store, solver = PostgresStore(engine), SolverWorker(threads=2)
        await solver.start()
        try:
            loop = Loop(store=store, solver=solver, clock=clock)
            outcomes: list[TickOutcome] = []
            for number in range(ticks + 1):
                rates = {
                    name: draw.uniform(0.5, 1.5) * rate for name, rate in means.items()
                }
                await _observe(store, fleet, clock, rates, number)
                outcomes.append(await tick(loop))
        finally:
            await solver.close()
        async with engine.connect() as connection:
            made = {plan.id: plan for plan in await plans.list_rows(connection)}
    ticks_made = [
        _Tick(one, made[one.plan_id]) for one in outcomes[1:] if one.plan_id is not None
    ]
    return [
        _figures(fleet, kind, [one for one in ticks_made if one.kind == kind])
        for kind in (KEEPS, LOOKS)
    ]


class _Tick(NamedTuple):
    """A tick, and what became of its plan."""

    outcome: TickOutcome
    plan: PlanSummary

    @property
    def kind(self) -> str:
        """Between two looks nothing is proven (docs/joint.md)."""
        return KEEPS if self.plan.lower_bound_usd_per_hour is None else LOOKS


async def _observe(
    store: PostgresStore,
    fleet: Fleet,
    clock: ManualControlClock,
    rates: Mapping[str, float],
    number: int,
) -> None:
    """Windows of telemetry at constant rates, from every node."""
    arrivals = {name: round(rate * WINDOW_S) for name, rate in rates.items()}
    for window in range(WINDOWS_PER_TICK):
        clock.advance(WINDOW_S)
        sequence = number * WINDOWS_PER_TICK + window + 1
        batch = observations(
            fleet, arrivals, sequence=sequence, end=clock.now(), window_s=WINDOW_S
        )
        await store.ingest(batch, clock.now())


def _figures(fleet: Fleet, kind: str, ticks: Sequence[_Tick]) -> Figures:
    pushed = [one.outcome for one in ticks if one.outcome.state == "target"]
    counted = pushed if kind == KEEPS else [one.outcome for one in ticks]
    total_ms = [1000.0 * one.seconds["total"] for one in counted]
    steps = {
        step: [one.seconds[step] for one in counted if step in one.seconds]
        for step in STEPS
    }
    statuses = Counter(str(one.plan.solution) for one in ticks)
    return {
        "gpus": fleet.gpus,
        "services": fleet.services,
        "kind": kind,
        "ticks": len(ticks),
        "pushed": len(pushed),
        "total_ms_p50": float(np.percentile(total_ms, 50)) if total_ms else None,
        "total_ms_p99": float(np.percentile(total_ms, 99)) if total_ms else None,
        "total_ms_max": max(total_ms, default=None),
        **{
            f"{step}_ms_mean": 1000.0 * mean(each) if each else None
            for step, each in steps.items()
        },
        "answers": ", ".join(
            f"{count} {status}" for status, count in statuses.most_common()
        ),
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
            rows += uvloop.run(measure(url, fleet, ticks=ticks, mean_rps=mean_rps))
    return rows


def main() -> None:
    """Measure, print the table, write the JSON."""
    rows = run()
    print("Tick, snapshot to committed plan, milliseconds")
    print_table(rows, room=ROOM)
    write_results("tick", rows)


if __name__ == "__main__":
    main()
