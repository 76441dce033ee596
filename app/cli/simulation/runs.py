"""What `plimsoll simulate` does: it reads the scenario, has the runs done, and writes what they came to."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agents.base.plurals import counted
from app.base.errors import InvalidRequest
from app.base.version import program_version
from app.catalogue.catalogue import CatalogueError
from app.cli.common.errors import CliError
from app.cli.common.files import STDIO, check_place, summary_stream, write_text
from app.cli.simulation.progress import watching
from app.cli.simulation.scenario_files import folder_of, read_scenario
from app.cli.simulation.show import show_bound, show_report
from app.simulate.report.html import report_to_html
from app.simulate.report.report import SimulationReport, make_report, report_to_json
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.run import check, jobs_of
from app.simulate.run.runner import Runner, make_runner, simulate_all
from app.simulate.scenario.scenario import (
    SimulationScenario,
    files_of,
    with_perfect,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What the command line asks for."""

    scenario: Path
    output: Path | None
    """For the report as JSON."""
    html: Path | None
    """For the report as a page."""
    jobs: int | None
    """Runs at a time; None: one per core."""
    ray: str | None
    """Address of a Ray cluster; None: here."""


def run_scenario(wanted: SimulateOptions) -> bool:
    """Do it; whether every run was done. Raises CliError."""
    scenario = read_scenario(wanted.scenario)
    # Before the runs, which may take hours.
    _check_places(wanted, scenario)
    # The tables go to stderr where a result goes to stdout.
    stream = summary_stream(wanted.output, wanted.html)
    report = simulated(
        scenario, folder_of(wanted.scenario), jobs=wanted.jobs, ray=wanted.ray
    )
    if report.runs:
        show_report(report, stream)
    if wanted.output is not None:
        write_text(wanted.output, report_to_json(report).decode(), stream=stream)
    if wanted.html is not None:
        page = report_to_html(
            report, version=program_version(), file=str(wanted.scenario)
        )
        write_text(wanted.html, page, stream=stream)
    show_failures(report)
    return not report.failed


def run_bound(file: Path, *, jobs: int | None) -> bool:
    """The scenario's policies next to the perfect system; whether every run was done. Raises CliError."""
    scenario = read_scenario(file)
    try:
        compared = with_perfect(scenario)
    except ValidationError as error:
        reasons = "; ".join(each["msg"] for each in error.errors())
        raise CliError(f"the perfect system cannot run here: {reasons}") from error
    report = simulated(compared, folder_of(file), jobs=jobs)
    if report.runs:
        show_report(report, sys.stdout)
        show_bound(report, sys.stdout)
    show_failures(report)
    return not report.failed


def simulated(
    scenario: SimulationScenario,
    folder: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
) -> SimulationReport:
    """The report of all runs; traces are looked for in the folder. Raises CliError for what no run could do."""
    # More processes than runs would only start and end.
    runs = len(scenario.spec.policies) * len(scenario.spec.seeds)
    return _run(scenario, folder, _runner(ray, min(jobs or os.cpu_count() or 1, runs)))


def show_failures(report: SimulationReport) -> None:
    """Say on stderr which runs failed, where any did."""
    count = len(report.failed)
    if not count:
        return
    # A mean over four of five seeds must not pass for one over five.
    others = "; the figures are those of the others" if report.runs else ""
    sys.stderr.write(
        f"Error: {count} of {counted(count + len(report.runs), 'run')} failed{others}\n"
    )
    for run in report.failed:
        sys.stderr.write(f"  {run}\n")


def _check_places(wanted: SimulateOptions, scenario: SimulationScenario) -> None:
    """Before long work: that each result has a place of its own, and takes none of what is read. Raises CliError."""
    output = wanted.output
    html = wanted.html
    file = wanted.scenario
    if output == html == STDIO:
        raise CliError("only one of -o and --html can be stdout")
    if output is not None and html is not None and output.resolve() == html.resolve():
        raise CliError(f"-o and --html cannot both be {output}")
    traces = {(folder_of(file) / each).resolve() for each in files_of(scenario.spec)}
    read = {*traces, file.resolve()}
    for path in (output, html):
        check_place(path)
        if path is not None and path != STDIO and path.resolve() in read:
            raise CliError(f"cannot write {path}: the simulation reads it")


def _runner(ray: str | None, processes: int) -> AbstractContextManager[Runner]:
    """Where runs are done."""
    if ray is None:
        return nullcontext(make_runner(processes))
    # Ray is no requirement: it is imported where it is asked for.
    from app.simulate.run.ray_cluster import on_ray

    return on_ray(ray)


def _run(
    scenario: SimulationScenario,
    folder: Path,
    somewhere: AbstractContextManager[Runner],
) -> SimulationReport:
    try:
        jobs = jobs_of(scenario, shipped_catalogue(scenario), folder)
        # All runs share the fleet and the services that are checked, so that one says what is wrong with each.
        notes = check(jobs[0])
        sys.stderr.writelines(f"Warning: {note}\n" for note in notes)
        with somewhere as runner, watching(jobs) as watch:
            return make_report(scenario, simulate_all(jobs, runner, watch), notes=notes)
    except (CatalogueError, InvalidRequest) as error:
        raise CliError(str(error)) from error
