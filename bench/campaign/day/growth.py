"""How many rows and bytes each table has, and what is left of them when retention has done its work."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from agents.base.protocol import Observation
from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.db.maintenance import Retention, maintain
from app.db.postgres_store import PostgresStore
from tests.integration.fault_harness import rows, scalar

# A partition counts as its table.
_SIZES = """
SELECT coalesce(parent.relname, c.relname), sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = i.inhparent
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
GROUP BY 1 ORDER BY 1
"""
LONG_AFTER = timedelta(days=100)
"""More than anything is kept that is not kept for ever."""

FOR_EVER = frozenset(
    {
        "gpu_hour",
        "service_hour",
        "use_hour",
        "event",
        "target",
        "plan",
        "plan_content",
        "allocation",
        "allocation_replica",
        "allocation_task",
        "plan_power_step",
        "price",
        "policy",
    }
)
"""What reports read for ever (`app.db.maintenance.Retention`): hourly sums, plans that were in force, the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """One table, with its indices and partitions."""

    rows: int
    size_bytes: int


def measure(url: str) -> dict[str, TableSize]:
    """Every table's size, by its name."""
    return {
        table: TableSize(
            rows=scalar(url, f'SELECT count(*) FROM "{table}"'),
            size_bytes=size_bytes,
        )
        for table, size_bytes in rows(url, _SIZES)
    }


async def forget_all(url: str, last: Observation, ended: datetime) -> None:
    """Let retention do its work long after the day, as if one node had gone on reporting until then.

    `last`: an observation of a node that is registered; its window is moved. Without one nothing is forgotten, since
    retention never reaches beyond the newest rows.
    """
    later = ended + LONG_AFTER
    settings = Settings()
    keep = Retention(
        observations_days=settings.retention_days, rates_days=settings.rates_days
    )
    engine = make_engine(url, application="plimsoll-bench")
    try:
        await maintain(engine, later, keep)
        await PostgresStore(engine).ingest((last,), later)
        await maintain(engine, later, keep)
    finally:
        await engine.dispose()


def unbounded(
    before: Mapping[str, TableSize],
    grown: Mapping[str, TableSize],
    left: Mapping[str, TableSize],
    *,
    gpus: int,
) -> tuple[str, ...]:
    """Tables that keep more than one row per GPU of what the day added, and are not among those kept for ever."""
    found = []
    for table, size in grown.items():
        added = size.rows - before[table].rows
        remain = left[table].rows - before[table].rows
        if table not in FOR_EVER and added > gpus and remain > gpus:
            found.append(
                f"{table} grew by {added} rows, of which {remain} are kept for ever"
            )
    return tuple(found)


def kept_bytes(
    before: Mapping[str, TableSize],
    grown: Mapping[str, TableSize],
    left: Mapping[str, TableSize],
) -> float:
    """What retention left of the growth, with indices: rows at the mean of their table, since files do not shrink."""
    return sum(
        (left[table].rows - before[table].rows)
        * (size.size_bytes - before[table].size_bytes)
        / (size.rows - before[table].rows)
        for table, size in grown.items()
        if size.rows > before[table].rows
    )
