"""The campaign's JSON: what was measured stays, and says when, where and what was wrong."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import cast

import pytest

from bench import report
from bench.campaign import __main__ as campaign
from bench.campaign.day import day
from bench.campaign.day.growth import TableSize
from bench.campaign.faults import fault, kill
from bench.campaign.faults.kinds import FAULTS, SILENT
from bench.campaign.faults.victims import Recovery, Victim, Victims
from bench.campaign.floods import fuzz, greedy
from bench.campaign.floods.callers import CALLERS, NO_CALLERS
from bench.campaign.floods.flood import FloodResult
from bench.campaign.outcome import Row, RowOptions, RowOutcome

KINDS = ("admin", *NO_CALLERS, *(each.name for each in CALLERS))
"""By whose token calls come."""


async def _good(options: RowOptions) -> RowOutcome:
    return RowOutcome(figures=({"seconds": options.seconds},), violations=())


async def _slow(_: RowOptions) -> RowOutcome:
    return RowOutcome(figures=(), violations=(), too_slow=("late",))


async def _failing(_: RowOptions) -> RowOutcome:
    raise TimeoutError("no database")


async def _idle(_: RowOptions) -> RowOutcome:
    return RowOutcome(figures=(), violations=(), not_done=("1 kill of 1,000",))


def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"good": _good, "slow": _slow, "failing": _failing, "idle": _idle}
    rows = {name: Row(run=run, seconds=3.0) for name, run in runs.items()}
    monkeypatch.setattr(campaign, "ROWS", rows)


def test_a_row_that_fails_is_told_and_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _rows(monkeypatch)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert campaign.main(["--rows", "good,failing,slow", "--write", "found"]) == 1
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["rows"] == [
        {"row": "good", "seconds": 3.0},
        {"row": "failing", "violations": "it ended with TimeoutError('no database')"},
        {"row": "slow", "too_slow": "late"},
    ]
    assert written["settings"]["names"] == "good failing slow"
    assert written["settings"]["date"]


@pytest.mark.thorough
def test_a_run_that_did_less_than_it_promises_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _rows(monkeypatch)
    assert campaign.main(["--rows", "idle"]) == 1
    assert "1 not done\nidle: 1 kill of 1,000\n" in capsys.readouterr().out


@pytest.mark.thorough
def test_all_kills_are_judged_where_they_are_rare_and_only_undisturbed_ones_else() -> (
    None
):
    run = kill.KillRun(victims=cast(Victims, None), draw=Random(7), ends_s=0.0)
    # The agent was dead because the API was.
    run.recoveries += [
        Recovery(victim="api", at_s=0.0, back_s=9.0),
        Recovery(victim="agent", node="n1", at_s=1.0, back_s=11.0),
    ]
    often, rarely = (
        [*kill._late(run, RowOptions(seconds=seconds, kills=1000))]
        for seconds in (520.0, 1700.0)
    )
    assert often == []
    assert rarely == [
        "what was killed was back within 11.0 s (p99); 10 s are the limit"
    ]


@pytest.mark.parametrize(
    ("name", "answered_s", "wanted"),
    [
        ("resets of agents", 101.0, SILENT),
        ("half-open connections of agents", 101.0, ()),
        # The loop takes a node for silent after 4 s.
        ("half-open connections of agents", 107.0, SILENT),
        ("slow connections of agents", None, SILENT),
    ],
)
def test_an_event_must_tell_where_a_node_stays_without_an_answer(
    name: str, answered_s: float | None, wanted: tuple[str, ...]
) -> None:
    (made,) = (each for each in FAULTS if each.name == name)
    assert fault._must_tell(made, 100.0, answered_s) == wanted


def test_a_row_that_was_deleted_is_told_while_others_are_added() -> None:
    before = {"plan": frozenset({"1", "2"}), "node": frozenset({"n"})}
    after = {"plan": frozenset({"2", "3", "4"}), "node": frozenset({"n"})}
    assert fault._deleted(before, after) == [
        "1 rows of plan were deleted, for example 1"
    ]


@pytest.mark.thorough
def test_all_rows_end_within_twenty_minutes() -> None:
    # Half a minute of each is its start and its judgement.
    assert sum(row.seconds + 30.0 for row in campaign.ROWS.values()) <= 1200.0


def flood(callers: int = len(KINDS), **statuses: int) -> FloodResult:
    """Calls by status (`s200=50`), which came with tokens of `callers` kinds."""
    by_status = {name.removeprefix("s"): count for name, count in statuses.items()}
    sent_by = dict.fromkeys(KINDS[:callers], 1)
    return FloodResult(statuses=by_status, sequences=1, sent_by=sent_by)


def sizes(**rows: int) -> dict[str, TableSize]:
    return {name: TableSize(rows=count, size_bytes=0) for name, count in rows.items()}


@pytest.mark.thorough
def test_what_was_not_done_is_told() -> None:
    due: Counter[Victim] = Counter({"api": 2, "agent": 2})
    back_s: dict[Victim, list[float]] = {"api": [1.0] * 2, "agent": [1.0], "router": []}
    assert kill._not_killed(due, back_s) == (
        "1 kills of agent, which must be 2 at least",
        "0 kills of router, which must be 1 at least",
    )
    results = ("passed", "failed", "left out: no time")
    figures = [{"fault": "f", "result": result} for result in results]
    assert fault._not_made(figures) == ("f: left out: no time",)
    good, one_second = flood(s200=50, s422=50), RowOptions(seconds=1.0)
    for options, calls, told in (
        (one_second, good, ()),
        (RowOptions(seconds=2.0), flood(s200=19), ("19 calls, which must be 20",)),
        (RowOptions(seconds=2.0, calls=50), flood(s200=49), ("49 calls, which",)),
        (one_second, flood(s200=1, s401=99), ("1 calls that were taken, which must",)),
        (one_second, flood(callers=1, s200=50), ("1 kinds of callers, which must",)),
    ):
        found = fuzz._not_done(options, calls, good)
        assert len(found) == len(told)
        assert all(
            each.startswith(begin) for each, begin in zip(found, told, strict=True)
        )
    phase = greedy.Phase()
    for tally in (phase.syncs, phase.reads):
        tally.statuses["200"] += 1
        tally.latency_ms.append(1.0)
    taken = FloodResult(taken_by={"GET /a": 3, "POST /b": 0})
    assert greedy._outcome(phase, phase, taken).not_done == (
        "0 2xx to POST /b, which must be 1 at least",
    )
    before = sizes(observation=0, plan=1, target=1)
    few = sizes(observation=100, plan=3, target=3)
    assert day._too_little(before, few, 2.0) == (
        "100 new rows of observation, which must be 540 at least",
    )
    seen = {"api": [(0.0, 1.0)] * 10, "controller": [(0.0, 1.0)] * 8}
    assert day._unseen(seen, 10) == (
        "8 looks at the memory of controller, which must be 9 at least",
    )
