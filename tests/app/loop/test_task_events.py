"""What the audit says of tasks, and how often."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agents.base.protocol import TaskState
from app.base.clock import ManualControlClock
from app.base.errors import Conflict
from app.loop.events import Starved, progress_event, refused_events, starved_event
from app.loop.plan import Decision
from app.loop.tick import Loop, record_refused_tasks
from app.solver.inline import InlineSolver
from app.store.memory_store import MemoryStore
from app.store.task_book import TaskRecord, remaining_s, submitted, waited_s, waiting_s
from solvers.types.outcome import PlanReport
from solvers.types.plan import Plan
from solvers.types.state import GpuId, Task
from tests.app.store.test_task_book import TASK, a_book, after, reading, reported

START = datetime(2026, 1, 1, tzinfo=UTC)
PLACED = replace(
    submitted(TASK, START), place=(GpuId("n1/gpu-0"), 20.0), done_iterations=250.0
)


def said(
    before: TaskState | None, after_state: TaskState, **changes: object
) -> tuple[str, str] | None:
    """Kind and reason of what a change of state makes the audit say."""
    was = replace(PLACED, state=before)
    line = progress_event(
        "nightly",
        was,
        replace(was, state=after_state, **changes),
        node="n1",
        at=START,  # type: ignore[arg-type]
    )
    if line is None:
        return None
    assert (line.subject, line.actor, line.at) == ("task/nightly", "node/n1", START)
    return line.kind, line.reason


@pytest.mark.parametrize(
    ("before", "state", "wanted"),
    [
        (None, "starting", None),
        ("running", "running", None),
        ("swapping", "swapped", None),
        (None, "running", ("TaskStarted", "on n1/gpu-0 with 20 % of its SMs, after 250 of 1,000 iterations")),
        ("failed", "running", ("TaskStarted", "on n1/gpu-0 with 20 % of its SMs, after 250 of 1,000 iterations")),
        ("swapped", "running", ("TaskSwappedIn", "on n1/gpu-0 with 20 % of its SMs, after 250 of 1,000 iterations")),
        ("running", "swapping",
         ("TaskSwappedOut", "its room on n1/gpu-0 is needed; 250 of 1,000 iterations are done")),
        ("running", "failed", ("TaskFailed", "on n1/gpu-0, after 250 of 1,000 iterations; its agent starts it again")),
    ],
)  # fmt: skip
def test_every_change_of_state_that_people_want_to_know_of_is_one_line(
    before: TaskState | None, state: TaskState, wanted: tuple[str, str] | None
) -> None:
    assert said(before, state) == wanted


@pytest.mark.parametrize(
    ("ended_s", "words"),
    [
        (
            60.0,
            "1,000 iterations in 60 s, of which it waited 20 s; 40 s before its deadline",
        ),
        (
            150.0,
            "1,000 iterations in 150 s, of which it waited 110 s; 50 s after its deadline",
        ),
    ],
)
def test_the_end_says_how_long_it_took_and_whether_it_was_in_time(
    ended_s: float, words: str
) -> None:
    ended = {"finished_at": after(ended_s), "ran_s": 40.0}
    assert said("running", "finished", **ended) == ("TaskFinished", words)
    assert said("running", "finished", **ended, deadline_at=None) == (
        "TaskFinished",
        words.partition(";")[0],
    )


def test_refusals_are_told_under_the_name_that_the_team_gave() -> None:
    lines = refused_events(
        [("nightly.2", "sm at n1/gpu-0: 120 of 100"), ("a", "memory at n1/gpu-1: …")],
        START,
    )
    assert [(line.subject, line.kind) for line in lines] == [
        ("task/a", "TaskRefused"),
        ("task/nightly", "TaskRefused"),
    ]
    assert (
        lines[1].reason
        == "the checker removed it from the plan: sm at n1/gpu-0: 120 of 100"
    )


def test_a_record_knows_its_phase_its_pace_and_its_waiting() -> None:
    running = replace(
        PLACED, state="running", iteration_ms=20.0, ran_s=5.0, last_ran_at=after(8.0)
    )
    assert (running.phase, remaining_s(running), waiting_s(running, after(10.0))) == (
        "running",
        15.0,
        0.0,
    )
    assert waited_s(running, after(10.0)) == 5.0
    swapped = replace(running, state="swapping")
    assert (swapped.phase, remaining_s(swapped), waiting_s(swapped, after(10.0))) == (
        "swapped",
        None,
        2.0,
    )
    assert remaining_s(replace(running, iteration_ms=0.0)) is None
    assert [
        replace(PLACED, state=state).phase for state in (None, "starting", "failed")
    ] == [
        "queued",
        "starting",
        "failed",
    ]


def test_a_cancelled_task_waits_no_more_and_nothing_is_heard_of_it() -> None:
    book = a_book()
    book.take(reported(reading("running", 40.0)), after(10.0))
    book.cancel("nightly", after(12.0))
    book.cancel("nightly", after(13.0))
    book.take(reported(reading("finished", 1000.0)), after(15.0))
    record: TaskRecord = book.records["nightly"]
    assert (record.phase, record.cancelled_at, record.place) == (
        "cancelled",
        after(12.0),
        None,
    )
    assert (waiting_s(record, after(90.0)), waited_s(record, after(90.0))) == (
        0.0,
        12.0,
    )
    assert book.unfinished(after(20.0)) == ()
    done = a_book()
    done.take(reported(reading("finished", 1000.0)), after(10.0))
    with pytest.raises(Conflict, match="'nightly' has already finished"):
        done.cancel("nightly", after(11.0))


def test_deadlines_count_from_submission() -> None:
    task = Task(
        name="x", kind="offline", network="n", batch=1, iterations=1, due_in_s=90.0
    )
    assert submitted(task, START).deadline_at == START + timedelta(seconds=90.0)


def test_a_task_that_is_refused_in_every_tick_is_told_once() -> None:
    async def scenario() -> list[tuple[str, str]]:
        store = MemoryStore()
        loop = Loop(store=store, solver=InlineSolver(), clock=ManualControlClock(START))
        snapshot = await store.load_snapshot(START)
        sound = Decision(
            state="kept",
            plan=Plan(policy="joint"),
            report=PlanReport(status="kept", cost_usd_per_hour=0.0),
        )
        for refused in (
            (),
            (("a", "sm"),),
            (("a", "sm"), ("b", "power")),
            (("b", "power"),),
            (("a", "sm"),),
        ):
            await record_refused_tasks(
                loop, snapshot, replace(sound, refused_tasks=refused)
            )
        return [
            (event.subject, event.reason.rpartition(" ")[2]) for event in store.events
        ]

    assert asyncio.run(scenario()) == [
        ("task/a", "sm"),
        ("task/b", "power"),
        ("task/a", "sm"),
    ]


def test_who_waits_for_long_is_told_why() -> None:
    waits = Starved(
        name="nightly", network="bert", batch=16, waiting_s=1234.0, has_points=True
    )
    assert starved_event(waits, START).reason.startswith(
        "it has not run for 1,234 s: services leave no room for it"
    )
    unknown = starved_event(replace(waits, has_points=False), START)
    assert "bert has no operating points with batch 16 on the" in unknown.reason
    assert (unknown.kind, unknown.subject) == ("TaskStarved", "task/nightly")
