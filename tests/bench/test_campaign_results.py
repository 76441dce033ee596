"""The campaign's JSON: what was measured stays, and says when, where and what was wrong."""

import json
from pathlib import Path

import pytest

from bench import report
from bench.campaign import __main__ as campaign
from bench.campaign.faults import fault
from bench.campaign.faults.kinds import FAULTS, SILENT
from bench.campaign.outcome import Row, RowOptions, RowOutcome


async def _good(options: RowOptions) -> RowOutcome:
    return RowOutcome(figures=({"seconds": options.seconds},), violations=())


async def _slow(_: RowOptions) -> RowOutcome:
    return RowOutcome(figures=(), violations=(), too_slow=("late",))


async def _failing(_: RowOptions) -> RowOutcome:
    raise TimeoutError("no database")


def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"good": _good, "slow": _slow, "failing": _failing}
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


def test_nothing_is_written_unless_it_is_said_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _rows(monkeypatch)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert campaign.main(["--rows", "good"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "cores" in capsys.readouterr().out.splitlines()[0]


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
