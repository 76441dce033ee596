"""Cells measured by the agent's own profiler: windows that must agree, rejected for heat, power and foreign processes.

    await profile(run, name, cells, Kept(...)) -> whether all cells are measured; the table is written after each

The journal `DIR/journals/<name>` holds what is measured: the same command goes on behind it.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agents.processes.templates import Template, Templates
from agents.profiling.cells import MeasurementCell
from agents.profiling.journal import Journal, Measurement
from agents.profiling.node import ProfileSettings, open_profile
from agents.profiling.profiler import ProfileReport
from agents.profiling.windows import Rules
from bench.real_gpu.probe import trusted_nvml
from bench.real_gpu.run import Run, python_path
from bench.real_gpu.tables import Table
from bench.report import Figures

START_LIMIT_S = 180.0
"""PyTorch and CUDA start in 8 to 15 s where nothing else does."""
WORDS = "-m agents.serving --service {service} --port {port} --batch {batch} --log-level warning"
"""The profiler takes templates of our worker; see `bench`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where measurements go."""

    table: Table
    rows: Callable[[Sequence[Measurement]], Sequence[Figures]]
    """All rows of what is measured so far."""
    has: Callable[[MeasurementCell], bool]
    """Whether a cell has its row."""

    def write(self, journal: Journal) -> None:
        """Replace the table."""
        self.table.replace(self.rows(journal.measurements))


@dataclass(slots=True, kw_only=True)
class _Told:
    """Says each cell as it is measured."""

    run: Run
    kept: Kept
    journal: Journal
    left: int = 0

    def begun(self, *, cells: int, done: int) -> None:
        self.left = cells - done
        self.run.say(
            f"{cells} cells, {done} measured already; {self.run.left_s:.0f} s left"
        )

    def measured(self, measurement: Measurement) -> None:
        self.left -= 1
        figures = ", ".join(
            f"{each.latency_ms_p50:.3g}" for each in measurement.timings
        )
        self.run.say(
            f"  {measurement.cell}: p50 {figures} ms; {self.left} to go, {self.run.left_s:.0f} s left"
        )
        self.kept.write(self.journal)

    def failed(self, cell: MeasurementCell, why: str) -> None:
        self.left -= 1
        self.run.say(f"  {cell}: left out: {why}")


async def profile(
    run: Run,
    name: str,
    cells: Sequence[MeasurementCell],
    kept: Kept,
    *,
    accepted: frozenset[str] = frozenset(),
) -> bool:
    """Measure what is not measured yet; `accepted` as in `Rules`. Raises DeviceError."""
    if all(map(kept.has, cells)):
        run.say(f"all {len(cells)} cells are measured already")
        return True
    path = run.path("journals") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    async with open_profile(
        _settings(run, cells, accepted), trusted_nvml(run)
    ) as opened:
        with contextlib.closing(
            Journal(path, opened.header(), resumes=path.exists())
        ) as journal:
            told = _Told(run=run, kept=kept, journal=journal)
            report = await opened.profiler(journal, told).run(cells)
            kept.write(journal)
    _tell(run, report)
    return not report.failed and not report.left


def _settings(
    run: Run, cells: Sequence[MeasurementCell], accepted: frozenset[str]
) -> ProfileSettings:
    return ProfileSettings(
        cells=tuple(cells),
        gpu_type=run.gpu_type,
        gpu_index=run.gpu.index,
        templates=templates(run),
        rules=Rules(window_s=run.options.window_s, accepted=accepted),
        budget_s=run.left_s,
        environment=run.environment,
    )


def templates(run: Run) -> Templates:
    """One for all networks: the bench of these scripts."""
    template = Template(
        name="real-gpu",
        command=(*run.programs.bench, *run.mode, *WORDS.split()),
        environment={"PYTHONPATH": python_path(run)},
        start_limit_s=START_LIMIT_S,
    )
    return Templates(by_name={template.name: template}, default=template.name)


def _tell(run: Run, report: ProfileReport) -> None:
    if report.left:
        run.say(
            f"the budget is over, {report.left} cells are left: run the same command again"
        )
    if report.failed:
        run.say(
            f"{len(report.failed)} cells were left out; the same command tries them again"
        )
