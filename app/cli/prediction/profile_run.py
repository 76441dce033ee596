"""One run of `plimsoll profile run`: the profile itself, its progress on stderr, and what was measured into files."""

import asyncio
import contextlib
import csv
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn

from agents.base.device import DeviceError
from agents.base.plurals import counted
from agents.processes.template_file import load_templates
from agents.profiling.cells import MeasurementCell
from agents.profiling.journal import Journal, Measurement
from agents.profiling.node import NodeDriver, OpenProfile, ProfileSettings, open_profile
from agents.profiling.profiler import ProfileListener, ProfileReport
from agents.profiling.windows import SURE_P99_BATCHES, Rules
from app.cli.common.errors import CliError
from app.cli.common.output import console
from app.cli.prediction.profile_cells import ProfileOptions
from app.measurements.csv_files import sample_rows
from solvers.predict.data.samples import Neighbour, Samples, make_queries, make_samples

DETAILS = (
    *("network", "gpu_type", "batch", "sm_percent", "neighbours", "clock_mhz_locked"),
    *(
        "latency_ms_mean",
        "latency_ms_p50",
        "latency_ms_p99",
        "p99_is_indicative",
        "batches",
        "spread_percent",
    ),
    *("memory_mib", "power_w", "clock_mhz", "sm_count", "windows", "rejected"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTarget:
    """Where and how it is measured, as the command was told."""

    gpu: int
    templates: Path | None
    template: str
    rules: Rules
    budget_s: float


def run_profile(
    wanted: ProfileOptions,
    cells: tuple[MeasurementCell, ...],
    place: ProfileTarget,
    output: Path,
    *,
    resumes: bool,
) -> bool:
    """Measure and write; False when it was interrupted. Raises CliError."""
    # Opens NVIDIA's library, which only the machine with the GPU has.
    from agents.gpu.nvml.session import Nvml

    try:
        settings = ProfileSettings(
            cells=cells,
            gpu_type=wanted.gpu_type,
            gpu_index=place.gpu,
            templates=load_templates(place.templates),
            template=place.template,
            rules=place.rules,
            seed=wanted.seed,
            budget_s=place.budget_s,
            # Next to the samples: what was changed on the GPU is put back from there, also after a crash.
            knobs_dir=output.with_name(f"{output.name}.knobs").absolute()
            if wanted.clocks
            else None,
            environment=dict(os.environ),
        )
        with Nvml() as nvml:
            return asyncio.run(_run(settings, nvml, output, resumes=resumes))
    except (DeviceError, OSError) as error:
        raise CliError(str(error)) from error


async def _run(
    settings: ProfileSettings, nvml: NodeDriver, output: Path, *, resumes: bool
) -> bool:
    """SIGINT and SIGTERM end it in order: benches first, then MPS, then the files."""
    profiling = asyncio.current_task()
    assert profiling is not None
    # A signal's default action would leave MPS and locked clocks behind on the node.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, profiling.cancel)
    outcome = _Outcome()
    with _shown() as listener:
        try:
            async with open_profile(settings, nvml, knobs=nvml) as opened:
                journal = Journal(
                    output.with_name(f"{output.name}.journal"),
                    opened.header(),
                    resumes=resumes,
                )
                await _measure(opened, journal, listener, settings.cells, outcome)
        except asyncio.CancelledError:
            sys.stderr.write("Interrupted; --resume continues\n")
        finally:
            # Whatever ended it: hours of measurements are not thrown away for one failure.
            write_samples(output, outcome.measured, settings.gpu_type)
    if outcome.problem:
        sys.stderr.write(
            f"Note: other processes on the GPU could not be checked: {outcome.problem}\n"
        )
    if outcome.report is not None:
        _sum_up(outcome.report, len(outcome.measured))
    return outcome.report is not None


@dataclass(slots=True)
class _Outcome:
    """What a profile came to, filled also where it is interrupted."""

    report: ProfileReport | None = None
    """None: it was interrupted."""
    measured: tuple[Measurement, ...] = ()
    problem: str = ""


async def _measure(
    opened: OpenProfile,
    journal: Journal,
    listener: ProfileListener,
    cells: Sequence[MeasurementCell],
    outcome: _Outcome,
) -> None:
    with contextlib.closing(journal):
        try:
            outcome.report = await opened.profiler(journal, listener).run(cells)
        finally:
            outcome.measured = journal.measurements
            outcome.problem = opened.watch.cannot_list


def _sum_up(report: ProfileReport, samples: int) -> None:
    if report.left:
        sys.stderr.write(
            f"The time budget is used up, {counted(report.left, 'cell')} left; --resume continues\n"
        )
    if report.failed:
        sys.stderr.write(
            f"{counted(len(report.failed), 'cell')} could not be measured; --resume tries again\n"
        )
    if not samples:
        raise CliError("nothing was measured", hint="the lines above say why")


def write_samples(output: Path, measured: Sequence[Measurement], gpu_type: str) -> None:
    """The samples, and next to them all figures. Nothing where nothing was measured."""
    if not measured:
        return
    _write(output, sample_rows(make_profile_samples(measured, gpu_type)))
    # The samples have the columns that fits read; people who doubt one look here.
    _write(output.with_suffix(".details.csv"), _details(measured, gpu_type))


def make_profile_samples(measured: Sequence[Measurement], gpu_type: str) -> Samples:
    """A sample for each member of each cell."""
    rows = [(each, timing) for each in measured for timing in each.timings]
    at = make_queries(
        # Each member of a cell is a sample of its own, with the others as neighbours.
        [timing.member.network for _, timing in rows],
        [gpu_type] * len(rows),
        batch=[float(timing.member.batch) for _, timing in rows],
        sm_percent=[timing.member.sm_percent for _, timing in rows],
        clock_mhz=[_or_nan(each.cell.clock_mhz) for each, _ in rows],
        neighbours=[
            _neighbours(each, place)
            for each in measured
            for place in range(len(each.timings))
        ],
    )
    return make_samples(
        at,
        [timing.latency_ms for _, timing in rows],
        power_w=[_or_nan(each.power_w) for each, _ in rows],
        memory_mib=[_or_nan(timing.memory_mib) for _, timing in rows],
    )


def _neighbours(measurement: Measurement, place: int) -> tuple[Neighbour, ...]:
    members = measurement.cell.members
    others = (*members[:place], *members[place + 1 :])
    return tuple(
        Neighbour(each.network, float(each.batch), each.sm_percent) for each in others
    )


def _details(measured: Sequence[Measurement], gpu_type: str) -> Iterator[Sequence[str]]:
    yield DETAILS
    for each in measured:
        for place, timing in enumerate(each.timings):
            beside = "+".join(
                f"{one.network}:{one.batch:g}:{one.sm_percent:g}"
                for one in _neighbours(each, place)
            )
            values: tuple[float | int | str | None, ...] = (
                *(
                    timing.member.network,
                    gpu_type,
                    timing.member.batch,
                    timing.member.sm_percent,
                    beside,
                ),
                *(
                    each.cell.clock_mhz,
                    timing.latency_ms,
                    timing.latency_ms_p50,
                    timing.latency_ms_p99,
                ),
                *(
                    # Of fewer batches the p99 is one of the slowest alone.
                    "yes" if timing.batches < SURE_P99_BATCHES else "no",
                    timing.batches,
                    100.0 * timing.spread,
                ),
                *(
                    timing.memory_mib,
                    each.power_w,
                    each.clock_mhz,
                    timing.sm_count,
                    each.windows,
                ),
                "; ".join(each.rejected),
            )
            yield [_text(value) for value in values]


def _text(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _write(path: Path, rows: Iterator[Sequence[str]]) -> None:
    """At once: an interruption leaves the old file or the new."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)
        fresh.replace(path)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    sys.stdout.write(f"Wrote {path}\n")


@contextlib.contextmanager
def _shown() -> Iterator[ProfileListener]:
    """Bars on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield ProfileLines()
        return
    name, state = (
        TextColumn(f"{{task.{field}}}", markup=False)
        for field in ("description", "fields[state]")
    )
    with Progress(
        name,
        BarColumn(bar_width=24),
        state,
        console=console(sys.stderr),
        transient=True,
    ) as progress:
        yield ProgressBar(progress)


class ProfileLines:
    """A line for each cell."""

    def __init__(self) -> None:
        self._done = self._cells = 0

    def begun(self, *, cells: int, done: int) -> None:
        """How many there are."""
        self._cells, self._done = cells, done
        known = f", {done} measured before" if done else ""
        self._report(f"{counted(cells, 'cell')}{known}")

    def measured(self, measurement: Measurement) -> None:
        """Its figures."""
        self._done += 1
        self._report(
            f"{self._done} of {self._cells}: {describe_measurement(measurement)}"
        )

    def failed(self, cell: MeasurementCell, why: str) -> None:
        """Why."""
        self._report(f"not measured: {cell}: {why}")

    def _report(self, message: str) -> None:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


class ProgressBar:
    """A bar over all cells; failures and rejected windows stay as lines."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task(
            "cells", total=None, state="checking the whole GPU"
        )

    def begun(self, *, cells: int, done: int) -> None:
        """The bar has an end."""
        self._progress.update(
            self._task, total=cells, completed=done, state=f"of {cells}"
        )

    def measured(self, measurement: Measurement) -> None:
        """It grows."""
        self._progress.update(self._task, advance=1, state=str(measurement.cell))
        if measurement.rejected:
            self._progress.console.print(describe_measurement(measurement))

    def failed(self, cell: MeasurementCell, why: str) -> None:
        """A line."""
        self._progress.update(self._task, advance=1)
        self._progress.console.print(f"not measured: {cell}: {why}")


def describe_measurement(measurement: Measurement) -> str:
    """One cell in one line."""
    times = " and ".join(
        f"{each.latency_ms:.4g} ms (p99 {each.latency_ms_p99:.4g})"
        for each in measurement.timings
    )
    power = "" if measurement.power_w is None else f", {measurement.power_w:.0f} W"
    rejected = (
        f"; windows were discarded for: {'; '.join(measurement.rejected)}"
        if measurement.rejected
        else ""
    )
    return f"{measurement.cell}: {times}{power}, {counted(measurement.windows, 'window')}{rejected}"
