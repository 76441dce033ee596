"""Files of records, whatever program wrote them: CSV, JSON lines, and JSON documents that hold records or series.

Every form becomes the rows of one table, so that what reads a table need not know which form its file has.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from app.base.errors import InvalidRequest
from app.measurements.rows import (
    MAX_LINE,
    CheckHeader,
    Row,
    Rows,
    byte_lines,
    file_name,
    refusal,
    rows_of,
    text_lines,
)
from app.measurements.series_json import is_exported, rows_of_document
from app.measurements.tables import CsvTable, make_table
from solvers.types.documents.strict_json import describe

MAX_DOCUMENT = 1 << 29
"""Bytes of one JSON document, which is held in memory; the job log of Philly, the largest that is known, has 90 MB."""
_BOM = b"\xef\xbb\xbf"
_JSON = (b"{", b"[")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderlessForm:
    """A published CSV file without a header, and how its first line is recognised."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    """Columns that hold numbers, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecord:
    """One JSON object of a file, and where it starts."""

    file: str
    text: str
    start: int
    fields: Mapping[str, object]

    def refusal(self, problem: str, name: str) -> InvalidRequest:
        """The error that names a field; without the field, the object."""
        # The first occurrence behind the object's start: a decoder keeps no positions of its own.
        at = self.text.find(f'"{name}"', self.start)
        offset = at if at >= 0 and name in self.fields else self.start
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        return InvalidRequest(problem, f"{self.file}:{line}:{column}: {name}")


def accept_any(_place: str, _names: Sequence[str]) -> None:
    """The check of a header that may have any columns."""


def open_records(
    source: Path,
    check_header: CheckHeader = accept_any,
    *,
    headerless: Sequence[HeaderlessForm] = (),
) -> Rows:
    """The rows of a file in any of the forms, or of stdin for `-`. Raises InvalidRequest."""
    file = file_name(source)
    above, lines = _above_and_lines(byte_lines(source))
    if above and above[-1].removeprefix(_BOM).lstrip().startswith(_JSON):
        rows = _json_rows(file, lines, above[-1], len(above))
        check_header(rows.file, rows.names)
        return rows
    texts = text_lines(file, lines)
    read = []
    for text in texts:
        read.append(text)
        if text.strip():
            break
    names = _names_of(read[-1] if read else "", headerless)
    return rows_of(file, chain(read, texts), check_header, header=names)


def _above_and_lines(lines: Iterator[bytes]) -> tuple[list[bytes], Iterator[bytes]]:
    """The lines to the first that is not blank, and all lines, those among them."""
    above = []
    for line in lines:
        above.append(line)
        if line.removeprefix(_BOM).strip():
            break
    return above, chain(above, lines)


def read_records(source: Path, check_header: CheckHeader = accept_any) -> CsvTable:
    """All rows of a file in any of the forms. Raises InvalidRequest."""
    return make_table(open_records(source, check_header))


def read_json_records(source: Path) -> Iterator[JsonRecord]:
    """The JSON objects of a file, one behind the other or in one list. Raises InvalidRequest."""
    file = file_name(source)
    text = _document_text(file, byte_lines(source))
    if not text.strip():
        raise refusal("the file is empty; it must hold a JSON object", file=file)
    for start, value in _values(file, text):
        # `vllm bench sweep` and others write one list of what is else one file each.
        for each in value if isinstance(value, list) else [value]:
            fields = each if isinstance(each, dict) else {}
            record = JsonRecord(file=file, text=text, start=start, fields=fields)
            if not isinstance(each, dict):
                problem = f"must be an object, not {describe(each)}"
                raise record.refusal(problem, "document")
            yield record


def _names_of(
    first: str, headerless: Sequence[HeaderlessForm]
) -> tuple[str, ...] | None:
    """The columns of a file whose first line is a row of a form that has no header."""
    cells = [cell.strip() for cell in next(csv.reader([first]), [])]
    for form in headerless:
        if len(cells) == len(form.names):
            kept = dict(zip(form.names, cells, strict=True))
            if all(_is_number_or_empty(kept[name]) for name in form.numbers):
                return form.names
    return None


