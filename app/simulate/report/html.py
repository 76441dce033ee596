"""The report of a simulation as one HTML page that stands alone: no network, no script; light, dark, paper, phone.

Policies keep one colour throughout. Lines are means over the seeds, thinned (`timelines`), so that the page of a long
run stays small; the dozen services that come nearest to breaking their SLO, or break it, have charts and a table of
their own, the others a row each. Everything that a user wrote is escaped. Same report, same page.
"""

from collections.abc import Iterator
from functools import partial
from html import escape
from statistics import median

import msgspec

from app.simulate.figures import number
from app.simulate.report.charts import ChartBar, TimeAxis, bar_chart, colour_of
from app.simulate.report.compare import missed
from app.simulate.report.html_budgets import budgets_section, policies_section
from app.simulate.report.html_charts import (
    MAX_FAULTS,
    Runs,
    Values,
    policy_chart,
    policy_lines,
    runs_by_policy,
    times_of,
)
from app.simulate.report.html_events import events_section
from app.simulate.report.html_parts import (
    STYLE,
    FigureCell,
    bullets,
    estimate_cell,
    figure,
    legend,
    paragraph,
    share_cell,
    table,
)
from app.simulate.report.html_sentences import (
    TRUTHS,
    fault_titles,
    headline,
    interval_note,
    origins,
    scenario_sentence,
)
from app.simulate.report.html_services import services_section
from app.simulate.report.html_tasks import tasks_section
from app.simulate.report.report import PolicySummary, SimulationReport, seeds_note
from app.simulate.run.results import RunSeries
from app.simulate.scenario.scenario import ScenarioSpec, SimulationScenario

MAX_SCENARIO = 20_000
"""Characters of a scenario that the page carries."""


