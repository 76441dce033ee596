"""The papers' report: verdicts by hand, what one failing system costs, and text and page of tables made by hand."""

import json
import math
import pickle
from dataclasses import replace

import msgspec
import pytest

from bench.papers.html import report_to_html
from bench.papers.outcomes import Outcome, in_process, outcomes
from bench.papers.show import told
from bench.papers.systems import SYSTEMS, Aim, System
from bench.papers.table import Row, Table
from bench.papers.verdicts import Verdict, better_percent, verdicts

MACHINE: dict[str, str | int] = {"cores": 2, "processor": "made by <hand>"}
SYSTEM = System(
    name="Mudi",
    module="mudi",
    policy="mudi",
    objective="completion of <training>",
    aims=(Aim(figure="completion", is_more=False),),
)


def a_row(
    policy: str, *values: float, figure: str = "completion time, min", **changes: object
) -> Row:
    facts: dict[str, object] = {
        "paper": None,
        "is_at_least": False,
        "truth": "scaled",
        **changes,
    }
    return Row(figure=figure, policy=policy, values=values, **facts)  # type: ignore[arg-type]


def a_table(*rows: Row, notes: tuple[str, ...] = ()) -> Table:
    return Table(
        system="Mudi",
        title="12 GPUs",
        scenario="bench/x.yaml",
        seeds=(1, 2),
        rows=rows,
        notes=notes,
    )


TABLE = a_table(
    a_row("mudi", 20.0, 22.0, paper=18.5, demanded=25.0),
    a_row("joint", 14.0, 14.0),
    a_row("gslice", 44.0, 40.0, demanded=40.0),
    a_row(
        "mudi", 0.4, 0.6, figure="SLO violations, %", demanded=0.5, truth="synthetic"
    ),
    a_row("joint", 0.1, 0.1, figure="SLO violations, %", truth="synthetic"),
    notes=("The cluster is <simulated>: " + "long words " * 12,),
)


@pytest.mark.parametrize(
    ("own", "other", "percent"),
    [
        # More is better: 12 instead of 10.
        (a_row("x", 10.0, is_at_least=True), a_row("joint", 12.0), 20.0),
        # Less is better: half as long is 100 % better, twice as long is half as good.
        (a_row("x", 10.0), a_row("joint", 5.0), 100.0),
        (a_row("x", 10.0), a_row("joint", 20.0), -50.0),
        # Gains over the same baseline: 160 to 128 is 25 % more.
        (
            a_row("x", 28.0, figure="throughput over gpulets, %", is_at_least=True),
            a_row("joint", 60.0, figure="throughput over gpulets, %", is_at_least=True),
            25.0,
        ),
        (a_row("x", 0.0), a_row("joint", 0.0), 0.0),
        (a_row("x", 1.0), a_row("joint", 0.0), 100.0),
        (a_row("x", 0.0), a_row("joint", 1.0), -100.0),
    ],
)
def test_better_is_in_percent_of_the_paper_s_policy(
    own: Row, other: Row, percent: float
) -> None:
    assert better_percent(own, other, is_more=own.is_at_least) == pytest.approx(percent)


def test_only_figures_of_the_objective_that_both_have_are_judged() -> None:
    (verdict,) = verdicts(SYSTEM, [TABLE, a_table(a_row("mudi", 3.0))])
    assert (verdict.own, verdict.joint, verdict.better_percent) == (
        21.0,
        14.0,
        pytest.approx(50.0),
    )
    assert (verdict.table, verdict.figure) == ("12 GPUs", "completion time, min")
    assert verdict.words == "at least 10 % better"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("percent", "words"),
    [
        (10.0, "at least 10 % better"),
        (9.9, "at least as good"),
        (-0.4, "at least as good"),
        (-0.6, "worse"),
    ],
)
def test_a_verdict_in_words(percent: float, words: str) -> None:
    verdict = Verdict(
        system="Mudi", table="t", figure="f", own=1.0, joint=1.0, better_percent=percent
    )
    assert verdict.words == words


def a_report() -> tuple[list[Outcome], tuple[Verdict, ...]]:
    failed = Outcome(
        system=replace(SYSTEM, name="InSS"), error="ValueError: no <weights>"
    )
    return [Outcome(system=SYSTEM, tables=(TABLE,), seconds=3.0), failed], verdicts(
        SYSTEM, [TABLE]
    )


def test_a_system_that_fails_costs_no_other_one() -> None:
    def make(system: System, quick: bool) -> Outcome:
        assert quick
        return Outcome(system=system, error="boom" if system.name == "InSS" else "")

    found = outcomes(SYSTEMS, quick=True, jobs=2, make=make)
    assert [outcome.system.name for outcome in found] == [
        "HetSev",
        "InSS",
        "Morak",
        "Mudi",
        "OLTunes",
    ]
    assert [bool(outcome.error) for outcome in found] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert all(outcome.seconds >= 0.0 for outcome in found)


def test_experiments_that_are_not_written_or_raise_are_named() -> None:
    ghost = replace(SYSTEM, module="ghost")
    assert in_process(ghost, True).error == "bench/papers/ghost.py is not there"
    # A file of the folder that has no tables.
    raising = in_process(replace(SYSTEM, module="table"), True)
    # The last line of what it said alone, of which Python versions add a guess to the end.
    assert raising.error.startswith(
        "AttributeError: module 'bench.papers.table' has no attribute 'tables'"
    )
    assert raising.tables == ()


def test_a_gain_over_nothing_is_endless_is_no_verdict_and_crosses_the_process_border() -> (
    None
):
    endless = a_table(a_row("mudi", math.inf), a_row("joint", 1.0))
    assert pickle.loads(pickle.dumps((endless,)))[0] == endless
    assert verdicts(SYSTEM, [endless]) == ()
    outcome = Outcome(system=SYSTEM, tables=(endless,))
    assert any(
        line.split() == ["mudi", "-", "endless", "-", "-", "-", "scaled"]
        for line in told([outcome], ())
    )
    assert "endless" in report_to_html([outcome], (), machine=MACHINE, is_quick=False)
    assert json.loads(msgspec.json.encode(endless))["rows"][0]["values"] == [None]
