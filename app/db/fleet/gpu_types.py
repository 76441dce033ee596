"""GPU types, with their prices and how many are paid for anyway over time."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Select, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.base.errors import Conflict
from app.db.base.rows import delete_named, one_row
from app.db.base.tables import AnyRow, gpu_price, gpu_type
from app.db.base.upsert import upsert
from solvers.types.llm import LlmDataSheet
from solvers.types.state import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypeRow:
    """A GPU type with what only people care for."""

    gpu_type: GpuType
    """`price_usd_per_hour` is the price at the time that was asked for; `count` is None."""
    provenance: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime


async def list_rows(
    connection: AsyncConnection,
    now: datetime,
    *,
    after: str = "",
    limit: int | None = None,
) -> tuple[GpuTypeRow, ...]:
    """GPU types that have a price at `now`, by name."""
    statement = (
        _priced(now)
        .where(gpu_type.c.name > after)
        .order_by(gpu_type.c.name)
        .limit(limit)
    )
    return tuple(_row(row) for row in await connection.execute(statement))


def _priced(now: datetime) -> Select[*tuple[Any, ...]]:
    """GPU types with their price at `now`."""
    return (
        select(gpu_type, gpu_price.c.price_usd_per_hour)
        .join(gpu_price, gpu_price.c.gpu_type == gpu_type.c.name)
        .where(gpu_price.c.valid.contains(now))
    )


async def load_all(connection: AsyncConnection, now: datetime) -> tuple[GpuType, ...]:
    """Every GPU type with its price at `now`, by name."""
    return tuple(row.gpu_type for row in await list_rows(connection, now))


async def get(connection: AsyncConnection, name: str, now: datetime) -> GpuTypeRow:
    """One GPU type with its price at `now`. Raises NotFound."""
    statement = _priced(now).where(gpu_type.c.name == name)
    return _row(await one_row(connection, statement, missing=_missing(name)))


def _missing(name: str) -> str:
    return f"no GPU type is called {name!r}"


async def save(
    connection: AsyncConnection,
    noun: GpuType,
    *,
    at: datetime,
    provenance: str = "",
    labels: Mapping[str, str] | None = None,
) -> None:
    """Add or replace a GPU type; a price or number of paid ones that differs holds from `at` on, a first since ever."""
    values = {
        **{name: getattr(noun, name) for name in _FIGURES},
        "clocks_mhz": list(noun.clocks_mhz),
        "llm": asdict(noun.llm) if noun.llm else None,
        "provenance": provenance,
        "labels": dict(labels or {}),
    }
    await upsert(
        connection, gpu_type, {"name": noun.name}, values, only_new={"created_at": at}
    )
    # `repr` is the shortest decimal of the float, as the manifest stated it.
    await set_price(
        connection, noun.name, Decimal(repr(noun.price_usd_per_hour)), at=at
    )
    await set_paid(connection, noun.name, noun.paid_count, at=at)


async def set_price(
    connection: AsyncConnection, name: str, price_usd_per_hour: Decimal, *, at: datetime
) -> None:
    """The price from `at` on; the first price of a type holds since ever. Raises Conflict where later prices stand."""
    await _set_from(connection, _PRICE, name, price_usd_per_hour, at=at)


async def set_paid(
    connection: AsyncConnection, name: str, paid_count: int, *, at: datetime
) -> None:
    """`paid_count` GPUs are paid for in reports from `at`, else as `set_price`; plans go by what the type says."""
    await _set_from(connection, _PAID, name, paid_count, at=at)


class _Course(NamedTuple):
    """A table of what held for a GPU type when."""

    table: str
    column: str
    noun: str


_PRICE = _Course("gpu_price", "price_usd_per_hour", "a price")
_PAID = _Course("gpu_paid", "paid_count", "a number of paid GPUs")


async def _set_from(
    connection: AsyncConnection,
    course: _Course,
    name: str,
    value: Decimal | int,
    *,
    at: datetime,
) -> None:
    found = await connection.execute(
        text(
            f"SELECT {course.column} AS value, lower(valid) AS start, upper_inf(valid) AS is_open FROM {course.table} "
            "WHERE gpu_type = :name AND (valid @> CAST(:at AS timestamptz) OR lower(valid) > :at) "
            "ORDER BY lower(valid) NULLS FIRST"
        ),
        {"name": name, "at": at},
    )
    present = found.first()
    # Without a beginning: hours from before the type was registered have a cost, too.
    if present is None:
        await _insert(connection, course, name, value, start=None)
        return
    if not present.is_open:
        raise Conflict(
            f"{name} has {course.noun} that starts after {at.isoformat()}; add changes in order of time"
        )
    if present.value == value:
        return
    # What began at this very moment was never in force: its period would be empty.
    statement = (
        f"DELETE FROM {course.table} WHERE gpu_type = :name AND lower(valid) = :at"
        if present.start == at
        else f"UPDATE {course.table} SET valid = tstzrange(lower(valid), :at) "
        "WHERE gpu_type = :name AND valid @> CAST(:at AS timestamptz)"
    )
    await connection.execute(text(statement), {"name": name, "at": at})
    await _insert(connection, course, name, value, start=at)


async def remove(connection: AsyncConnection, name: str) -> None:
    """Delete a GPU type with its prices and profiles.

    Raises NotFound; Conflict while GPUs of it are registered, and for good once a target used one: the reports need
    its prices.
    """
    await delete_named(
        connection,
        gpu_type,
        name,
        missing=_missing(name),
        in_use=f"GPUs of type {name!r} are registered (remove their nodes first), or some were paid for "
        "(the type is kept for the reports)",
    )


async def _insert(
    connection: AsyncConnection,
    course: _Course,
    name: str,
    value: Decimal | int,
    *,
    start: datetime | None,
) -> None:
    await connection.execute(
        text(
            f"INSERT INTO {course.table} (gpu_type, valid, {course.column}) "
            "VALUES (:name, tstzrange(CAST(:start AS timestamptz), NULL), :value)"
        ),
        {"name": name, "start": start, "value": value},
    )


_FIGURES = (
    "memory_mib",
    "sm_percent_step",
    "idle_w",
    "power_cap_w",
    "launch_per_neighbour",
    "launch_base",
    "paid_count",
)
"""Fields of a GPU type that have columns of their names."""


def _row(row: AnyRow) -> GpuTypeRow:
    return GpuTypeRow(
        gpu_type=GpuType(
            name=row.name,
            price_usd_per_hour=float(row.price_usd_per_hour),
            **{name: row._mapping[name] for name in _FIGURES},
            clocks_mhz=tuple(row.clocks_mhz),
            llm=None if row.llm is None else LlmDataSheet(**row.llm),
        ),
        provenance=row.provenance,
        labels=row.labels,
        created_at=row.created_at,
    )
