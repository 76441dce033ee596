"""Bars of tasks: each stretch at its time, nothing after the end, deadlines across."""

import xml.etree.ElementTree as ET

import pytest

from app.simulate.report.charts import ChartSpan
from app.simulate.report.gantt import LEFT, RIGHT, WIDTH, gantt_chart
from app.simulate.run.results import TaskPhase, TaskResult
from tests.app.runs import a_task_result

SPAN_S = (0.0, 100.0)


def drawn(task: TaskResult) -> ET.Element:
    return ET.fromstring(gantt_chart("t", [task], SPAN_S, colour="#4477cc"))


def at(x: str) -> float:
    """The simulated second at a place."""
    return (float(x) - LEFT) / (WIDTH - LEFT - RIGHT) * 100.0


def test_every_stretch_is_drawn_from_its_beginning_to_the_next_one() -> None:
    course: list[tuple[float, TaskPhase]] = [
        (10.0, "waiting"),
        (20.0, "running"),
        (50.0, "swapped"),
        (70.0, "running"),
        (90.0, "finished"),
    ]
    rects = drawn(a_task_result("a", course=course, finished_s=90.0)).findall("rect")
    ends = [
        (
            at(rect.attrib["x"]),
            at(rect.attrib["x"]) + at(str(LEFT + float(rect.attrib["width"]))),
        )
        for rect in rects
    ]
    assert ends == [
        pytest.approx(each, abs=0.05)
        for each in ((10, 20), (20, 50), (50, 70), (70, 90))
    ]
    assert [rect.attrib.get("class", "running") for rect in rects] == [
        "wait",
        "running",
        "swap",
        "running",
    ]
    titles = [title.text for rect in rects for title in rect.findall("title")]
    assert titles[2] == "a swapped out from 50 s to 1 min 10 s"


def test_what_is_marked_is_shaded_behind_the_bars() -> None:
    span = ChartSpan(label="1", start_s=20.0, end_s=200.0, title="a GPU lost")
    first, *bars = ET.fromstring(
        gantt_chart("t", [a_task_result()], SPAN_S, colour="#4477cc", marked=[span])
    ).iter("rect")
    assert first.attrib["class"] == "fault" and len(bars) == 2
    assert at(first.attrib["x"]) == pytest.approx(20.0, abs=0.05)
    assert float(first.attrib["x"]) + float(first.attrib["width"]) == pytest.approx(
        WIDTH - RIGHT, abs=0.1
    )
