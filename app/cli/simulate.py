"""`plimsoll simulate`: a scenario in, every policy with every seed, a report out; no server, no GPU."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from app.catalogue import CatalogueError
from app.cli.errors import CliError
from app.cli.files import STDIO, check_place, summary_stream, write_text
from app.cli.scenario_files import folder_of, read_scenario
from app.cli.simulate_show import show_report
from app.cli.version import program_version
from app.errors import InvalidRequest
from app.simulate.build import shipped_catalogue
from app.simulate.html import report_to_html
from app.simulate.report import make_report, report_to_json
from app.simulate.results import RunResult
from app.simulate.run import Job, jobs_of, simulate_all


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML or JSON; - = stdin)")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="REPORT", help="Where to write the report as JSON; - = stdout"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PAGE", help="Where to write the report as a page with charts; - = stdout"),
    ] = None,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, max=256, help="Runs at a time, each in a process of its own")
    ] = os.cpu_count() or 1,
) -> None:
    """Simulate a fleet under load, one policy beside the other.

    The production loop decides, on a virtual clock, for simulated GPUs that replay measured curves. Every policy of the
    scenario runs with every seed, under the same requests. docs/simulate.md describes scenarios and reports.
    """
    wanted = read_scenario(scenario)
    if output == html == STDIO:
        raise CliError("only one of -o and --html can be stdout")
    for path in (output, html):
        check_place(path)
    stream = summary_stream(output, html)
    try:
        todo = jobs_of(wanted, shipped_catalogue(wanted), folder_of(scenario))
        report = make_report(wanted, _with_progress(simulate_all(todo, processes=jobs), todo))
    except (CatalogueError, InvalidRequest) as error:
        raise CliError(str(error)) from error
    show_report(report, stream)
    if output is not None:
        write_text(output, report_to_json(report).decode(), stream=stream)
    if html is not None:
        page = report_to_html(report, version=program_version(), file=str(scenario))
        write_text(html, page, stream=stream)


def _with_progress(results: Iterator[RunResult], todo: tuple[Job, ...]) -> Iterator[RunResult]:
    """The same results; on a terminal with a line that says how many are done."""
    for number, result in enumerate(results, start=1):
        if sys.stderr.isatty():
            end = "\n" if number == len(todo) else ""
            sys.stderr.write(f"\r{number} of {len(todo)} runs are done{end}")
            sys.stderr.flush()
        yield result
