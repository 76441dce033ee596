"""docs/papers.md from the headlines' rows that the last runs kept: `python -m bench.papers.page`; a test holds it."""

from pathlib import Path
from statistics import fmean

from bench.papers.headlines import HEADLINES, Headline
from bench.papers.kept import KeptRow, key_of, read_kept
from bench.papers.show import TRUTHS, amount
from bench.papers.systems import SYSTEMS
from bench.papers.table import t_95

PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers.md"

HEAD = """# The five papers next to what we measured

Generated from bench/papers/data/headlines.json by bench/papers/page.py; do not edit. `make bench-papers` measures again
(an hour or more), `python -m bench.papers --only Mudi` one system. Ours is the mean over seeds with its 95 % confidence
interval. No table was run on the paper's hardware:

"""

TABLE = (
    "| claim | paper | ours | truth | why it differs, or what it does not show |\n"
    "|---|---|---|---|---|\n"
)


def document() -> str:
    """The text of docs/papers.md. Raises LookupError for a headline whose row was never kept."""
    kept = read_kept()
    for each in HEADLINES:
        if key_of(each) not in kept:
            raise LookupError(
                f"no run was kept for {each.claim!r}; run: python -m bench.papers --only {each.system}"
            )
    truths = "".join(f"* *{name}*: {words}.\n" for name, words in TRUTHS.items())
    chapters = (
        f"\n## {system.name}\n\nFor {system.objective}.\n\n{TABLE}"
        + "".join(
            _line(each, kept[key_of(each)])
            for each in HEADLINES
            if each.system == system.name
        )
        for system in SYSTEMS
    )
    return "".join((HEAD, truths, *chapters))


def _line(headline: Headline, row: KeptRow) -> str:
    count = len(row.values)
    spread = _spread(row.values) if count > 1 else None
    unit = _unit(row.figure)
    paper = amount(row.paper) + (unit if row.paper is not None else "")
    ours = amount(fmean(row.values)) + (f" ± {amount(spread)}" if spread else "") + unit
    cells = (headline.claim, paper, ours, row.truth, headline.reason)
    return f"| {' | '.join(cells)} |\n"


def _unit(figure: str) -> str:
    """What a figure's last words say, as it stands behind a number; nothing where it is a count."""
    words = figure.rpartition(", ")[2].split(" ")[0]
    return {"%": " %", "x": " ×", "ms": " ms", "rps": " rps"}.get(words, "")


def _spread(values: tuple[float, ...]) -> float:
    """Half of the 95 % confidence interval of the mean."""
    mean = fmean(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return t_95(len(values) - 1) * float((variance / len(values)) ** 0.5)


def is_stale() -> bool:
    """Whether the page is not what the kept rows say."""
    return not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != document()


def write_page() -> None:
    """Write docs/papers.md."""
    PAGE.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    write_page()
