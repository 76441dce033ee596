"""Reports as files: CSV row by row, Parquet where `pyarrow` is installed. Money keeps every digit in both."""

import asyncio
import csv
import importlib.util
import io
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.parts import Context
from app.base.errors import InvalidRequest
from app.db.reports.reports import Cell

if TYPE_CHECKING:
    import pyarrow

log = structlog.get_logger(__name__)

Rows: TypeAlias = AsyncIterator[tuple[Cell, ...]]
"""The names of the columns first."""

Format: TypeAlias = Literal["csv", "parquet"]
MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}

CSV_ROWS_AT_ONCE = 200
"""Encoded in about a millisecond, after which other requests have their turn."""
PARQUET_ROWS_AT_ONCE = 1000
"""They are a group of rows of the file, which readers want large."""
CHUNK_BYTES = 1 << 18
MEMORY_BYTES = 1 << 20
"""A larger file is on disk, in the system's folder for temporary files (TMPDIR)."""
FILE_BYTES = 1 << 28
"""More than a million rows. As many files as `EXPORT_RULES` allows are there at once: 2 GiB."""
STALLED_S = 60.0
"""A client must take a piece of CHUNK_BYTES within this: 4 KiB/s."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Text that begins like this is a formula to spreadsheets."""


def check_format(wanted: Format) -> None:
    """Raise InvalidRequest for a format that this installation cannot write."""
    if wanted == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest(
            "Parquet needs pyarrow where the control plane runs: install `plimsoll[parquet]` there, or take csv",
            field="format",
        )


class ExportResponse(Response):
    """A report as a file: written in full first, then sent.

    However slowly the client reads, the database has long been left; and a fault while the file is written is answered
    as an error. A client that takes nothing for STALLED_S is cut.
    """

    def __init__(self, rows: Callable[[], Rows], wanted: Format, *, name: str) -> None:
        """`rows`: what to read, begun when it is this request's turn; `name`: the file's, without its ending."""
        headers = {
            "Content-Disposition": f'attachment; filename="{name}.{wanted}"',
            # A browser must not keep a file of costs for the next person.
            "Cache-Control": "no-store",
        }
        super().__init__(media_type=MEDIA_TYPES[wanted], headers=headers)
        self._rows = rows
        self._write = write_parquet if wanted == "parquet" else write_csv

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Write it and send it. Raises InvalidRequest, TooMany before the first byte is sent."""
        context: Context = scope["plimsoll.context"]
        caller = context.caller.id
        async with context.parts.exports.taken(caller):
            with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file:
                async with context.parts.export_turn.taken(caller):
                    await self._write(self._rows(), file)
                await self._send(file, send)

    async def _send(self, file: IO[bytes], send: Send) -> None:
        self.headers["Content-Length"] = str(file.seek(0, io.SEEK_END))
        file.seek(0)
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        has_more = True
        try:
            while has_more:
                # In a thread: the file may be on a disk that is busy.
                piece = await asyncio.to_thread(file.read, CHUNK_BYTES)
                has_more = bool(piece)
                body = {"body": piece, "more_body": has_more}
                async with asyncio.timeout(STALLED_S):
                    await send({"type": "http.response.body", **body})
        except TimeoutError:
            # Without the rest, so that the server closes the connection and the client sees that it is cut.
            log.info("a download was cut: its client took nothing", seconds=STALLED_S)


async def write_csv(rows: Rows, file: IO[bytes]) -> None:
    """One line per row, after one with the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    async for batch in _batches(rows, CSV_ROWS_AT_ONCE):
        writer.writerows([_csv_cell(value) for value in row] for row in batch)
        file.write(text.getvalue().encode())
        _check_size(file)
        # The same buffer for every batch, so that memory does not grow with the report.
        text.seek(0)
        text.truncate()


def _check_size(file: IO[bytes]) -> None:
    if file.seek(0, io.SEEK_END) > FILE_BYTES:
        raise InvalidRequest(
            f"the file would be larger than {FILE_BYTES >> 20} MiB; take it in parts by `since` and `until`",
            field="since",
        )


def _csv_cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, Decimal):
        # Never 1E-7: spreadsheets and people read figures without exponents.
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return str(value).lower() if isinstance(value, bool) else str(value)


async def write_parquet(rows: Rows, file: IO[bytes]) -> None:
    """Types are those of the first rows; a column without any value there is text."""
    import pyarrow
    import pyarrow.parquet

    names: list[str] = []
    writer: pyarrow.parquet.ParquetWriter | None = None
    async for batch in _batches(rows, PARQUET_ROWS_AT_ONCE):
        if not names:
            names, batch = [str(name) for name in batch[0]], batch[1:]
        columns = [[row[at] for row in batch] for at in range(len(names))]
        if writer is None:
            kinds = [
                _kind(name, column) for name, column in zip(names, columns, strict=True)
            ]
            # From the first batch alone: the rest has not been read, and a Parquet file has one schema.
            schema = pyarrow.schema(list(zip(names, kinds, strict=True)))
            writer = pyarrow.parquet.ParquetWriter(file, schema)
        arrays = [
            _array(column, field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        _check_size(file)
    assert writer is not None
    writer.close()


def _kind(name: str, column: Sequence[Cell]) -> "pyarrow.DataType":
    import pyarrow

    first = next((value for value in column if value is not None), None)
    # Money stays exact; other decimals are ratios and averages, for which floats are what readers expect.
    if "usd" in name.split("_") and isinstance(first, Decimal | None):
        return pyarrow.decimal128(38, 12)
    if isinstance(first, bool):
        return pyarrow.bool_()
    if isinstance(first, int):
        return pyarrow.int64()
    if isinstance(first, Decimal | float):
        return pyarrow.float64()
    if isinstance(first, datetime):
        return pyarrow.timestamp("us", tz="UTC")
    return (
        pyarrow.list_(pyarrow.string()) if isinstance(first, list) else pyarrow.string()
    )


def _array(column: Sequence[Cell], kind: "pyarrow.DataType") -> "pyarrow.Array":
    import pyarrow

    if pyarrow.types.is_decimal(kind):
        return pyarrow.array(
            [
                None if value is None else round(Decimal(str(value)), 12)
                for value in column
            ],
            kind,
        )
    if pyarrow.types.is_floating(kind):
        return pyarrow.array(
            [None if value is None else float(str(value)) for value in column], kind
        )
    return pyarrow.array(column, kind)


async def _batches(rows: Rows, size: int) -> AsyncIterator[list[tuple[Cell, ...]]]:
    """The first batch comes even where it is nothing but the names."""
    batch: list[tuple[Cell, ...]] = []
    async for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
