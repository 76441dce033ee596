"""`plimsoll simulate`: a scenario in, every policy with every seed, a report out; no server, no GPU."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from app.catalogue import CatalogueError
from app.cli.errors import CliError
from app.cli.files import STDIO, check_place, summary_stream, write_text
from app.cli.scenario_files import folder_of, read_scenario
from app.cli.simulate_progress import watching
from app.cli.simulate_show import show_report
from app.cli.version import program_version
from app.errors import InvalidRequest
from app.simulate.amounts import counted
from app.simulate.build import shipped_catalogue
from app.simulate.html import report_to_html
from app.simulate.report import Report, make_report, report_to_json
from app.simulate.run import check, jobs_of
from app.simulate.runner import Runner, make_runner, simulate_all
from app.simulate.scenario import Scenario, files_of


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
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            max=256,
            help="Runs at a time, each in a process of its own; absent: one per core",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Do the runs on the Ray cluster there (auto = this machine's)"),
    ] = None,
) -> None:
    """Simulate a fleet under load, one policy beside the other.

    The production loop decides, on a virtual clock, for simulated GPUs that replay measured curves. Every policy of the
    scenario runs with every seed, under the same requests. docs/simulate.md describes scenarios and reports.
    """
    wanted = read_scenario(scenario)
    _check_places(output, html, wanted, scenario)
    stream = summary_stream(output, html)
    runs = len(wanted.spec.policies) * len(wanted.spec.seeds)
    report = _run(wanted, folder_of(scenario), _runner(ray, min(jobs or os.cpu_count() or 1, runs)))
    if report.runs:
        show_report(report, stream)
    if output is not None:
        write_text(output, report_to_json(report).decode(), stream=stream)
    if html is not None:
        page = report_to_html(report, version=program_version(), file=str(scenario))
        write_text(html, page, stream=stream)
    if report.failed:
        _show_failures(report)
        raise typer.Exit(1)


def _check_places(output: Path | None, html: Path | None, wanted: Scenario, file: Path) -> None:
    """Before long work: that each result has a place of its own, and takes none of what is read. Raises CliError."""
    if output == html == STDIO:
        raise CliError("only one of -o and --html can be stdout")
    if output is not None and html is not None and output.resolve() == html.resolve():
        raise CliError(f"-o and --html cannot both be {output}")
    read = {(folder_of(file) / each).resolve() for each in files_of(wanted.spec)} | {file.resolve()}
    for path in (output, html):
        check_place(path)
        if path is not None and path != STDIO and path.resolve() in read:
            raise CliError(f"cannot write {path}: the simulation is to read it")


def _runner(ray: str | None, processes: int) -> AbstractContextManager[Runner]:
    """Where runs are done."""
    if ray is None:
        return nullcontext(make_runner(processes))
    from app.simulate.ray_cluster import on_ray

    return on_ray(ray)


def _run(scenario: Scenario, folder: Path, somewhere: AbstractContextManager[Runner]) -> Report:
    """The report of all runs. Raises CliError for what no run could do."""
    try:
        jobs = jobs_of(scenario, shipped_catalogue(scenario), folder)
        notes = check(jobs[0])
        sys.stderr.writelines(f"Warning: {note}\n" for note in notes)
        with somewhere as runner, watching(jobs) as watch:
            return make_report(scenario, simulate_all(jobs, runner, watch), notes=notes)
    except (CatalogueError, InvalidRequest) as error:
        raise CliError(str(error)) from error


def _show_failures(report: Report) -> None:
    count = len(report.failed)
    others = "; the figures are of the others" if report.runs else ""
    sys.stderr.write(f"Error: {count} of {counted(count + len(report.runs), 'run')} failed{others}\n")
    for run in report.failed:
        sys.stderr.write(f"  {run}\n")
