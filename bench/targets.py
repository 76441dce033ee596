"""The figures that Plimsoll promises of itself, and where each is read: bench/results/<bench>.json."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import RESULTS, Figure, Figures

Pick = Callable[[Sequence[Figures]], Figure]
"""Rows of a bench → the figure in question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One promised figure."""

    what: str
    results: str
    """Name of the results file."""
    pick: Pick
    limit: float
    is_at_least: bool = False
    """True: the figure must not be below the limit; False: not above it."""
    unit: str


def _row(column: str, **where: Figure) -> Pick:
    """The column of the one row with these values."""
    return lambda rows: next((row[column] for row in rows if where.items() <= row.items()), None)


def _worst_attainment(rows: Sequence[Figures]) -> Figure:
    ours = [row["in_slo_percent"] for row in rows if row["policy"] != "k8s_hpa"]
    return min(value for value in ours if isinstance(value, float))


def _most(column: str) -> Pick:
    """The largest value of the column."""
    return lambda rows: max((value for row in rows if isinstance(value := row[column], int | float)), default=None)


TARGETS = (
    Target(
        what="tick, 8 GPUs × 4 services, p50", results="tick", pick=_row("total_ms_p50", gpus=8), limit=30, unit="ms"
    ),
    Target(
        what="tick, 8 GPUs × 4 services, p99", results="tick", pick=_row("total_ms_p99", gpus=8), limit=100, unit="ms"
    ),
    Target(
        what="tick, 100 GPUs × 30 services, worst",
        results="tick",
        pick=_row("total_ms_max", gpus=100),
        limit=1000,
        unit="ms",
    ),
    Target(
        what="rate change → new command, worst",
        results="reaction",
        pick=_row("new_command_s", service="worst"),
        limit=3,
        unit="s",
    ),
    Target(
        what="observations made durable per second, HTTP",
        results="sync",
        pick=_most("durable_per_s"),
        limit=1000,
        is_at_least=True,
        unit="1/s",
    ),
    Target(
        what="acknowledgement at 1,000 observations/s, p99",
        results="sync",
        pick=_row("latency_ms_p99", offered_per_s=1000),
        limit=100,
        unit="ms",
    ),
    Target(
        what="memory of API and controller",
        results="sync",
        pick=_most("api_and_controller_rss_mib"),
        limit=500,
        unit="MiB",
    ),
    Target(
        what="cost ratio, used memory against whole GPUs, hetsev",
        results="demo",
        pick=_row("used_memory_usd", policy="k8s_hpa / hetsev"),
        limit=2.0,
        is_at_least=True,
        unit="×",
    ),
    Target(
        what="cost ratio, whole GPUs, joint",
        results="demo",
        pick=_row("whole_gpu_usd", policy="k8s_hpa / joint"),
        limit=1.5,
        is_at_least=True,
        unit="×",
    ),
    Target(
        what="SLO attainment of the worst service",
        results="demo_services",
        pick=_worst_attainment,
        limit=98.0,
        is_at_least=True,
        unit="%",
    ),
)


def compare(folder: Path = RESULTS) -> list[Figures]:
    """One row per target: measured, promised, and whether it holds; `measured` is None where no result lies."""
    return [_compare(target, _load(folder / f"{target.results}.json")) for target in TARGETS]


def _compare(target: Target, rows: Sequence[Figures] | None) -> Figures:
    found = target.pick(rows) if rows else None
    measured = float(found) if isinstance(found, int | float) else None
    holds = None
    if measured is not None:
        holds = measured >= target.limit if target.is_at_least else measured <= target.limit
    return {
        "figure": target.what,
        "measured": measured,
        "promised": f"{'≥' if target.is_at_least else '≤'} {target.limit:g}",
        "unit": target.unit,
        "holds": {True: "yes", False: "NO", None: "not measured"}[holds],
    }


def _load(path: Path) -> list[Figures] | None:
    if not path.exists():
        return None
    rows: list[Figures] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows
