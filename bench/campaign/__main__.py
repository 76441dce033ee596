"""Makes faults of every kind under load, row by row, and says what was broken.

    python -m bench.campaign --rows kill --seconds 60

Prints a table per row, every violation, what was too slow and what was not done; any of them makes the exit code 1.
With --write all of it is written as JSON after each row.
"""

import argparse
import asyncio
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby

from bench.campaign.day import day
from bench.campaign.faults import fault, kill
from bench.campaign.floods import fuzz, greedy
from bench.campaign.outcome import Row, RowOptions, RowOutcome
from bench.report import Figures, machine, print_table, write_results

ROWS: Mapping[str, Row] = {
    "kill": Row(run=kill.run, seconds=485.0),
    "fault": Row(run=fault.run, seconds=275.0),
    "fuzz": Row(run=fuzz.run, seconds=40.0),
    "greedy": Row(run=greedy.run, seconds=60.0),
    "day": Row(run=day.run, seconds=190.0),
}
"""By name; with half a minute each to begin and to judge they end within twenty minutes."""
MAX_SHOWN = 50
PROBLEMS = ("violations", "too_slow", "not_done")
"""What a row tells in words; each is a row of what is written, too."""


def main(given: Sequence[str] | None = None) -> int:
    """Run what is asked for, print, write; `given` are arguments in place of the process's own."""
    arguments = _arguments(given)
    options = RowOptions(
        seconds=arguments.seconds or 0.0, seed=arguments.seed, calls=arguments.calls
    )
    settings = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "names": " ".join(arguments.rows),
        **asdict(options),
    }
    print(", ".join(f"{each} {of}" for each, of in machine().items()))
    rows: list[Figures] = []
    for name in arguments.rows:
        began = time.monotonic()
        seconds = options.seconds or ROWS[name].seconds
        outcome = _run(ROWS[name], replace(options, seconds=seconds))
        print(f"{name}, {time.monotonic() - began:.0f} s", file=sys.stderr)
        rows += [{"row": name, **figures} for figures in outcome.figures]
        rows += [
            {"row": name, kind: words}
            for kind in PROBLEMS
            for words in getattr(outcome, kind)
        ]
        # After each row: whatever ends this process later, what was measured is there.
        if arguments.write is not None:
            write_results(arguments.write, rows, settings=settings)
        # Rows of other columns are another table.
        for _, alike in groupby(outcome.figures, key=tuple):
            print_table(list(alike))
    return _tell(rows)


def _run(row: Row, options: RowOptions) -> RowOutcome:
    """What came of it; a row that fails does not take the others with it."""
    try:
        return asyncio.run(_until_ended(row.run(options)))
    except Exception as error:
        traceback.print_exc()
        return RowOutcome(figures=(), violations=(f"it ended with {error!r}",))


async def _until_ended(outcome: Awaitable[RowOutcome]) -> RowOutcome:
    """What came of it; SIGTERM ends it as ^C does, else PostgreSQL and nodes would outlive what `timeout` ends."""
    row = asyncio.ensure_future(outcome)
    loop = asyncio.get_running_loop()

    def end() -> None:
        # `timeout` sends SIGTERM to the process and then to its group, so the process may get it twice; the second one
        # must not interrupt the cleanup. It is not set to SIG_IGN, which the processes that are started would inherit.
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
        row.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    return await row


def _tell(rows: Sequence[Figures]) -> int:
    """Print what was wrong; 1 where anything was."""
    code = 0
    for kind in PROBLEMS:
        told = [f"{each['row']}: {each[kind]}" for each in rows if kind in each]
        print(
            "\n".join(("", f"{len(told)} {kind.replace('_', ' ')}", *told[:MAX_SHOWN]))
        )
        code |= bool(told)
    return code


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
        help="fuzzed calls, and the same number of syncs (default: as many as fit)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=RowOptions(seconds=0.0).seed,
        help="of the moments (default: %(default)s)",
    )
    parser.add_argument(
        "--write",
        metavar="NAME",
        help="write all of it to bench/results/NAME.json after each row (default: nowhere)",
    )
    arguments = parser.parse_args(given)
    unknown = sorted(set(arguments.rows) - ROWS.keys())
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; rows are: {', '.join(ROWS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
