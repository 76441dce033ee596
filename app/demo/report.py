"""The demo's closing report: what was served, what it cost next to the baseline, how long decisions took."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.db.reports.reports import ReportTable

QUERIES = (
    (
        "What does each team pay, and what is idle?",
        "SELECT project, round(sum(cost_usd), 4) AS usd FROM report.cost_by_project_hour GROUP BY 1 ORDER BY 2 DESC;",
    ),
    (
        "Who missed the SLO, and by how much?",
        "SELECT service, sum(requests) AS requests,\n"
        "  round(100 * sum(in_slo) / nullif(sum(served + rejected), 0), 2) AS in_slo\n"
        "  FROM report.slo_attainment_hour GROUP BY 1 ORDER BY 3;",
    ),
    (
        "Which plans were in force, what did each start and stop, and for how much?",
        "SELECT plan_id, in_force_from::time(0) AS since, replicas_started AS started, replicas_stopped AS stopped,\n"
        "  round(cost_usd_per_hour::numeric, 2) AS usd_per_hour\n"
        "  FROM report.plan_history WHERE in_force_from IS NOT NULL ORDER BY 1 DESC LIMIT 5;",
    ),
)
"""Questions with their SQL; each runs as it stands on the demo's database."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    # The nearest rank: a time that really was measured, not one between two.
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoServiceSummary:
    """One service over the whole run, under both policies."""

    name: str
    requests: int
    slo_ms: float
    percentile: float
    attainment: float
    latency_ms: float | None
    """At the SLO's percentile."""
    cost_usd: float
    """Whole-GPU accounting."""
    baseline_attainment: float
    baseline_usd: float

    @property
    def is_kept(self) -> bool:
        """Whether enough requests met the SLO as it promises."""
        return self.attainment >= self.percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole run."""

    trace_s: float
    """How much of the load was simulated."""
    duration_s: float
    """How much there is."""
    wall_s: float
    services: Sequence[DemoServiceSummary]
    migration_usd: float
    """The GPUs that plans had left while a replica served on there; in no service's figure."""
    baseline_migration_usd: float
    keeps_ms: Sequence[float]
    """Wall time of every tick that kept or changed what runs, snapshot to committed plan."""
    looks_ms: Sequence[float]
    """The same of every tick that also looked for something cheaper."""
    plans_pushed: int
    first_plan_s: float
    """Wall seconds from the command to the first plan in force."""

    @property
    def missed(self) -> tuple[DemoServiceSummary, ...]:
        """The services whose SLO was not kept."""
        return tuple(each for each in self.services if not each.is_kept)

    @property
    def cost_usd(self) -> float:
        """Whole GPUs, all services and handovers."""
        return sum(service.cost_usd for service in self.services) + self.migration_usd

    @property
    def baseline_usd(self) -> float:
        """The same under the baseline."""
        rent_usd = sum(service.baseline_usd for service in self.services)
        return rent_usd + self.baseline_migration_usd


def render(
    summary: Summary, answers: Sequence[ReportTable], *, psql: str = ""
) -> RenderableType:
    """The report; fits 80 columns but for its SQL. `answers`: to QUERIES, in their order. `psql`: how to open
    the database, empty without a way.
    """
    return Group(
        Text(""),
        _headline(summary),
        _services(summary),
        _verdict(summary),
        _accounts(summary),
        _decisions(summary),
        *_sql(psql, answers),
    )


def _headline(summary: Summary) -> Text:
    """The load and the time; on a busy machine, that some of the load is missing and why."""
    minutes, of_minutes = summary.trace_s / 60, summary.duration_s / 60
    text = Text(
        f"{minutes:.0f} minutes of load in {summary.wall_s:.0f} s: `joint` next to `k8s_hpa` on the same requests",
        style="bold",
    )
    if round(minutes) < round(of_minutes):
        text.append(
            f"\n(of {of_minutes:.0f} minutes: this machine was busy; what it had time for is decided as on any other)",
            style="bold yellow",
        )
    return text


