"""Every paper's own experiments: its table, ours, its baselines and `joint`, and what `joint` does for its objective.

Run: `make bench-papers` (an hour on two quiet cores) or `make bench-papers-quick` (some minutes), or
`python -m bench.papers [--quick] [--only SYSTEM]... [--jobs N]`. Prints tables, writes bench/results/papers.json and
papers.html, and keeps the headlines' rows in bench/papers/data, of which it makes docs/papers.md. Exit code 1: some
system's experiments failed; the others' are there all the same.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec

from bench.papers.html import report_to_html
from bench.papers.kept import keep
from bench.papers.outcomes import Outcome, outcomes
from bench.papers.page import write_page
from bench.papers.show import told
from bench.papers.systems import SYSTEMS, System
from bench.papers.verdicts import Verdict, verdicts
from bench.report import RESULTS, machine


def main() -> int:
    """Run what is asked for, print, write; 1 where a system failed."""
    options = _options()
    wanted = _chosen(options.only)
    found = outcomes(wanted, quick=options.quick, jobs=options.jobs)
    judged = tuple(
        verdict
        for outcome in found
        for verdict in verdicts(outcome.system, outcome.tables)
    )
    print("\n".join(told(found, judged)))
    write(found, judged, is_quick=options.quick)
    keep([table for each in found for table in each.tables], is_quick=options.quick)
    if not options.quick:
        write_page()
    failed = [outcome.system.name for outcome in found if outcome.error]
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def write(
    found: Sequence[Outcome], judged: Sequence[Verdict], *, is_quick: bool
) -> None:
    """`bench/results/papers.json` and `papers.html`; a quick run has files of its own."""
    RESULTS.mkdir(exist_ok=True)
    name = "papers_quick" if is_quick else "papers"
    document = {
        "machine": machine(),
        "quick": is_quick,
        "verdicts": [msgspec.to_builtins(verdict) for verdict in judged],
        "systems": [
            {
                "name": each.system.name,
                "seconds": each.seconds,
                "error": each.error,
                "tables": list(each.tables),
            }
            for each in found
        ],
    }
    # Endless figures become null: JSON has none.
    (RESULTS / f"{name}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    )
    page = report_to_html(found, judged, machine=machine(), is_quick=is_quick)
    (RESULTS / f"{name}.html").write_text(page, encoding="utf-8")
    print(f"\nWrote {RESULTS / name}.json and .html")


def _chosen(only: Sequence[str]) -> tuple[System, ...]:
    """Those named; without names all whose experiments are there."""
    wanted = {name.lower() for name in only}
    return tuple(
        system
        for system in SYSTEMS
        if (system.is_there if not wanted else system.name.lower() in wanted)
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--quick", action="store_true", help="a short slice of each")
    parser.add_argument(
        "--only", action="append", default=[], metavar="SYSTEM", help=", ".join(names)
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="systems at a time"
    )
    options = parser.parse_args()
    if unknown := [
        name
        for name in options.only
        if name.lower() not in {known.lower() for known in names}
    ]:
        parser.error(f"no system is called {unknown[0]}; there are {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
