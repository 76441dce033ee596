"""The papers' report: verdicts by hand, what one failing system costs, and text and page of tables made by hand."""

import json
import math
import pickle
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest

from bench.papers.html import report_to_html
from bench.papers.outcomes import Outcome, in_process, outcomes
from bench.papers.show import WIDTH, amount, told
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


@pytest.mark.thorough
def test_the_text_has_the_summary_first_then_every_row_within_80_columns() -> None:
    lines = list(told(*a_report()))
    assert lines[1:4] == [
        "Mudi: completion of <training> (3 s)",
        "  at least as good in 1 of 1, by 10 % or more in 1",
        "  - at least 10 % better: completion time, min: 14.00 against 21.00 (+50.0 %; 12",
    ]
    assert "  FAILED: ValueError: no <weights>" in lines
    rows = [line.split() for line in lines]
    # 95 % of two values 2 apart: t = 12.7 at one degree of freedom, times sqrt(2) / sqrt(2).
    assert ["mudi", "18.50", "21.00", "12.71", "≤", "25.00", "yes", "scaled"] in rows
    assert ["gslice", "-", "42.00", "25.41", "≤", "40.00", "NO", "scaled"] in rows
    assert ["joint", "-", "0.10", "0.00", "-", "-", "synthetic"] in rows
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.thorough
def test_a_system_without_a_figure_of_joint_says_so() -> None:
    only = Outcome(system=SYSTEM, tables=(a_table(a_row("mudi", 1.0)),))
    assert "  no figure of joint beside the policy's own" in list(told([only], ()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.123, "0.12"), (123.45, "123.5"), (12345.6, "12,346")],
)
def test_amounts_have_as_many_digits_as_matter(value: float | None, text: str) -> None:
    assert amount(value) == text


class Tags(HTMLParser):
    """Checks that tags are closed in order, and that nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name in ("src", "href") for name, _ in attrs)
        if tag not in ("meta", "br"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.thorough
@pytest.mark.parametrize("is_quick", [True, False])
def test_the_page_stands_alone_and_has_every_figure(is_quick: bool) -> None:
    found, judged = a_report()
    tags = Tags()
    tags.feed(report_to_html(found, judged, machine=MACHINE, is_quick=is_quick))
    assert tags.opened == []
    words = " ".join(" ".join(tags.texts).split())
    assert (
        "Mudi: completion of <training>; joint at least as good in 1 of 1, by 10 % or more in 1"
        in words
    )
    assert "at least 10 % better" in words
    assert "InSS failed: ValueError: no <weights>" in words
    assert "processor made by <hand>" in words
    assert all(f"{truth}" in words for truth in ("scaled", "synthetic"))
    assert "prefers-color-scheme:dark" in words
    assert ("A quick run" in words) is is_quick


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


@pytest.mark.thorough
def test_the_five_systems_are_there_once_each_under_their_policy_s_name() -> None:
    assert [system.policy for system in SYSTEMS] == [
        "hetsev",
        "inss",
        "morak",
        "mudi",
        "oltunes",
    ]
    assert all(system.aims and system.objective for system in SYSTEMS)
