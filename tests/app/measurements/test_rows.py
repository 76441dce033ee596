"""Rows of CSV files: notes above the header, packed files, and limits on what is read."""

import gzip
from pathlib import Path

import pytest

from app.base.errors import InvalidRequest
from app.measurements.rows import MAX_LINE, MAX_NOTES, Rows, open_rows


def opened(path: Path) -> Rows:
    return open_rows(path, lambda _place, _names: None)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


PACKED = gzip.compress(
    b"a,b\n" + b"".join(b"%d,%d\n" % (each, each**3) for each in range(999))
)


@pytest.mark.parametrize(
    "content",
    [b"a,b\n1,2\n", PACKED[:-99], PACKED[:99] + b"???" + PACKED[102:]],
    ids=["plain", "cut", "broken"],
)
def test_a_file_that_cannot_be_unpacked_is_named(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"cannot unpack .*rows\.csv\.gz"):
        list(opened(path).rows)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("# only\n", "is empty"),
        ("# note\na,b\n", "no rows"),
        ("# note\na,a\n1,2\n", r"rows\.csv:2: column a: .*twice"),
        ("# note\na,b\n1\n", r"rows\.csv:3: .*1 cells"),
        ("# n\n" * (MAX_NOTES + 1) + "a,b\n1,2\n", "lines of notes"),
        ("a,b\n1," + "9" * MAX_LINE + "\n", r"rows\.csv:2: .*longer"),
    ],
)
def test_what_is_refused_has_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        list(opened(write(tmp_path, text)).rows)
