"""How far runs are: bars in simulated minutes, of all runs and of each that is under way."""

from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.cli.simulation.progress import Bars
from app.simulate.run.build import Catalogue
from app.simulate.run.results import FailedRun
from app.simulate.run.run import jobs_of
from tests.app.runs import a_run, a_scenario


def test_bars_grow_in_simulated_time_and_go_with_their_runs() -> None:
    shown = StringIO()
    progress = Progress(console=Console(file=shown), auto_refresh=False)
    jobs = jobs_of(a_scenario(seeds=[1, 2]), Catalogue(gpu_types=(), points=()), Path())
    bars = Bars(jobs, progress)
    bars.passed(0, 30.0)
    bars.passed(1, 90.0)
    whole, first, second = progress.tasks
    assert (whole.completed, whole.total, whole.fields["state"]) == (
        120.0,
        240.0,
        "0 of 2 runs",
    )
    assert (first.description, first.fields["state"]) == (
        "hetsev_greedy, seed 1",
        "0.5 of 2 min",
    )
    assert (second.description, second.completed, second.total) == (
        "hetsev_greedy, seed 2",
        90.0,
        120.0,
    )

    bars.ended(0, FailedRun(policy="hetsev_greedy", seed=1, reason="lost"))
    bars.ended(1, a_run("hetsev_greedy", seed=2))
    assert [
        (task.description, task.completed, task.fields["state"])
        for task in progress.tasks
    ] == [("all runs", 240.0, "2 of 2 runs")]
    assert "hetsev_greedy, seed 1: failed" in shown.getvalue()
