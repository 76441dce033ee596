"""What the process of a simulation does: the runs one after the other, then the reports."""

import gzip
import resource
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

from app.base.errors import InvalidRequest
from app.base.version import program_version
from app.catalogue.catalogue import CatalogueError
from app.db.decisions.simulations import Reports
from app.simulate.report.html import report_to_html
from app.simulate.report.report import make_report, report_to_json
from app.simulate.requests.summary import summary_of
from app.simulate.run.build import shipped_catalogue
from app.simulate.run.run import check, jobs_of
from app.simulate.run.runner import Outcome, run_here, simulate_all
from app.simulate.scenario.scenario import SimulationScenario
from solvers.types.state import Json

Message: TypeAlias = float | Reports | str
"""How far the runs are, from 0 to 1; in the end what they came to, or why they failed."""

MAX_MEMORY_BYTES = 4 * 2**30
MAX_JSON_BYTES = 8 * 2**20
"""Compressed; a longer report is made by the command line."""
MESSAGES = 200
"""That tell how far it is."""


def work(pipe: Connection, document: Mapping[str, Json], folder: Path) -> None:
    """The process's main."""
    # A scenario that needs more fails with MemoryError here, before the kernel kills the control plane.
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    pipe.send(run_simulation(document, folder, pipe.send))


def run_simulation(
    document: Mapping[str, Json],
    folder: Path,
    report_progress: Callable[[float], None],
) -> Reports | str:
    """What a scenario's runs come to, or why there is nothing to report; files are looked for in the folder."""
    scenario = SimulationScenario.model_validate(document)
    try:
        jobs = jobs_of(scenario, shipped_catalogue(scenario), folder)
        # One stands for all: runs differ in policy and seed, not in what they read.
        notes = check(jobs[0])
    except (CatalogueError, InvalidRequest) as error:
        return str(error)
    # One after the other in this process: other cores belong to ticks and their solvers.
    watch = _Watch(len(jobs), scenario.spec.duration_s, report_progress)
    outcomes = simulate_all(jobs, run_here, watch)
    report = make_report(scenario, outcomes, notes=notes)
    if not report.runs:
        return f"no run was done: {report.failed[0]}"
    page = report_to_html(report, version=program_version())
    figures = gzip.compress(report_to_json(report))
    return Reports(
        summary=summary_of(report, scenario.spec).model_dump(mode="json"),
        html=gzip.compress(page.encode()),
        json=figures if len(figures) <= MAX_JSON_BYTES else None,
    )


class _Watch:
    """Reports how much of the simulated time of all runs has passed."""

    def __init__(
        self,
        runs: int,
        duration_s: float,
        report: Callable[[float], None],
    ) -> None:
        self._total_s, self._duration_s = runs * duration_s, duration_s
        self._report = report
        self._reported = 0.0

    def passed(self, place: int, simulated_s: float) -> None:
        """Runs are done in the order of their places."""
        share = min(1.0, (place * self._duration_s + simulated_s) / self._total_s)
        if share - self._reported >= 1.0 / MESSAGES:
            self._reported = share
            self._report(share)

    def ended(self, place: int, outcome: Outcome) -> None:
        """Where it was cut short by a failure, the next one's share has the rest of it."""
