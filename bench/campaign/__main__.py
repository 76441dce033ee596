"""Makes faults of every kind under load, row by row, and says what was broken.

    python -m bench.campaign --rows kill --seconds 60

Prints a table per row, every violation, what was too slow and what was not done; any of them makes the exit code 1.
With --out all of it is written as JSON after each row.
"""

import argparse
import asyncio
import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from bench.campaign.day import day
from bench.campaign.faults import fault, kill
from bench.campaign.floods import fuzz, greedy
from bench.campaign.outcome import Row, RowOptions, RowOutcome
from bench.report import machine, print_table

Document: TypeAlias = dict[str, Any]
"""What is written: date, machine, settings, the figures of all rows, and lists of what was wrong, in words."""

ROWS: Mapping[str, Row] = {
    "kill": Row(run=kill.run, seconds=500.0),
    "fault": Row(run=fault.run, seconds=200.0),
    "fuzz": Row(run=fuzz.run, seconds=100.0),
    "greedy": Row(run=greedy.run, seconds=60.0),
    "day": Row(run=day.run, seconds=190.0),
}
"""By name; with half a minute each to begin and to judge they end within twenty minutes."""
MAX_SHOWN = 50
PROBLEMS = ("violations", "too_slow", "not_done")
"""What a row tells in words."""


def main(given: Sequence[str] | None = None) -> int:
    """Run what is asked for, print, write; `given` are arguments in place of the process's own."""
    arguments = _arguments(given)
    options = RowOptions(
        seconds=arguments.seconds or 0.0, seed=arguments.seed, calls=arguments.calls
    )
    document = _document(arguments.rows, options)
    print(_where(document))
    for name in arguments.rows:
        began = time.monotonic()
        seconds = options.seconds or ROWS[name].seconds
        outcome = _run(ROWS[name], replace(options, seconds=seconds))
        print(f"{name}, {time.monotonic() - began:.0f} s", file=sys.stderr)
        _add(document, name, outcome)
        # After each row: whatever ends this process later, what was measured is there.
        if arguments.out is not None:
            _write(document, arguments.out)
        # Rows of other columns are another table.
        for _, alike in groupby(outcome.figures, key=tuple):
            print_table(list(alike))
    _tell(document)
    return 1 if any(document[each] for each in PROBLEMS) else 0


def _run(row: Row, options: RowOptions) -> RowOutcome:
    """What came of it; a row that fails does not take the others with it."""
    try:
        return asyncio.run(row.run(options))
    except Exception as error:
        traceback.print_exc()
        return RowOutcome(figures=(), violations=(f"it ended with {error!r}",))


def _document(rows: Sequence[str], options: RowOptions) -> Document:
    """When, where and how, without anything measured yet."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {"rows": list(rows), **asdict(options)},
        "rows": [],
        **{each: [] for each in PROBLEMS},
    }


def _add(document: Document, name: str, outcome: RowOutcome) -> None:
    document["rows"] += [{"row": name, **figures} for figures in outcome.figures]
    for key in PROBLEMS:
        document[key] += [f"{name}: {words}" for words in getattr(outcome, key)]


def _write(document: Document, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _where(document: Document) -> str:
    cores, memory_mib = (document["machine"][each] for each in ("cores", "memory_mib"))
    return f"{document['date']}, {cores} cores, {memory_mib / 1024:.0f} GiB"


def _tell(document: Document) -> None:
    for key in PROBLEMS:
        print(f"\n{len(document[key])} {key.replace('_', ' ')}")
        for each in document[key][:MAX_SHOWN]:
            print(each)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=list(ROWS),
        help=f"which, separated by commas (default: {','.join(ROWS)})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="no fault of a row after so long (default: each row's own, twenty minutes for all)",
    )
    parser.add_argument(
        "--calls",
        type=int,
        help="so many fuzzed calls and as many syncs (default: as many as fit)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=RowOptions(seconds=0.0).seed,
        help="of the moments (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write everything there as JSON; what the file had is gone (default: nowhere)",
    )
    arguments = parser.parse_args(given)
    unknown = sorted(set(arguments.rows) - ROWS.keys())
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; rows are: {', '.join(ROWS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
