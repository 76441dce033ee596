"""Reproduced tables as text of 80 columns: a figure per block, a policy per line."""

import math
import textwrap
from collections.abc import Iterator, Sequence

from bench.papers.outcomes import Outcome
from bench.papers.table import Row, Table
from bench.papers.verdicts import Verdict

WIDTH = 80
HEADINGS = ("policy", "paper", "ours", "±", "wanted", "holds", "truth")
TRUTHS = {
    "measured": "every curve behind it is measured",
    "scaled": "some curves are scaled from measured ones by a published ratio",
    "synthetic": "some curves come from a checked-in script; it reproduces nothing",
}


def amount(value: float | None) -> str:
    """A figure with three digits or so; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-" if value is None or math.isnan(value) else "endless"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}"


def cells(row: Row) -> tuple[str, ...]:
    """Under HEADINGS."""
    sign = "≥" if row.is_at_least else "≤"
    return (
        row.policy,
        amount(row.paper),
        amount(row.mean),
        amount(row.half_interval),
        "-" if row.demanded is None else f"{sign} {amount(row.demanded)}",
        {True: "yes", False: "NO", None: "-"}[row.holds],
        row.truth,
    )


def by_figure(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows under their figure, both in the order of the table."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.figure, []).append(row)
    return found


def told(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The whole report, line by line."""
    yield from summary(outcomes, verdicts)
    for outcome in outcomes:
        for table in outcome.tables:
            yield ""
            yield from table_lines(table)


def summary(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """For each system: whether `joint` is at least as good, and whether it is much better."""
    yield "joint against each paper's own policy, on the paper's own objective"
    for outcome in outcomes:
        mine = [
            verdict for verdict in verdicts if verdict.system == outcome.system.name
        ]
        yield from _wrapped(
            f"{outcome.system.name}: {outcome.system.objective} ({outcome.seconds:.0f} s)",
            "",
        )
        if outcome.error:
            yield from _wrapped(f"FAILED: {outcome.error}", "  ")
        elif not mine:
            yield "  no figure of joint next to the policy's own"
        else:
            yield from _wrapped(count_words(mine), "  ")
        for verdict in mine:
            yield from _wrapped(f"- {verdict_words(verdict)}", "  ")


def count_words(verdicts: Sequence[Verdict]) -> str:
    """In how many figures `joint` is as good, and much better; at least one verdict."""
    good, much = (
        sum(one.is_as_good for one in verdicts),
        sum(one.is_much_better for one in verdicts),
    )
    return f"at least as good in {good} of {len(verdicts)}, by 10 % or more in {much}"


def verdict_words(verdict: Verdict) -> str:
    """One sentence."""
    return (
        f"{verdict.words}: {verdict.figure}: {amount(verdict.joint)} against {amount(verdict.own)} "
        f"({verdict.better_percent:+.1f} %; {verdict.table})"
    )


def table_lines(table: Table) -> Iterator[str]:
    """One experiment."""
    yield from _wrapped(f"== {table.system}: {table.title}", "")
    seeds = ", ".join(map(str, table.seeds))
    yield from _wrapped(
        f"{table.scenario}; seeds {seeds}; ± is the 95 % confidence interval", ""
    )
    widths = [
        max(map(len, column))
        for column in zip(HEADINGS, *map(cells, table.rows), strict=True)
    ]
    yield "  " + _line(HEADINGS, widths)
    for figure, rows in by_figure(table.rows).items():
        yield from _wrapped(figure, "")
        yield from (f"  {_line(cells(row), widths)}" for row in rows)
    for note in table.notes:
        yield from _wrapped(f"- {note}", "")


def _line(entries: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        entry.rjust(width) if 0 < place < len(widths) - 1 else entry.ljust(width)
        for place, (entry, width) in enumerate(zip(entries, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _wrapped(words: str, indent: str) -> list[str]:
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    ) or [indent]