def _is_number_or_empty(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _json_rows(file: str, lines: Iterator[bytes], first: bytes, number: int) -> Rows:
    line = _object_or_none(first)
    is_export = is_exported(line)
    if line is not None and not is_export and rows_of_document(file, line) is None:
        # One object per line: read one by one, since such a file may have millions.
        rows = _line_rows(file, lines, number)
        return _rows_of_records(file, rows)
    # A document cannot be read line by line: its first line says little of its form.
    text = _document_text(file, lines)
    (_, document), *more = _values(file, text)
    values = [document, *(value for _, value in more)]
    # An export has a line for each series.
    rows_found = rows_of_document(file, values if is_export else document)
    if rows_found is not None:
        return rows_found
    records = _records_of(values)
    # A document has no lines that a reader could look at: its entries are counted.
    numbered = enumerate(records, start=1)
    return _rows_of_records(f"{file}: entry", numbered)


def _object_or_none(line: bytes) -> Mapping[str, object] | None:
    # A longer line is a document without line breaks; its first piece is no JSON.
    if len(line) > MAX_LINE:
        return None
    try:
        value = json.loads(line.removeprefix(_BOM))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _line_rows(
    file: str, lines: Iterator[bytes], first: int
) -> Iterator[tuple[int, object]]:
    for number, text in enumerate(text_lines(file, lines), start=1):
        if number < first or not text.strip():
            continue
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON: {error}; every line must be one object"
            raise refusal(problem, file=file, line=number) from error


def _records_of(values: Sequence[object]) -> Sequence[object]:
    """The records of documents: a list, a list that is an object's only one, or the documents themselves."""
    if len(values) > 1:
        return values
    (document,) = values
    if isinstance(document, dict):
        lists = [each for each in document.values() if isinstance(each, list) and each]
        if len(lists) == 1 and isinstance(lists[0][0], dict):
            return lists[0]
        return [document]
    return document if isinstance(document, list) else [document]


def _rows_of_records(file: str, records: Iterator[tuple[int, object]]) -> Rows:
    """Rows whose columns are the fields of the first record, `outer.inner` where one lies in another."""
    # The columns must be known before any row is taken; the first record has them.
    first = next(records, None)
    if first is None:
        raise refusal("there are no records", file=file)
    names = tuple(_fields(file, *first))

    def rows() -> Iterator[Row]:
        for number, value in chain([first], records):
            fields = _fields(file, number, value)
            yield number, [fields.get(name, "") for name in names]

    return Rows(file=file, names=names, notes=(), rows=rows(), written_by="json")


def _fields(file: str, number: int, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        problem = f"must be an object with fields, not {describe(value)}"
        raise refusal(problem, file=file, line=number)
    return dict(_flat("", value))


def _flat(prefix: str, fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", _cell(value)


def _cell(value: object) -> str:
    # Of lists, such as the blocks of a prompt, only the name is of use.
    if value is None or isinstance(value, list):
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _document_text(file: str, lines: Iterator[bytes]) -> str:
    pieces = []
    size = 0
    for line in lines:
        size += len(line)
        pieces.append(line)
        # Before the pieces are joined, which takes the memory again.
        if size > MAX_DOCUMENT:
            problem = f"larger than {MAX_DOCUMENT:,} bytes; cut it, or write a line per record"
            raise refusal(problem, file=file)
    try:
        return b"".join(pieces).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text: {error.reason} at byte {error.start + 1}"
        raise refusal(problem, file=file) from error


def _values(file: str, text: str) -> Iterator[tuple[int, object]]:
    """JSON values that stand one behind the other, as tools append them, each over one line or many."""
    decoder = json.JSONDecoder()
    start = _skip_blanks(text, 0)
    while start < len(text):
        try:
            document, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            place = f"{file}:{error.lineno}:{error.colno}"
            raise InvalidRequest(f"not JSON: {error.msg}", place) from error
        except (RecursionError, ValueError) as error:
            raise refusal(f"not JSON that can be read: {error}", file=file) from error
        yield start, document
        start = _skip_blanks(text, end)


def _skip_blanks(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
