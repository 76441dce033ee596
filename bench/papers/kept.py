"""The headlines' rows as they were measured last, checked in: a run keeps its own, the page and a test read them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.papers.headlines import HEADLINES, Headline
from bench.papers.table import Table, Truth

_DATA = Path(__file__).with_name("data")


class KeptRow(msgspec.Struct, frozen=True, kw_only=True):
    """A headline's row."""

    system: str
    table: str
    """As the headline names it."""
    figure: str
    policy: str
    paper: float | None
    values: tuple[float, ...]
    """One per seed."""
    truth: Truth


Key = tuple[str, str, str, str]


def key_of(row: KeptRow | Headline) -> Key:
    """What a headline and its row have in common."""
    return row.system, row.table, row.figure, row.policy


def answers(tables: Sequence[Table]) -> Iterator[KeptRow]:
    """The rows of the headlines that these tables answer."""
    for each in HEADLINES:
        row = each.row_in(tables)
        if row is not None:
            yield KeptRow(
                system=each.system,
                table=each.table,
                figure=each.figure,
                policy=each.policy,
                paper=row.paper,
                # Nine digits: more differ between kernels of linear algebra.
                values=tuple(float(f"{value:.9g}") for value in row.values),
                truth=row.truth,
            )


def read_kept(*, is_quick: bool = False) -> Mapping[Key, KeptRow]:
    """What was kept of the last run of each system; nothing where no run was."""
    file = _file(is_quick=is_quick)
    if not file.is_file():
        return {}
    rows = msgspec.json.decode(file.read_bytes(), type=tuple[KeptRow, ...])
    return {key_of(row): row for row in rows}


def keep(tables: Sequence[Table], *, is_quick: bool = False) -> None:
    """Keep the rows that these tables answer, next to those of other systems; what is no headline any more goes."""
    systems = {table.system for table in tables}
    known = {
        key: row
        for key, row in read_kept(is_quick=is_quick).items()
        if row.system not in systems
    } | {key_of(row): row for row in answers(tables)}
    # In the headlines' order, whichever system ran last.
    rows = [known[key] for key in map(key_of, HEADLINES) if key in known]
    text = msgspec.json.format(msgspec.json.encode(rows), indent=1)
    _file(is_quick=is_quick).write_bytes(text + b"\n")


def _file(*, is_quick: bool) -> Path:
    return _DATA / ("headlines_quick.json" if is_quick else "headlines.json")
