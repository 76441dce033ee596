"""Charts of the HTML report: one line per policy, means over its seeds, faults marked."""

from collections.abc import Callable, Mapping, Sequence

from app.simulate.report.charts import (
    ChartSpan,
    Line,
    LineChart,
    TimeAxis,
    line_chart,
    look_of,
)
from app.simulate.report.html_parts import figure
from app.simulate.report.html_sentences import fault_title
from app.simulate.report.report import SimulationReport
from app.simulate.report.timelines import mean_course, point_times_s
from app.simulate.run.results import RunResult, RunSeries
from app.simulate.scenario.scenario import ScenarioSpec

MAX_FAULTS = 20
"""That are marked and listed."""

Runs = Mapping[str, Sequence[RunResult]]
"""By policy, in the report's order, which gives each its colour."""
Values = Callable[[RunSeries], Sequence[float | None]]


def runs_by_policy(report: SimulationReport) -> Runs:
    """A report's runs."""
    return {
        each.policy: [run for run in report.runs if run.policy == each.policy]
        for each in report.policies
    }


def policy_lines(runs: Runs, values: Values) -> list[Line]:
    """A line for each policy in its colour; `values` takes them, step by step, from a run."""
    return [
        Line(
            label=policy,
            look=look_of(place),
            values=mean_course(mine, values),
        )
        for place, (policy, mine) in enumerate(runs.items())
    ]


def policy_chart(
    title: str,
    times: TimeAxis,
    lines: Sequence[Line],
    *,
    is_count: bool = False,
) -> str:
    """A chart under its title, from 0 on."""
    chart = LineChart(
        title=title,
        times=times,
        lines=lines,
        min_step=1.0 if is_count else 0.0,
    )
    return figure(title, line_chart(chart))


def times_of(runs: Runs, spec: ScenarioSpec) -> TimeAxis:
    """The axis of all charts: the time that counts, with the faults in it."""
    # Any run's: all of a report have the same steps.
    series = next(iter(runs.values()))[0].series
    steps = len(series.cost_usd_per_hour)
    begin_s = spec.warm_up_s
    end_s = begin_s + steps * series.step_s
    return TimeAxis(
        at_s=point_times_s(steps, series.step_s, first_s=begin_s),
        span_s=(begin_s, end_s),
        # Faults in the warm-up alone would be drawn at the edge of the chart, where nothing of them is to be seen.
        marked=[
            span
            for span in fault_spans(spec)
            if span.start_s < end_s and span.end_s > begin_s
        ],
    )


def fault_spans(spec: ScenarioSpec) -> list[ChartSpan]:
    """When the faults are, numbered as in their list."""
    return [
        ChartSpan(
            label=str(number),
            start_s=fault.start_s,
            end_s=spec.duration_s if fault.end_s is None else fault.end_s,
            title=fault_title(fault),
        )
        for number, fault in enumerate(spec.faults[:MAX_FAULTS], start=1)
    ]
