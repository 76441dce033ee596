"""The papers' tables as one page that stands alone: summary, then every system's experiments."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from app.simulate.report.html_parts import STYLE, FigureCell, bullets, paragraph, table
from bench.papers.outcomes import Outcome
from bench.papers.show import TRUTHS, amount, by_figure, cells, count_words
from bench.papers.table import Row, Table
from bench.papers.verdicts import Verdict

HEADINGS = ("figure", "policy", "paper", "ours", "wanted", "holds", "truth")
_TITLE = "Five papers' experiments, and joint next to them"


def report_to_html(
    outcomes: Sequence[Outcome],
    verdicts: Sequence[Verdict],
    *,
    machine: Mapping[str, str | int],
    is_quick: bool,
) -> str:
    """The page."""
    body = "\n".join(_body(outcomes, verdicts, machine=machine, is_quick=is_quick))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_TITLE}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _body(
    outcomes: Sequence[Outcome],
    verdicts: Sequence[Verdict],
    *,
    machine: Mapping[str, str | int],
    is_quick: bool,
) -> Iterator[str]:
    yield f"<h1>{_TITLE}</h1>"
    if is_quick:
        yield paragraph(
            "A quick run: short slices, that no figure should be quoted from.", "bad"
        )
    yield "<h2>Does joint do at least as well?</h2>"
    yield from _summary(outcomes, verdicts)
    for outcome in outcomes:
        if outcome.tables:
            yield f"<h2>{escape(outcome.system.name)}</h2>"
            for each in outcome.tables:
                yield from _experiment(each)
    yield "<footer><h2>What this is</h2>"
    yield bullets(f"{word}: {words}" for word, words in TRUTHS.items())
    yield paragraph(
        "Measured on " + ", ".join(f"{key} {value}" for key, value in machine.items())
    )
    yield "<p>Made by <code>make bench-papers</code>.</p></footer>"


def _summary(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One line per figure of a system's objective."""
    rows: list[tuple[str | FigureCell, ...]] = []
    for outcome in outcomes:
        mine = [
            verdict for verdict in verdicts if verdict.system == outcome.system.name
        ]
        name = f"{outcome.system.name}: {outcome.system.objective}" + (
            f"; joint {count_words(mine)}" if mine else ""
        )
        rows.extend(_verdict(name, each) for each in mine)
        if not mine:
            words = "failed" if outcome.error else "no figure of both"
            rows.append(
                (
                    name,
                    "-",
                    "-",
                    "-",
                    "-",
                    FigureCell(text=words, is_bad=bool(outcome.error)),
                )
            )
    yield table(
        ("system", "figure", "its policy", "joint", "better by", "verdict"),
        rows,
        lefts=2,
    )
    yield bullets(
        f"{outcome.system.name} failed: {outcome.error}"
        for outcome in outcomes
        if outcome.error
    )


def _verdict(name: str, verdict: Verdict) -> tuple[str | FigureCell, ...]:
    return (
        name,
        f"{verdict.figure} ({verdict.table})",
        amount(verdict.own),
        amount(verdict.joint),
        f"{verdict.better_percent:+.1f} %",
        FigureCell(text=verdict.words, is_bad=not verdict.is_as_good),
    )


def _experiment(each: Table) -> Iterator[str]:
    yield f"<h3>{escape(each.title)}</h3>"
    yield paragraph(
        f"{each.scenario}; seeds {', '.join(map(str, each.seeds))}.", "faint"
    )
    yield table(HEADINGS, (_row(row, first) for row, first in _named(each)), lefts=2)
    yield bullets(each.notes)


def _named(each: Table) -> Iterator[tuple[Row, bool]]:
    """Rows under their figure, which the first of them names."""
    for rows in by_figure(each.rows).values():
        for place, row in enumerate(rows):
            yield row, place == 0


def _row(row: Row, is_first: bool) -> tuple[str | FigureCell, ...]:
    policy, paper, ours, interval, wanted, holds, truth = cells(row)
    spread = "" if interval == "-" else f"±{interval}"
    return (
        row.figure if is_first else "",
        policy,
        paper,
        FigureCell(text=ours, spread=spread),
        wanted,
        FigureCell(text=holds, is_bad=row.holds is False),
        truth,
    )
