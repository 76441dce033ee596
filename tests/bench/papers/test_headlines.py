"""The papers' page: every headline has its row, the page says what was measured, and the quick slice still does."""

from importlib import import_module
from statistics import fmean

import pytest

from bench.papers.headlines import HEADLINES
from bench.papers.kept import KeptRow, answers, key_of, read_kept
from bench.papers.page import is_stale
from bench.papers.systems import SYSTEMS, System
from bench.papers.table import Row, Table

RELATIVE, ABSOLUTE = 0.03, 0.3
"""What a figure may move by: kernels of linear algebra differ between machines, and decide ties of equal plans."""


def test_the_page_is_what_was_measured() -> None:
    assert not is_stale(), "run `python -m bench.papers.page`"


def test_every_headline_has_a_row_of_a_whole_run_and_its_paper() -> None:
    kept = read_kept()
    assert set(kept) == {key_of(each) for each in HEADLINES}
    assert {each.system for each in HEADLINES} == {system.name for system in SYSTEMS}
    for row in kept.values():
        # Shares of sharing by limit are ours: the paper states its figure at one limit only.
        assert (
            row.paper is not None
            or row.policy == "any sharing"
            or "whole" in row.figure
        )


# Of each runner `make test` has a smaller slice: `play`, `decide`, `run_jobs` and `planned_by`.
@pytest.mark.thorough
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_the_quick_slice_still_gives_the_figures_that_are_checked_in(
    system: System,
) -> None:
    tables = import_module(f"bench.papers.{system.module}").tables(True)
    now = {key_of(row): row for row in answers(tables)}
    before = {
        key: row
        for key, row in read_kept(is_quick=True).items()
        if row.system == system.name
    }
    assert set(now) == set(before) and before
    timed = {key_of(each) for each in HEADLINES if each.is_time}
    assert [
        (key[2], fmean(before[key].values), fmean(now[key].values))
        for key in sorted(set(now) - timed)
        if not is_like(before[key], now[key])
    ] == [], f"if that is meant: `python -m bench.papers --quick --only {system.name}`"


def is_like(before: KeptRow, now: KeptRow) -> bool:
    """Whether all seeds gave the same, and their truth has the same label."""
    return (now.paper, now.truth) == (
        before.paper,
        before.truth,
    ) and now.values == pytest.approx(before.values, rel=RELATIVE, abs=ABSOLUTE)


def test_a_row_is_found_by_its_tables_beginning_and_its_policy() -> None:
    (headline,) = (
        each for each in HEADLINES if each.figure == "decisions for the best GPU, %"
    )
    row = Row(
        figure=headline.figure,
        policy="mudi",
        paper=92.67,
        values=(99.0,),
        truth="synthetic",
    )
    other = Row(
        figure=headline.figure,
        policy="gslice",
        paper=None,
        values=(1.0,),
        truth="synthetic",
    )
    table = Table(
        system="Mudi",
        title=f"{headline.table}, 6 GPUs",
        scenario="",
        seeds=(0,),
        rows=[other, row],
    )
    assert headline.row_in([table]) is row
    (kept,) = answers([table])
    assert key_of(kept) == key_of(headline)
    assert kept.values == (99.0,)