def report_to_html(
    report: SimulationReport,
    *,
    version: str = "",
    file: str = "SCENARIO.yaml",
) -> str:
    """The page. `version` is the program's, `file` the scenario's name; both go into the footer.

    Raises pydantic.ValidationError where the report's scenario is none of this program's.
    """
    # A report that was read from a file has its scenario as plain JSON.
    scenario = SimulationScenario.model_validate(report.scenario)
    name = escape(scenario.metadata.name)
    body = "\n".join(
        part for part in _body(report, scenario, version=version, file=file) if part
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{name}: simulated</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _body(
    report: SimulationReport,
    scenario: SimulationScenario,
    *,
    version: str,
    file: str,
) -> Iterator[str]:
    spec = scenario.spec
    yield f"<h1>{escape(scenario.metadata.name)}: policies side by side, simulated</h1>"
    yield paragraph(scenario_sentence(spec))
    yield paragraph(TRUTHS[spec.truth], "faint")
    # Above all figures: a reader of the first lines alone must not miss what makes the others worth less.
    if report.notes:
        yield paragraph("Known before the runs:", "bad")
        yield bullets(report.notes)
    if report.failed:
        yield paragraph("Runs that failed, of which no figure has anything:", "bad")
        yield bullets(map(str, report.failed))
    if report.runs:
        yield from _findings(report, spec)
        runs = runs_by_policy(report)
        times = times_of(runs, spec)
        yield from _fleet(spec, runs, times)
        yield from events_section(spec, runs)
        yield from services_section(report, spec, runs, times)
        yield from tasks_section(report, spec, runs, times)
    else:
        yield paragraph("No run was done.")
    yield from _footer(scenario, version=version, file=file)


def _findings(report: SimulationReport, spec: ScenarioSpec) -> Iterator[str]:
    first, *others = headline(
        report, clairvoyant=[run.label for run in spec.policies if run.clairvoyant]
    )
    yield f'<div class="headline"><strong>{escape(first)}</strong>{bullets(others)}</div>'
    yield paragraph(interval_note(report), "faint")
    runs = runs_by_policy(report)
    yield "<h2>Policies</h2>"
    yield from policies_section(spec, runs)
    yield _policy_table(report)
    yield (
        '<div class="bars">'
        + figure("Cost of the used GPUs, USD", _cost_bars(report))
        + "</div>"
    )
    yield "<h2>Budget</h2>"
    yield from budgets_section(runs)
    yield "<h2>Decisions</h2>"
    yield _decision_table(report)


def _policy_table(report: SimulationReport) -> str:
    headings = (
        "policy",
        "cost, USD",
        "of it in handovers",
        "used memory, USD",
        "GPU hours",
        "energy, kWh",
        "late or rejected, %",
        "worst service in SLO, %",
        "worst p99, ms",
        "replicas started",
    )
    note = (
        "Cost: whole GPUs while they are used. In handovers: of GPUs that no plan used any more, but on which replicas "
        "served on. Used memory: HetSev's accounting, the price of the memory that replicas occupy. Worst p99: highest "
        "mean among the services, of served requests only. Red: below the SLO's percentile."
    )
    carbon = [
        f"{each.policy} {estimate_cell(each.carbon_g).text} g"
        for each in report.policies
        if each.carbon_g
    ]
    # In the note and not in a column: most scenarios have no grid intensity.
    if carbon:
        note += f" CO2 equivalent of the energy by the scenario's grid intensity: {', '.join(carbon)}."
    return table(
        headings, (_policy_row(report, each) for each in report.policies)
    ) + paragraph(note, "faint")


def _policy_row(
    report: SimulationReport, summary: PolicySummary
) -> tuple[str | FigureCell, ...]:
    # Services of which some run served nothing have no p99, and cannot be the worst.
    p99 = [service.p99_ms for service in summary.services if service.p99_ms]
    note = seeds_note(report, summary.policy)
    return (
        f"{summary.policy} ({note})" if note else summary.policy,
        estimate_cell(summary.cost_usd),
        estimate_cell(summary.handover_usd),
        estimate_cell(summary.memory_usd),
        estimate_cell(summary.gpu_hours),
        estimate_cell(summary.energy_kwh),
        share_cell(summary.violations, digits=2),
        share_cell(
            summary.worst_attainment,
            digits=2,
            bad=bool(missed(report, summary)),
        ),
        estimate_cell(max(p99, key=lambda value: value.mean, default=None), digits=0),
        estimate_cell(summary.replicas_started, digits=0),
    )


def _cost_bars(report: SimulationReport) -> str:
    bars = []
    for place, summary in enumerate(report.policies):
        cell = estimate_cell(summary.cost_usd)
        bars.append(
            ChartBar(
                label=summary.policy,
                value=summary.cost_usd.mean,
                half_width=summary.cost_usd.half_width,
                colour=colour_of(place),
                text=cell.text + (f" {cell.spread}" if cell.spread else ""),
            )
        )
    return bar_chart("Cost of the used GPUs by policy", bars)


def _decision_table(report: SimulationReport) -> str:
    headings = (
        "policy",
        "decisions",
        "median, s",
        "longest, s",
        "held",
        "plans refused",
        "plans pushed",
    )
    rows = []
    for policy, runs in runs_by_policy(report).items():
        seconds = [each for run in runs for each in run.decision_seconds]
        rows.append(
            (
                policy,
                f"{len(seconds):,}",
                number(median(seconds), 3) if seconds else "–",
                number(max(seconds), 3) if seconds else "–",
                f"{sum(run.holds for run in runs):,}",
                f"{sum(run.refused for run in runs):,}",
                f"{sum(run.moves.plans for run in runs):,}",
            )
        )
    note = "All seeds together. Wall time of whole decisions on the machine that simulated; held: nothing was decided."
    return table(headings, rows) + paragraph(note, "faint")


def _fleet(spec: ScenarioSpec, runs: Runs, times: TimeAxis) -> Iterator[str]:
    """Cost and GPUs by type over time."""
    types = sorted(
        {name for mine in runs.values() for run in mine for name in run.series.gpus}
    )
    charts: list[tuple[str, Values]] = [
        ("Cost of the used GPUs, USD per hour", _cost),
        *((f"GPUs used: {name}", partial(_used, name)) for name in types),
    ]
    yield "<h2>Fleet over time</h2>"
    yield paragraph(
        "Means over the seeds."
        + (" Shaded: faults, by number." if times.marked else ""),
        "faint",
    )
    yield _fault_list(spec)
    yield legend(list(runs))
    yield '<div class="charts">'
    for title, values in charts:
        yield policy_chart(
            title, times, policy_lines(runs, values), is_count=values is not _cost
        )
    yield "</div>"


def _cost(series: RunSeries) -> list[float]:
    return series.cost_usd_per_hour


def _used(gpu_type: str, series: RunSeries) -> list[float]:
    """Used GPUs of a type; a run that never used it does not name it."""
    return series.gpus.get(gpu_type, [0.0] * len(series.cost_usd_per_hour))


def _fault_list(spec: ScenarioSpec) -> str:
    entries = "".join(
        f"<li>{escape(title)}</li>" for title in fault_titles(spec.faults, MAX_FAULTS)
    )
    return f"<ol>{entries}</ol>" if entries else ""


def _footer(scenario: SimulationScenario, *, version: str, file: str) -> Iterator[str]:
    yield "<footer><h2>What this is</h2>"
    yield from map(paragraph, origins(scenario.spec))
    made_by = f"Plimsoll {version}".strip()
    yield (
        f"<p>Made by {escape(made_by)}. Same scenario and version, same figures, but for the seconds of decisions: "
        f"<code>plimsoll simulate {escape(file)} --html report.html</code></p>"
    )
    written = msgspec.json.format(
        msgspec.json.encode(scenario.model_dump(mode="json", exclude_defaults=True)),
        indent=1,
    )
    # So that the page alone is enough to run it again; long ones are in the JSON report.
    if len(written) <= MAX_SCENARIO:
        yield f"<details><summary>The scenario</summary><pre>{escape(written.decode())}</pre></details>"
    yield "</footer>"
