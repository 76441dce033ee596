"""Reports as files: CSV row by row, Parquet where `pyarrow` is installed. Money keeps every digit in both."""

import csv
import importlib.util
import io
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, TypeAlias

from app.base.errors import InvalidRequest
from app.db.reports.reports import Cell

if TYPE_CHECKING:
    import pyarrow

Rows: TypeAlias = AsyncIterator[tuple[Cell, ...]]
"""The names of the columns first."""

Format: TypeAlias = Literal["csv", "parquet"]
MEDIA_TYPES: dict[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}

ROWS_AT_ONCE = 1000
CHUNK_BYTES = 1 << 18
MEMORY_BYTES = 1 << 24
"""A Parquet file has its table of contents at the end; a larger one is made on disk."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Text that begins like this is a formula to spreadsheets."""


def check_format(wanted: Format) -> None:
    """Raise InvalidRequest for a format that this installation cannot write."""
    if wanted == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest(
            "Parquet needs pyarrow where the control plane runs: install `plimsoll[parquet]` there, or take csv",
            field="format",
        )


async def encoded(rows: Rows, wanted: Format) -> AsyncIterator[bytes]:
    """The file in pieces."""
    async for piece in _parquet(rows) if wanted == "parquet" else _csv(rows):
        yield piece


async def _csv(rows: Rows) -> AsyncIterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    async for batch in _batches(rows):
        writer.writerows([_csv_cell(value) for value in row] for row in batch)
        yield text.getvalue().encode()
        # The same buffer for every batch, so that memory does not grow with the report.
        text.seek(0)
        text.truncate()


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


async def _parquet(rows: Rows) -> AsyncIterator[bytes]:
    """Types are those of the first rows; a column without any value there is text."""
    import pyarrow
    import pyarrow.parquet

    with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as file:
        names: list[str] = []
        writer: pyarrow.parquet.ParquetWriter | None = None
        async for batch in _batches(rows):
            if not names:
                names, batch = [str(name) for name in batch[0]], batch[1:]
            columns = [[row[at] for row in batch] for at in range(len(names))]
            if writer is None:
                kinds = [
                    _kind(name, column)
                    for name, column in zip(names, columns, strict=True)
                ]
                # From the first batch alone: the rest has not been read, and a Parquet file has one schema.
                schema = pyarrow.schema(list(zip(names, kinds, strict=True)))
                writer = pyarrow.parquet.ParquetWriter(file, schema)
            arrays = [
                _array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        assert writer is not None
        writer.close()
        file.seek(0)
        while piece := file.read(CHUNK_BYTES):
            yield piece


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


async def _batches(rows: Rows) -> AsyncIterator[list[tuple[Cell, ...]]]:
    """The first batch comes even where it is nothing but the names."""
    batch: list[tuple[Cell, ...]] = []
    async for row in rows:
        batch.append(row)
        if len(batch) == ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
