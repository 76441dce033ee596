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
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 10_000
"""Wider than any row, so that nothing folds in a pipe."""

GOOD, WARN, BAD, FAINT = "green", "yellow", "red", "bright_black"


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table's cell with a colour."""

    text: str
    style: str = ""


Cells = Sequence[str | Cell]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table."""

    title: str
    right: bool = False
    """Figures are aligned at the right."""


def console(stream: TextIO | None = None) -> Console:
    """A console on stdout, or on another stream; colours only on a terminal without NO_COLOR."""
    found = Console(file=stream or sys.stdout, highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not found.is_terminal:
        found = Console(
            file=stream or sys.stdout, highlight=False, emoji=False, markup=False, width=PIPE_WIDTH, no_color=True
        )
    return found


def show_table(headings: Sequence[Heading], rows: Sequence[Cells], *, stream: TextIO | None = None) -> None:
    """Print rows under headings; the last column holds the longest text."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for index, heading in enumerate(headings):
        is_last = index == len(headings) - 1
        table.add_column(
            heading.title.upper(),
            justify="right" if heading.right else "left",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
        )
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    _print_without_trailing_blanks(table, stream)


def show_line(*cells: str | Cell, stream: TextIO | None = None) -> None:
    """Print one line of coloured pieces, folded only on a terminal."""
    text = Text()
    for cell in cells:
        text.append_text(_text(cell))
    console(stream).print(text)


def show_json(document: object) -> None:
    """Print JSON; keys keep the order in which the API gives them."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def show_yaml(documents: Sequence[object]) -> None:
    """Print YAML, one document after another; `plimsoll apply -f -` reads it back."""
    import yaml

    sys.stdout.write(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, default_flow_style=None))


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
    """An ISO 8601 time in UTC to the second, or a dash."""
    if not isinstance(value, str):
        return "-"
    return datetime.fromisoformat(value).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _text(cell: str | Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else Text(cell.text, style=cell.style)


def _print_without_trailing_blanks(table: Table, stream: TextIO | None) -> None:
    """Rich pads every line to the table's width, which soils pipes and copied text."""
    target = console(stream)
    with target.capture() as captured:
        target.print(table)
    for line in captured.get().splitlines():
        target.file.write(line.rstrip() + "\n")
