"""The figures that Plimsoll promises of itself, and where each is read: bench/results/<bench>.json."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.store.store import PolicySettings
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
    return lambda rows: next(
        (row[column] for row in rows if where.items() <= row.items()), None
    )


def _values(rows: Sequence[Figures], column: str, where: Figures) -> list[int | float]:
    return [
        value
        for row in rows
        if where.items() <= row.items()
        and isinstance(value := row[column], int | float)
    ]


def _most(column: str, **where: Figure) -> Pick:
    """The largest value of the column, in rows with these values."""
    return lambda rows: max(_values(rows, column, where), default=None)


def _least(column: str, **where: Figure) -> Pick:
    """The smallest value of the column, in rows with these values."""
    return lambda rows: min(_values(rows, column, where), default=None)


_LOOK_MS = 1000.0 * PolicySettings().solve_seconds + 100.0
"""A tick that looks for something cheaper may take its time for planning, and as long as any other for the rest."""

TARGETS = (
    Target(
        what="tick that keeps or changes what runs, 8 GPUs × 4 services, p50",
        results="tick",
        pick=_row("total_ms_p50", gpus=8, kind="keeps or changes"),
        limit=30,
        unit="ms",
    ),
    Target(
        what="tick that keeps or changes what runs, 8 GPUs × 4 services, p99",
        results="tick",
        pick=_row("total_ms_p99", gpus=8, kind="keeps or changes"),
        limit=100,
        unit="ms",
    ),
    Target(
        what="tick that looks for something cheaper, 8 GPUs × 4 services, worst",
        results="tick",
        pick=_row("total_ms_max", gpus=8, kind="looks"),
        limit=_LOOK_MS,
        unit="ms",
    ),
    Target(
        what="tick of either kind, 100 GPUs × 30 services, worst",
        results="tick",
        pick=_most("total_ms_max", gpus=100),
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
        limit=350,
        unit="MiB",
    ),
    Target(
        what="requests per second and core of a node's router, small bodies",
        results="router",
        pick=_row("rps_per_core", front="router", body="small"),
        limit=3000,
        is_at_least=True,
        unit="1/s",
    ),
    Target(
        what="switch of 100 services under load → the old replica's last request, worst",
        results="router_switch",
        pick=_row("last_request_ms_max", front="router"),
        limit=100,
        unit="ms",
    ),
    Target(
        what="`joint` saves of the cheapest opponent that attains as much",
        results="demo",
        pick=_row("joint_saves_percent", rivals="as well attained"),
        limit=0.0,
        is_at_least=True,
        unit="%",
    ),
    Target(
        what="`joint` saves of the cheapest opponent that keeps every SLO",
        results="demo",
        pick=_row("joint_saves_percent", rivals="SLOs kept"),
        limit=0.0,
        is_at_least=True,
        unit="%",
    ),
    Target(
        what="SLO attainment of the worst service, `joint`",
        results="demo_services",
        pick=_least("in_slo_percent", policy="joint"),
        limit=98.0,
        is_at_least=True,
        unit="%",
    ),
)


def compare(folder: Path = RESULTS) -> list[Figures]:
    """One row per target: measured, promised, and whether it holds; `measured` is None where no result lies."""
    return [
        _compare(target, _load(folder / f"{target.results}.json")) for target in TARGETS
    ]


def _compare(target: Target, rows: Sequence[Figures] | None) -> Figures:
    found = target.pick(rows) if rows else None
    measured = float(found) if isinstance(found, int | float) else None
    holds = None
    if measured is not None:
        holds = (
            measured >= target.limit if target.is_at_least else measured <= target.limit
        )
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