def _services(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("service")
    for heading in (
        "requests",
        "latency of SLO",
        "in SLO",
        "verdict",
        "USD",
        "k8s_hpa",
        "USD",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for service in summary.services:
        share = f"p{100 * service.percentile:g}"
        table.add_row(
            service.name,
            f"{service.requests:,}",
            f"{share} {_milliseconds(service.latency_ms)}/{service.slo_ms:.0f} ms",
            _attained(service.attainment, service.percentile),
            Text("kept", "green") if service.is_kept else Text("MISSED", "bold red"),
            f"{service.cost_usd:.3f}",
            _attained(service.baseline_attainment, service.percentile),
            f"{service.baseline_usd:.3f}",
        )
    table.add_row(
        "handovers",
        "",
        "",
        "",
        "",
        f"{summary.migration_usd:.3f}",
        "",
        f"{summary.baseline_migration_usd:.3f}",
    )
    table.add_row(
        "all",
        f"{sum(service.requests for service in summary.services):,}",
        "",
        "",
        "",
        f"{summary.cost_usd:.3f}",
        "",
        f"{summary.baseline_usd:.3f}",
        style="bold",
    )
    return table


def _milliseconds(latency_ms: float | None) -> str:
    return "–" if latency_ms is None else f"{latency_ms:.0f}"


def _verdict(summary: Summary) -> Text:
    """One line, of `joint` alone: the baseline's SLOs are not promised."""
    if not summary.missed:
        return Text("\nverdict: every SLO was kept", style="bold green")
    missed = ", ".join(
        f"{each.name} ({100 * each.attainment:.2f} % of the requests in SLO, not {100 * each.percentile:g} %)"
        for each in summary.missed
    )
    return Text(f"\nverdict: SLO missed: {missed}", style="bold red")


def _attained(attainment: float, wanted: float) -> Text:
    return Text(
        f"{100 * attainment:.2f}%",
        style="green" if attainment >= wanted else "bold red",
    )


def _accounts(summary: Summary) -> Text:
    worst = min((each.attainment for each in summary.services), default=0.0)
    rivals = min((each.baseline_attainment for each in summary.services), default=0.0)
    text = Text("\njoint next to k8s_hpa\n", style="bold")
    text.append(
        f"  cost                 {_difference(summary.cost_usd, summary.baseline_usd)}, whole GPUs\n"
        f"  worst service in SLO {100 * worst:.2f} % to {100 * rivals:.2f} %\n",
        "",
    )
    # A reader of one figure alone must know whom it is about.
    text.append(
        "  (k8s_hpa has the GPU type, parts of GPUs and target for each service that\n"
        "  hindsight finds cheapest for this load; bench.demo compares over seeds)\n",
        style="dim",
    )
    return text


def _difference(ours: float, baseline: float) -> str:
    if baseline <= 0.0:
        return "–"
    percent = 100.0 * (1.0 - ours / baseline)
    return f"{abs(percent):.1f} % {'less' if percent >= 0.0 else 'more'}"


def _decisions(summary: Summary) -> Text:
    text = Text("decisions\n", style="bold")
    text.append(
        f"  {len(summary.keeps_ms) + len(summary.looks_ms)} ticks, {summary.plans_pushed} plans pushed\n"
        f"  {len(summary.keeps_ms)} kept or changed what runs: {_p50_and_p99(summary.keeps_ms)}\n"
        f"  {len(summary.looks_ms)} also looked for something cheaper: {_p50_and_p99(summary.looks_ms)}\n"
        f"  first plan in force {summary.first_plan_s:.1f} s after the command\n",
        style="",
    )
    return text


def _p50_and_p99(milliseconds: Sequence[float]) -> str:
    return f"{percentile(milliseconds, 0.5):.0f} ms (p50), {percentile(milliseconds, 0.99):.0f} ms (p99)"


def _sql(psql: str, answers: Sequence[ReportTable]) -> Iterator[RenderableType]:
    yield Text("asked in SQL", style="bold")
    if psql:
        yield Text(f"  {psql}", style="cyan")
    for (question, query), answer in zip(QUERIES, answers, strict=True):
        yield Text(f"\n  -- {question}", style="dim")
        # As it can be pasted into psql.
        yield Text("  " + query.replace("\n", "\n  "))
        yield Padding(_table(answer), (0, 0, 0, 4))


def _table(answer: ReportTable) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in answer.columns:
        table.add_column(column, no_wrap=True)
    for row in answer.rows:
        table.add_row(
            *("" if cell is None else str(cell) for cell in row), style="green"
        )
    return table
