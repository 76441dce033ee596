"""Pieces of the HTML report: style sheet, tables, lists. Whatever is not called `html` here is escaped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from app.simulate.figures import SeedMean, estimate_texts
from app.simulate.report.charts import look_of

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--faint:#5d646c;--line:#d5d9de;--card:#f5f6f8;--bad:#b3261e;
--good:#146c2e}
@media (prefers-color-scheme:dark){:root{--ground:#14171a;--ink:#e6e8ea;--faint:#a0a7ae;--line:#363c43;--card:#1c2025;
--bad:#ff8a80;--good:#7ddc95}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:76rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .5rem}h2{font-size:1.25rem;margin:2.2rem 0 .6rem}
h3{font-size:1.05rem;margin:1.6rem 0 .4rem;overflow-wrap:anywhere}p,ul{max-width:48rem;margin:.5rem 0}
.faint,footer,figcaption{color:var(--faint)}
.headline{border-left:4px solid #4477cc;background:var(--card);padding:.6rem 1rem;margin:1rem 0;font-size:1.08rem}
h1,li,.headline{overflow-wrap:anywhere}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;min-width:6rem;max-width:22rem;
overflow-wrap:break-word}th{color:var(--faint);font-weight:600;white-space:normal;vertical-align:bottom}
th.left,td.left{text-align:left}.bad{color:var(--bad);font-weight:600}.pm{color:var(--faint);font-size:.88em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(21rem,100%),1fr));gap:.8rem}
@media (min-width:48rem){.charts.four{grid-template-columns:1fr 1fr}}
figure{margin:0;break-inside:avoid;background:var(--card);border-radius:6px;padding:.6rem .6rem .2rem}
figcaption{font-size:.9rem;font-weight:600;color:var(--ink);padding-left:.3rem}
svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--faint)}
svg .name{font-size:13px;fill:var(--ink)}svg .level{fill:var(--bad)}
.grid{stroke:var(--line);fill:none}.axis{stroke:var(--faint);fill:none}.whisker{stroke:var(--ink);stroke-width:1.5;
fill:none}.limit{stroke:var(--bad);stroke-dasharray:4 3;fill:none}.fault{fill:var(--bad);fill-opacity:.16}
.wait{fill:var(--faint);fill-opacity:.5}.swap{fill-opacity:.3}
.due{stroke:var(--ink);stroke-width:2.5;fill:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:.5rem 0;list-style:none;font-size:.92rem}
.legend svg{display:inline-block;width:26px;height:10px;margin-right:.4rem}
.bars{max-width:36rem}footer{margin-top:2.5rem;border-top:1px solid var(--line);font-size:.9rem}
code,pre{font:.88em ui-monospace,monospace;overflow-wrap:anywhere}pre{white-space:pre-wrap}
@media print{:root{--ground:#fff;--ink:#000;--faint:#444;--line:#bbb;--card:#fff;--bad:#b3261e;--good:#146c2e}
body{max-width:none;padding:0;font-size:10pt}h2,h3{break-after:avoid}tr{break-inside:avoid}.wide{overflow:visible}
th,td{padding:.15rem .4rem}.charts{grid-template-columns:1fr 1fr}details{display:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

INK = 'style="stroke:var(--ink)"'
"""The look of a line that belongs to no policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureCell:
    """A table's cell: a figure, and what chance may add to it or take from it."""

    text: str
    spread: str = ""
    is_bad: bool = False

    def html(self) -> str:
        """Its inside."""
        figure = (
            f'<span class="bad">{escape(self.text)}</span>'
            if self.is_bad
            else escape(self.text)
        )
        return figure + (
            f' <span class="pm">{escape(self.spread)}</span>' if self.spread else ""
        )


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | FigureCell]],
    *,
    lefts: int = 1,
) -> str:
    """A table; its first `lefts` columns are words, the others figures."""
    return (
        '<div class="wide"><table><thead><tr>'
        + "".join(
            f"<th{_side(place, lefts)}>{escape(heading)}</th>"
            for place, heading in enumerate(headings)
        )
        + "</tr></thead><tbody>"
        + "".join(f"<tr>{_cells(row, lefts)}</tr>" for row in rows)
        + "</tbody></table></div>"
    )


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of plain words."""
    return f"<p{_class(style)}>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """A list of plain words; nothing where there are none."""
    entries = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{entries}</ul>" if entries else ""


def figure(caption: str, chart_html: str) -> str:
    """A chart under its title."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart_html}</figure>"


def legend(names: Sequence[str], *, asked: str = "") -> str:
    """Which line is whose; `asked` names the line in the page's own ink, where there is one."""
    looks = [(name, look_of(place)) for place, name in enumerate(names)] + (
        [(asked, INK)] if asked else []
    )
    sample = '<svg viewBox="0 0 26 10" aria-hidden="true"><path class="line" {look} d="M0 5H26"/></svg>'
    entries = (
        f"<li>{sample.format(look=look)}{escape(name)}</li>" for name, look in looks
    )
    return f'<ul class="legend">{"".join(entries)}</ul>'


def estimate_cell(
    value: SeedMean | None,
    *,
    digits: int | None = None,
    scale: float = 1.0,
) -> FigureCell:
    """A mean with its interval."""
    text, spread = estimate_texts(value, digits=digits, scale=scale)
    return FigureCell(text=text, spread=spread)


def share_cell(value: SeedMean | None, *, digits: int, bad: bool = False) -> FigureCell:
    """A share in percent, with its interval."""
    text, spread = estimate_texts(value, digits=digits, is_share=True)
    return FigureCell(text=text, spread=spread, is_bad=bad)


def _cells(row: Sequence[str | FigureCell], lefts: int) -> str:
    # Plain text is escaped here and figures in `html`, so that nothing reaches the page as it was written.
    insides = (
        cell.html() if isinstance(cell, FigureCell) else escape(cell) for cell in row
    )
    return "".join(
        f"<td{_side(place, lefts)}>{inside}</td>"
        for place, inside in enumerate(insides)
    )


def _side(place: int, lefts: int) -> str:
    return _class("left") if 0 < place < lefts else ""


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
