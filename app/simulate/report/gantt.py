"""A chart of tasks as SVG that stands in an HTML page: a row for each, with when it waited, ran and was swapped out.

Waiting is a thin bar, running a thick one in the policy's colour, swapped out a pale one; deadlines are lines across.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from app.simulate.figures import duration
from app.simulate.report.charts import (
    ChartSpan,
    Range,
    round_step,
    shortened,
    time_unit,
)
from app.simulate.run.results import TaskPhase, TaskResult

WIDTH, ROW = 760.0, 20.0
LEFT, RIGHT, TOP, BOTTOM = 150.0, 12.0, 6.0, 34.0
_HEIGHTS: dict[TaskPhase, float] = {"waiting": 4.0, "running": 14.0, "swapped": 14.0}
_LOOKS = {"waiting": 'class="wait"', "swapped": 'class="swap" fill="{colour}"'}
PHASES: dict[TaskPhase, str] = {
    "waiting": "waits",
    "running": "runs",
    "swapped": "swapped out",
}
_MAX_LETTERS = 20


def gantt_chart(
    title: str,
    tasks: Sequence[TaskResult],
    span_s: Range,
    *,
    colour: str,
    marked: Sequence[ChartSpan] = (),
) -> str:
    """The chart as an `svg` element; what is marked is shaded behind the bars."""
    height = TOP + len(tasks) * ROW + BOTTOM
    rows = (
        _row(task, TOP + place * ROW, span_s, colour)
        for place, task in enumerate(tasks)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}">'
        + "".join(_shade(span, span_s, height - BOTTOM) for span in marked)
        + "".join(_axis(span_s, height - BOTTOM))
        + "".join(part for row in rows for part in row)
        + "</svg>"
    )


def phase_legend(colour: str) -> str:
    """What the bars mean."""
    sample = '<svg viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>'
    marks = {phase: _bar(phase, (0.0, 26.0), 0.0, colour, "") for phase in PHASES}
    entries = [
        sample.format(mark=marks[phase]) + label for phase, label in PHASES.items()
    ]
    entries.append(sample.format(mark='<path class="due" d="M13 0v14"/>') + "deadline")
    return (
        '<ul class="legend">'
        + "".join(f"<li>{entry}</li>" for entry in entries)
        + "</ul>"
    )


def _row(task: TaskResult, top: float, span_s: Range, colour: str) -> Iterator[str]:
    name = shortened(task.task, _MAX_LETTERS)
    yield f'<text class="name" x="{LEFT - 8:g}" y="{top + 14:g}" text-anchor="end">{escape(name)}</text>'
    # A phase lasts until the next one begins, the last one until the task or the run ends.
    course = [*task.course, (task.until_s, "finished")]
    for (begin_s, phase), (end_s, _) in pairwise(course):
        if phase in PHASES and end_s > begin_s:
            title = f"{task.task} {PHASES[phase]} from {duration(round(begin_s))} to {duration(round(end_s))}"
            ends = (_x(begin_s, span_s), _x(end_s, span_s))
            yield _bar(phase, ends, top + 3.0, colour, title)
    if task.deadline_s is not None and task.deadline_s <= span_s[1]:
        yield f'<path class="due" d="M{_x(task.deadline_s, span_s):.1f} {top:g}v{ROW:g}"/>'


def _bar(phase: TaskPhase, ends: Range, top: float, colour: str, text: str) -> str:
    height = _HEIGHTS[phase]
    look = _LOOKS.get(phase, 'fill="{colour}"').format(colour=colour)
    place = f'x="{ends[0]:.1f}" y="{top + (14.0 - height) / 2:g}" width="{max(ends[1] - ends[0], 1.0):.1f}"'
    title = f"<title>{escape(text)}</title>" if text else ""
    return f'<rect {look} {place} height="{height:g}">{title}</rect>'


def _shade(span: ChartSpan, span_s: Range, bottom: float) -> str:
    left = _x(span.start_s, span_s)
    right = _x(span.end_s, span_s)
    return (
        f'<rect class="fault" x="{left:.1f}" y="{TOP:g}" width="{max(right - left, 1.5):.1f}" '
        f'height="{bottom - TOP:g}"><title>{escape(span.title)}</title></rect>'
    )


def _axis(span_s: Range, bottom: float) -> Iterator[str]:
    unit_s, name = time_unit(span_s[1] - span_s[0])
    step_s = round_step((span_s[1] - span_s[0]) / unit_s / 8.0) * unit_s
    for number in range(int(span_s[1] / step_s + 1e-9) + 1):
        x = _x(number * step_s, span_s)
        yield f'<path class="grid" d="M{x:.1f} {TOP:g}V{bottom:g}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15:g}" text-anchor="middle">{number * step_s / unit_s:g}</text>'
    yield f'<path class="axis" d="M{LEFT:g} {bottom:g}H{WIDTH - RIGHT:g}"/>'
    yield f'<text x="{WIDTH - RIGHT:g}" y="{bottom + 29:g}" text-anchor="end">simulated time, {name}</text>'


def _x(at_s: float, span_s: Range) -> float:
    share = (at_s - span_s[0]) / (span_s[1] - span_s[0])
    return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)
