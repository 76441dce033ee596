"""CSV files of measured rows: units in the column names, kept row by row, read back by the next run.

Table(path, columns)     rows that are there already are kept; raises DeviceError where the columns are others
.rows                    as text, by column
.add(row)                durable when it returns
.replace(rows)           replaces all of them
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from agents.base.device import DeviceError
from agents.base.durable_files import replace_file
from bench.report import Figures


class Table:
    """One file; it appears with its first row."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows: list[dict[str, str]] = self._read()

    def add(self, row: Figures) -> None:
        """Append it; a file of a few hundred rows is written again, so that it is never torn."""
        self._write([*self.rows, self._text(row)])

    def replace(self, rows: Iterable[Figures]) -> None:
        """Replace all rows."""
        self._write([self._text(row) for row in rows])

    def has(self, **values: object) -> bool:
        """Whether a row with these values is there."""
        wanted = {name: _cell(value) for name, value in values.items()}
        return any(wanted.items() <= row.items() for row in self.rows)

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != self.columns:
                raise DeviceError(
                    f"{self.path} has the columns {', '.join(reader.fieldnames or ())}; these scripts write "
                    f"{', '.join(self.columns)}: give another --out, or remove the file"
                )
            return list(reader)

    def _text(self, row: Figures) -> dict[str, str]:
        assert set(row) == set(self.columns), (
            f"{sorted(set(row) ^ set(self.columns))} are not in both"
        )
        return {name: _cell(row[name]) for name in self.columns}

    def _write(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self.path, text.getvalue().encode())
        self.rows = rows


def _cell(value: object) -> str:
    """Empty = not known; five significant digits; yes or no."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.5g}" if isinstance(value, float) and abs(value) < 1e5 else str(value)
    )
