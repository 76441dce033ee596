"""Results on stdout: tables for people and for pipes, JSON and YAML for programs.

A table on a terminal is fitted to its width: the last column may fold, the others never do. In a pipe it has one line
per row, however long, and no colour.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.common.errors import CliError

PIPE_WIDTH = 10_000
"""Wider than any row, so that nothing folds in a pipe."""

NARROWEST_TEXT = 20
"""The last column gets at least so much."""

GAP = "  "

GOOD, WARN, BAD, FAINT = "green", "yellow", "red", "bright_black"


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredCell:
    """A table's cell with a colour."""

    text: str
    style: str = ""


Cells = Sequence[str | ColouredCell]


def good(text: str) -> ColouredCell:
    """A cell about what is as it should be."""
    return ColouredCell(text=text, style=GOOD)


def warn(text: str) -> ColouredCell:
    """A cell that somebody should read."""
    return ColouredCell(text=text, style=WARN)


def bad(text: str) -> ColouredCell:
    """A cell about what is wrong."""
    return ColouredCell(text=text, style=BAD)


def faint(text: str) -> ColouredCell:
    """A cell that need not be read."""
    return ColouredCell(text=text, style=FAINT)


def bold(text: str) -> ColouredCell:
    """A title, or the row that the others are compared with."""
    return ColouredCell(text=text, style="bold")


def console(stream: TextIO | None = None, *, min_width: int = 0) -> Console:
    """A console on stdout, or on another stream; colours only on a terminal without NO_COLOR."""
    file = stream or sys.stdout
    # Rich's own guesses (markup in brackets, `:emoji:`, coloured numbers) would change the names of users' objects.
    plainly = partial(Console, file=file, highlight=False, emoji=False, markup=False)
    found = plainly()
    if not found.is_terminal:
        return plainly(width=PIPE_WIDTH, no_color=True)
    return plainly(width=min_width) if found.width < min_width else found


def show_table(
    titles: Sequence[str], rows: Sequence[Cells], *, stream: TextIO | None = None
) -> None:
    """Print rows under titles; a `>` before a title aligns its column at the right, as figures are read.

    The last column holds the longest text.
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    names = [title.removeprefix(">") for title in titles]
    columns = [[Text(name), *cells] for name, *cells in zip(names, *texts, strict=True)]
    # A terminal too narrow for the other columns wraps whole lines, which beats cells that end in dots.
    fixed = sum(
        max(cell.cell_len for cell in column) + len(GAP) for column in columns[:-1]
    )
    target = console(stream, min_width=fixed + NARROWEST_TEXT)
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, len(GAP), 0, 0),
        header_style="bold",
        show_edge=False,
    )
    for place, title in enumerate(titles):
        is_last = place == len(titles) - 1
        table.add_column(
            names[place].upper(),
            justify="right" if title.startswith(">") else "left",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
        )
    for row in texts:
        table.add_row(*row)
    # Rich pads every line to the table's width; pipes and copied text would keep the trailing blanks.
    with target.capture() as captured:
        target.print(table)
    for line in captured.get().splitlines():
        target.file.write(line.rstrip() + "\n")


def show_line(*cells: str | ColouredCell, stream: TextIO | None = None) -> None:
    """Print one line of coloured pieces, folded only on a terminal."""
    text = Text()
    for cell in cells:
        text.append_text(_text(cell))
    console(stream).print(text)


def require_yes(question: str, *, refusal: str) -> None:
    """Ask on stderr, since stdout is for results. Raises CliError with the refusal unless the answer is yes."""
    # The question refers to what was printed, which must be on the screen by then.
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        # End of input: stdin is a closed pipe, and there is no one to ask.
        raise CliError(refusal, hint="there was no answer; -y skips the question")
    if answer.strip().lower() not in ("y", "yes"):
        raise CliError(refusal)


def show_json(document: object) -> None:
    """Print JSON; keys keep the order in which the API gives them."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def show_yaml(documents: Sequence[object]) -> None:
    """Print YAML, one document after another; `plimsoll apply -f -` reads it back."""
    # Tables need no YAML, and --help none either.
    import yaml

    class Dumper(yaml.SafeDumper):
        """Block style, but for lists of scalars: a row of a profile stays on its line."""

        def represent_sequence(
            self, tag: str, sequence: Any, flow_style: bool | None = None
        ) -> yaml.SequenceNode:
            is_flat = all(isinstance(entry, int | float | str) for entry in sequence)
            return super().represent_sequence(
                tag, sequence, flow_style=is_flat or flow_style
            )

    text = yaml.dump_all(
        documents,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    sys.stdout.write(text)


def show_document(document: object, output: Format) -> bool:
    """Print it as JSON or YAML, and say so; False where the output is for people: that is the caller's part."""
    if output is Format.JSON:
        show_json(document)
    elif output is Format.YAML:
        show_yaml([document])
    return output in (Format.JSON, Format.YAML)


def show_items(items: Sequence[object], output: Format) -> bool:
    """The same for a list: under `items` in JSON, one document after another in YAML."""
    if output is Format.YAML:
        show_yaml(items)
        return True
    return show_document({"items": items}, output)


def show_nothing(what: str) -> None:
    """Say, on stderr, that a list is empty; a pipe gets nothing."""
    sys.stderr.write(f"No {what}.\n")


def amount(value: float | None, digits: int = 1) -> str:
    """A figure with thousands separators, or a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def usd(value: float | None, digits: int = 4) -> str:
    """Dollars, or a dash."""
    return "-" if value is None else f"${value:,.{digits}f}"


def plain(value: object) -> str:
    """Any JSON value in a cell."""
    if value is None:
        return "-"
    # Before the numbers: a bool is an int.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={plain(entry)}" for key, entry in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(plain(entry) for entry in value) or "-"
    return str(value)


def time_text(value: object) -> str:
    """An ISO 8601 time to the second, in UTC and saying so, or a dash."""
    if not isinstance(value, str):
        return "-"
    moment = datetime.fromisoformat(value).astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _text(cell: str | ColouredCell) -> Text:
    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=cell.style)
