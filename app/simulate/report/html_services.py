"""Services in the HTML report: a table and charts for each that is shown in full, a row for each other one."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape

from agents.base.plurals import counted
from app.simulate.figures import SeedMean, number
from app.simulate.report.charts import Line, LineChart, TimeAxis, line_chart
from app.simulate.report.html_charts import Runs, policy_chart, policy_lines
from app.simulate.report.html_parts import (
    INK,
    FigureCell,
    estimate_cell,
    figure,
    legend,
    paragraph,
    share_cell,
    table,
)
from app.simulate.report.report import SimulationReport, estimate_known
from app.simulate.report.timelines import mean_course
from app.simulate.run.results import RunResult, RunSeries, ServiceResult, ServiceSeries
from app.simulate.scenario.scenario import ScenarioSpec

MAX_CHARTED = 12
"""Services with charts."""
MAX_ROWS = 500
"""Services with a row."""
ARRIVALS = "requests that arrived"


def services_section(
    report: SimulationReport,
    spec: ScenarioSpec,
    runs: Runs,
    times: TimeAxis,
) -> Iterator[str]:
    """All services, worst first."""
    ranked = worst_first(report)
    closed = {
        service.name for service in spec.services if service.load.clients is not None
    }
    yield "<h2>Services</h2>"
    yield paragraph(
        "Those come first that break their SLO by most, or are nearest to it.", "faint"
    )
    for place in ranked[:MAX_CHARTED]:
        yield from _in_full(runs, place, times, closed)
    others = ranked[MAX_CHARTED:]
    if others:
        yield "<h2>Further services</h2>"
        yield _in_rows(runs, others[:MAX_ROWS])
    if len(others) > MAX_ROWS:
        yield paragraph(
            f"{counted(len(others) - MAX_ROWS, 'service')} more, none worse: see the JSON report.",
            "faint",
        )


def worst_first(report: SimulationReport) -> list[int]:
    """Places of the services, by how far above its percentile the policy stays that serves it worst."""

    def margin(place: int) -> float:
        known = [policy.services[place].attainment for policy in report.policies]
        worst = min((each.mean for each in known if each is not None), default=1.0)
        return worst - report.runs[0].services[place].percentile

    # By place where margins are equal, so that the page does not depend on how a sort breaks ties.
    return sorted(
        range(len(report.runs[0].services)), key=lambda place: (margin(place), place)
    )


def _in_full(
    runs: Runs,
    place: int,
    times: TimeAxis,
    closed: set[str],
) -> Iterator[str]:
    first = _first(runs, place)
    yield f"<h3>{escape(first.service)}</h3>"
    yield paragraph(f"Network {first.network}; SLO {first.slo}", "faint")
    yield _table(runs, place)
    yield legend(list(runs), asked=ARRIVALS)
    yield (
        '<div class="charts four">'
        + "".join(_charts(runs, first, times, is_closed=first.service in closed))
        + "</div>"
    )


def _table(runs: Runs, place: int) -> str:
    headings = (
        "policy",
        "cost, USD",
        "in SLO, %",
        "worst step, %",
        "p50, ms",
        "p95",
        "p98",
        "p99",
        "arrived",
        "rejected",
        "overdue",
    )
    return table(
        headings,
        (
            _row(policy, [run.services[place] for run in mine])
            for policy, mine in runs.items()
        ),
    )


def _row(policy: str, mine: Sequence[ServiceResult]) -> tuple[str | FigureCell, ...]:
    attainment = _over(mine, lambda each: each.attainment)
    is_bad = attainment is not None and attainment.mean < mine[0].percentile
    worst = [each.worst_step for each in mine if each.worst_step is not None]
    return (
        policy,
        estimate_cell(_over(mine, lambda each: each.cost_usd)),
        share_cell(attainment, digits=2, bad=is_bad),
        number(100.0 * min(worst), 1) if worst else "–",
        *(
            estimate_cell(_over(mine, partial(_latency_ms, name)), digits=0)
            for name in ("p50", "p95", "p98", "p99")
        ),
        f"{sum(each.arrived for each in mine):,}",
        f"{sum(each.rejected for each in mine):,}",
        f"{sum(each.overdue for each in mine):,}",
    )


def _over(
    mine: Sequence[ServiceResult], value: Callable[[ServiceResult], float | None]
) -> SeedMean | None:
    """The estimate over the seeds; None where one of them knows none."""
    return estimate_known([value(each) for each in mine])


def _charts(
    runs: Runs,
    service: ServiceResult,
    times: TimeAxis,
    *,
    is_closed: bool,
) -> Iterator[str]:
    """Rates, attainment, latency, replicas."""

    def mine(series: RunSeries) -> ServiceSeries:
        return series.services[service.service]

    yield policy_chart(
        "Arrival rate and planned rate, requests per second",
        times,
        [
            *policy_lines(runs, lambda series: mine(series).planned_rps),
            *_arrivals(
                runs, lambda series: mine(series).arrival_rate_rps, is_closed=is_closed
            ),
        ],
    )
    percentile = 100.0 * service.percentile
    # From just below the lowest value: between 99 and 100 % is all that matters, and an axis from 0 would hide it.
    chart = LineChart(
        title="In SLO, % of the finished requests",
        times=times,
        lines=policy_lines(
            runs, lambda series: [_percent(share) for share in mine(series).attainment]
        ),
        limit=percentile,
        limit_label=f"SLO {percentile:g} %",
        from_zero=False,
        highest=100.0,
    )
    yield figure(chart.title, line_chart(chart))
    chart = LineChart(
        title="p99 latency, ms" if service.itl_ms is None else "p99 first token, ms",
        times=times,
        lines=policy_lines(runs, lambda series: mine(series).p99_ms),
        limit=service.slo_ms,
        limit_label=f"SLO {service.slo_ms:g} ms",
    )
    yield figure(chart.title, line_chart(chart))
    yield policy_chart(
        "Replicas",
        times,
        policy_lines(runs, lambda series: mine(series).replicas),
        is_count=True,
    )


def _arrivals(
    runs: Runs,
    rates: Callable[[RunSeries], list[float]],
    *,
    is_closed: bool,
) -> list[Line]:
    """What arrived: the same under all policies, unless clients wait for their answers."""
    # A slow policy gets fewer requests from such clients, so each has a line of its own.
    if is_closed:
        return [
            Line(
                label=f"{ARRIVALS}, {policy}",
                look=f'{INK} stroke-opacity=".6"',
                values=mean_course(each, rates),
            )
            for policy, each in runs.items()
        ]
    return [
        Line(
            label=ARRIVALS,
            look=INK,
            values=mean_course(next(iter(runs.values())), rates),
        )
    ]


def _in_rows(runs: Runs, places: Sequence[int]) -> str:
    """In SLO and p99 of each policy."""
    headings = [
        "service",
        "SLO",
        *(
            f"{policy}: {title}"
            for policy in runs
            for title in ("in SLO, %", "p99, ms")
        ),
    ]

    def row(place: int) -> Iterator[str | FigureCell]:
        first = _first(runs, place)
        yield first.service
        yield first.slo
        for each in runs.values():
            results = [run.services[place] for run in each]
            attainment = _over(results, lambda result: result.attainment)
            is_bad = attainment is not None and attainment.mean < first.percentile
            yield share_cell(attainment, digits=2, bad=is_bad)
            yield estimate_cell(_over(results, partial(_latency_ms, "p99")), digits=0)

    return table(headings, (tuple(row(place)) for place in places), lefts=2)


def _first(runs: Runs, place: int) -> ServiceResult:
    first: RunResult = next(iter(runs.values()))[0]
    return first.services[place]


def _latency_ms(name: str, result: ServiceResult) -> float | None:
    return result.latency_ms[name]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
