"""Tasks in the HTML report: what they came to under each policy, how many ran, and how each one went."""

from collections.abc import Iterator, Sequence
from functools import partial

from agents.base.plurals import counted
from app.simulate.figures import duration, number
from app.simulate.report.charts import TimeAxis, colour_of
from app.simulate.report.gantt import gantt_chart, phase_legend
from app.simulate.report.html_charts import (
    Runs,
    fault_spans,
    policy_chart,
    policy_lines,
)
from app.simulate.report.html_parts import (
    FigureCell,
    estimate_cell,
    figure,
    legend,
    paragraph,
    share_cell,
    table,
)
from app.simulate.report.report import SimulationReport
from app.simulate.run.results import RunResult, RunSeries, TaskPhase, TaskResult
from app.simulate.scenario.scenario import ScenarioSpec

MAX_TASKS = 24
"""With a row and a bar, under each policy."""
MAX_POLICIES = 4
"""Whose tasks are shown one by one."""
_TITLES: dict[TaskPhase, str] = {
    "running": "Tasks that run",
    "waiting": "Tasks that wait",
    "swapped": "Tasks swapped out",
}
_NOTE = (
    "Tasks run on what the services leave over, next to replicas for free; idle GPUs that they get are in the cost. "
    "Completion: mean from submission to end, of those that ended. In time: of those with a deadline that they met or "
    "missed; left open: neither, when the run ended. Work: iterations in the time that counts, times what one takes by "
    "the catalogue alone on a whole GPU of the fleet's first type."
)


def tasks_section(
    report: SimulationReport,
    spec: ScenarioSpec,
    runs: Runs,
    times: TimeAxis,
) -> Iterator[str]:
    """All of it; nothing where no run has tasks."""
    if not any(run.tasks for run in report.runs):
        return
    yield "<h2>Tasks</h2>"
    yield _policy_table(report)
    yield paragraph(_NOTE, "faint")
    yield legend(list(runs))
    yield '<div class="charts">'
    for phase, title in _TITLES.items():
        yield policy_chart(
            title, times, policy_lines(runs, partial(_count, phase)), is_count=True
        )
    yield "</div>"
    for place, mine in enumerate(list(runs.values())[:MAX_POLICIES]):
        # One seed stands for all: bars of several seeds cannot be averaged.
        yield from _run_tasks(mine[0], spec, colour_of(place))
    if len(runs) > MAX_POLICIES:
        yield paragraph("Tasks under the other policies: see the JSON report.", "faint")


def _run_tasks(run: RunResult, spec: ScenarioSpec, colour: str) -> Iterator[str]:
    title = f"Tasks under {run.policy}, seed {run.seed}"
    shown = run.tasks[:MAX_TASKS]
    yield phase_legend(colour)
    # From second 0 and not from the end of the warm-up: tasks may be submitted before it.
    span_s = (0.0, spec.duration_s)
    marked = fault_spans(spec)
    chart = gantt_chart(title, shown, span_s, colour=colour, marked=marked)
    yield figure(title, chart)
    yield _task_table(shown)
    if len(run.tasks) > MAX_TASKS:
        left_out = counted(len(run.tasks) - MAX_TASKS, "task")
        yield paragraph(f"{left_out} more: see the JSON report.", "faint")


def _count(phase: TaskPhase, series: RunSeries) -> list[int]:
    return series.tasks.get(phase, [0] * len(series.power_w))


def _policy_table(report: SimulationReport) -> str:
    headings = (
        "policy",
        "finished, %",
        "completion, min",
        "in time, %",
        "deadlines left open",
        "work done, GPU hours",
        "GPUs of their own, USD",
    )
    return table(
        headings,
        (
            (
                summary.policy,
                share_cell(tasks.finished, digits=1),
                estimate_cell(tasks.completion_s, digits=1, scale=1.0 / 60.0),
                share_cell(tasks.in_time, digits=0),
                estimate_cell(tasks.undecided, digits=0),
                estimate_cell(tasks.work_gpu_hours),
                estimate_cell(tasks.cost_usd),
            )
            for summary in report.policies
            if (tasks := summary.tasks)
        ),
    )


def _task_table(tasks: Sequence[TaskResult]) -> str:
    headings = (
        "task",
        "iteration",
        "stands",
        "submitted",
        "first ran",
        "ended",
        "completion",
        "did not run",
        "done, %",
        "iteration, ms",
        "starts, swaps",
    )
    return table(headings, map(_row, tasks), lefts=3)


def _row(task: TaskResult) -> tuple[str | FigureCell, ...]:
    late = task.is_in_time is False
    return (
        task.task,
        f"{task.network}, {task.batch}",
        FigureCell(
            text="too late" if late and task.phase == "finished" else task.phase,
            is_bad=late,
        ),
        _time(task.submitted_s),
        _time(task.first_ran_s),
        _time(task.finished_s),
        _time(task.completion_s),
        _time(task.waited_s),
        number(100.0 * task.progress, 1),
        "–" if task.iteration_ms is None else number(task.iteration_ms),
        f"{task.starts}, {task.swaps}",
    )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(round(seconds))
