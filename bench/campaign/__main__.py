"""Makes faults of every kind under load, row by row, and says what was broken.

    python -m bench.campaign --rows kill --seconds 60

Prints a table per row and every violation, and writes bench/results/campaign.json. Exit code 1: something that must
hold did not.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from bench.campaign import kill
from bench.campaign.outcome import RowOptions, RowOutcome
from bench.report import Figures, print_table, write_results

Run: TypeAlias = Callable[[RowOptions], Coroutine[None, None, RowOutcome]]

ROWS: Mapping[str, Run] = {"kill": kill.run}
"""By name; each takes at most its seconds, and a minute to begin and to judge."""
SECONDS, KILLS, NODES, SEED = 1080.0, 1000, 4, 7
MAX_SHOWN = 50


def main() -> int:
    """Run what is asked for, print, write."""
    arguments = _arguments()
    options = RowOptions(
        seconds=arguments.seconds,
        kills=arguments.kills,
        nodes=arguments.nodes,
        seed=arguments.seed,
    )
    figures: list[Figures] = []
    violations: list[str] = []
    for name in arguments.rows:
        began = time.monotonic()
        outcome = asyncio.run(ROWS[name](options))
        print(f"{name}, {time.monotonic() - began:.0f} s", file=sys.stderr)
        figures += [{"row": name, **each} for each in outcome.figures]
        violations += [f"{name}: {each}" for each in outcome.violations]
        if not arguments.json:
            print_table(outcome.figures)
    _tell(figures, violations, as_json=arguments.json)
    settings = {**asdict(options), "violations": "; ".join(violations[:MAX_SHOWN])}
    write_results("campaign", figures, settings=settings)
    return 1 if violations else 0


def _tell(
    figures: Sequence[Figures], violations: Sequence[str], *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps({"rows": list(figures), "violations": list(violations)}))
        return
    print(f"\n{len(violations)} violations")
    for each in violations[:MAX_SHOWN]:
        print(each)


def _arguments() -> argparse.Namespace:
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
        default=SECONDS,
        help="no fault of a row after so long (default: %(default)s)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=KILLS,
        help="nor after so many kills (default: %(default)s)",
    )
    parser.add_argument(
        "--nodes", type=int, default=NODES, help="agents (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, help="of the moments (default: %(default)s)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON in place of tables"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.rows) - ROWS.keys())
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; rows are: {', '.join(ROWS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
