"""How far the runs of a simulation are: bars on a terminal, else a line for each run that is over. On stderr."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

from agents.base.plurals import counted
from app.cli.common.output import console
from app.simulate.run.results import FailedRun
from app.simulate.run.run import SimulationRun
from app.simulate.run.runner import Outcome, RunWatcher

_BAR = 24
"""Characters: a name and both figures next to it fit a terminal of 80 columns."""


@contextmanager
def watching(jobs: Sequence[SimulationRun]) -> Iterator[RunWatcher]:
    """Somebody who shows it meanwhile."""
    if not sys.stderr.isatty():
        yield RunLines(jobs)
        return
    with Progress(*columns(), console=console(sys.stderr), transient=True) as progress:
        yield Bars(jobs, progress)


def columns() -> tuple[ProgressColumn, ...]:
    """A name, its bar, and words. All plain text: brackets in a policy's name are no markup."""
    name, state = (
        TextColumn(f"{{task.{field}}}", markup=False)
        for field in ("description", "fields[state]")
    )
    return name, BarColumn(bar_width=_BAR), state


class RunLines:
    """A line for each run that is over."""

    def __init__(self, jobs: Sequence[SimulationRun]) -> None:
        self._jobs = jobs
        self._done = 0

    def passed(self, place: int, simulated_s: float) -> None:
        """A line for that would be too much."""

    def ended(self, place: int, outcome: Outcome) -> None:
        """One line."""
        self._done += 1
        job = self._jobs[place]
        how = "failed" if isinstance(outcome, FailedRun) else "done"
        sys.stderr.write(
            f"{self._done} of {counted(len(self._jobs), 'run')}: {job.run.label}, seed {job.seed}: {how}\n"
        )
        sys.stderr.flush()


class Bars:
    """A bar for all runs together, below it one for each that is under way; both in simulated time."""

    def __init__(self, jobs: Sequence[SimulationRun], progress: Progress) -> None:
        self._jobs, self._progress = jobs, progress
        self._simulated_s = [0.0] * len(jobs)
        self._ended = 0
        self._rows: dict[int, TaskID] = {}
        self._all_runs = progress.add_task(
            "all runs", total=sum(map(_duration_s, jobs)), state=self._count()
        )

    def passed(self, place: int, simulated_s: float) -> None:
        """The bars grow."""
        job = self._jobs[place]
        duration_s = _duration_s(job)
        # Only now: with fewer processes than runs most bars would stand still.
        if place not in self._rows:
            name = f"{job.run.label}, seed {job.seed}"
            self._rows[place] = self._progress.add_task(
                name, total=duration_s, state=""
            )
        state = f"{simulated_s / 60.0:.1f} of {duration_s / 60.0:g} min"
        self._progress.update(self._rows[place], completed=simulated_s, state=state)
        self._grow(place, simulated_s)

    def ended(self, place: int, outcome: Outcome) -> None:
        """Its bar goes; if it failed, a line stays."""
        self._ended += 1
        if place in self._rows:
            self._progress.remove_task(self._rows.pop(place))
        # Bars vanish at the end; failures must stay on the screen.
        if isinstance(outcome, FailedRun):
            self._progress.console.print(
                f"{outcome.policy}, seed {outcome.seed}: failed"
            )
        # A run that failed counts as done: the bar for all must reach its end.
        self._grow(place, _duration_s(self._jobs[place]))

    def _grow(self, place: int, simulated_s: float) -> None:
        self._simulated_s[place] = simulated_s
        self._progress.update(
            self._all_runs, completed=sum(self._simulated_s), state=self._count()
        )

    def _count(self) -> str:
        return f"{self._ended} of {counted(len(self._jobs), 'run')}"


def _duration_s(job: SimulationRun) -> float:
    return job.scenario.spec.duration_s
