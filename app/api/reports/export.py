"""Reports as files: CSV row by row, Parquet where `pyarrow` is installed. Money keeps every digit in both."""

import asyncio
import csv
import importlib.util
import io
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Literal, ParamSpec, TypeAlias, TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.parts import Context
from app.base.errors import InvalidRequest, Unavailable
from app.db.reports.reports import Cell

if TYPE_CHECKING:
    import pyarrow

log = structlog.get_logger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Rows: TypeAlias = AsyncGenerator[tuple[Cell, ...]]
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

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Text that begins like this is a formula to spreadsheets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """How slowly a client may take a file. Each one that is downloaded has one of the seats of `EXPORT_RULES`."""

    stalled_s: float = 60.0
    """For one piece of CHUNK_BYTES."""
    grace_s: float = 60.0
    """For a file of any size, before the rate counts: proxies take their time to begin."""
    min_bytes_per_s: float = 1 << 18
    """The mean over the whole file: 2 Mbit/s, with which the largest one takes 17 minutes."""

    def within_s(self, size_bytes: int) -> float:
        """From the first byte to the last."""
        return self.grace_s + size_bytes / self.min_bytes_per_s


DEFAULT_LIMITS = DownloadLimits()


def check_format(wanted: Format) -> None:
    """Raise InvalidRequest for a format that this installation cannot write."""
    if wanted == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest(
            "Parquet needs pyarrow where the control plane runs: install `plimsoll[parquet]` there, or take csv",
            field="format",
        )


class ExportResponse(Response):
    """A report as a file: written in full first, then sent.

    However slowly the client reads, the database connection has been returned long before; and a fault while the file
    is written is answered as an error. A client that is slower than DownloadLimits is disconnected, and one that
    disconnects ends its export at once.
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it and send it. Raises InvalidRequest, TooMany, Unavailable before the first byte is sent."""
        serving = asyncio.create_task(self._serve(scope, send), name="plimsoll-export")
        # uvicorn does not cancel a request whose client has gone, and its export would hold a database connection.
        leaving = asyncio.create_task(_disconnected(receive), name="plimsoll-export")
        try:
            done, _ = await asyncio.wait(
                (serving, leaving), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            serving.cancel()
            leaving.cancel()
            # Until both have returned what they hold: the request is over only then.
            await asyncio.wait((serving, leaving))

    async def _serve(self, scope: Scope, send: Send) -> None:
        context: Context = scope["plimsoll.context"]
        caller = context.caller.root
        async with context.parts.exports.taken(caller):
            # Outside the file, whose end writes once more what the disk had no room for.
            with (
                _disk_errors_explained(),
                tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file,
            ):
                async with (
                    context.parts.export_turn.taken(caller),
                    # Else the connection would be returned only when the generator is collected as garbage.
                    aclosing(self._rows()) as rows,
                ):
                    await self._write(rows, file)
                size = await _in_thread(_flushed_size, file)
                await self._send_head(send, size)
                await send_file(file, send, size_bytes=size)

    async def _send_head(self, send: Send, size_bytes: int) -> None:
        self.headers["Content-Length"] = str(size_bytes)
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})


async def _disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def _disk_errors_explained() -> Iterator[None]:
    """What the disk refuses, as Unavailable."""
    try:
        yield
    except OSError as error:
        # In the log as well: the client cannot make room.
        log.warning("could not write a file for a download", error=str(error))
        raise Unavailable(
            "the control plane has no space for the file in its temporary folder "
            f"({error.strerror or error}); export it in parts with `since` and `until`, or try again later"
        ) from error


async def _in_thread(
    step: Callable[Parameters, Result],
    *given: Parameters.args,
    **named: Parameters.kwargs,
) -> Result:
    """What a step that uses the file returns. In a thread, since the disk may be busy."""
    working = asyncio.ensure_future(asyncio.to_thread(step, *given, **named))
    try:
        return await asyncio.shield(working)
    finally:
        # A thread cannot be cancelled, and the file must stay open for as long as it writes.
        await asyncio.wait((working,))


def _flushed_size(file: IO[bytes]) -> int:
    """Bytes of the file, which are all on the disk then, and not in a buffer for which it may have no room."""
    file.flush()
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


async def send_file(
    file: IO[bytes],
    send: Send,
    *,
    size_bytes: int,
    limits: DownloadLimits = DEFAULT_LIMITS,
) -> None:
    """Send the file from where it stands; it ends early where the client takes it more slowly than `limits` allow."""
    try:
        async with asyncio.timeout(limits.within_s(size_bytes)):
            while await _send_piece(file, send, limits.stalled_s):
                pass
    except TimeoutError:
        # Without the rest, so that the server closes the connection and the client sees that it is incomplete.
        log.info("a download was stopped: its client is too slow", bytes=size_bytes)


async def _send_piece(file: IO[bytes], send: Send, within_s: float) -> bool:
    """Send the next piece; whether there may be more."""
    piece = await _in_thread(file.read, CHUNK_BYTES)
    has_more = bool(piece)
    async with asyncio.timeout(within_s):
        await send({"type": "http.response.body", "body": piece, "more_body": has_more})
    return has_more


async def write_csv(rows: Rows, file: IO[bytes]) -> None:
    """One line per row, after one with the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    async for batch in _batches(rows, CSV_ROWS_AT_ONCE):
        writer.writerows([_csv_cell(value) for value in row] for row in batch)
        await _in_thread(file.write, text.getvalue().encode())
        await _check_size(file)
        # The same buffer for every batch, so that memory does not grow with the report.
        text.seek(0)
        text.truncate()


async def _check_size(file: IO[bytes]) -> None:
    # `seek` writes the file's buffer to the disk.
    if await _in_thread(file.seek, 0, io.SEEK_END) > FILE_BYTES:
        raise InvalidRequest(
            f"the file would be larger than {FILE_BYTES >> 20} MiB; export it in parts with `since` and `until`",
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
        table = pyarrow.Table.from_arrays(arrays, schema=schema)
        await _in_thread(writer.write_table, table)
        await _check_size(file)
    assert writer is not None
    await _in_thread(writer.close)


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
