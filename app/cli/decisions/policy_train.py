"""`plimsoll policy train`: trains what a policy needs to have learned: the actor of one that asks for it."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from app.cli.common.errors import CliError
from app.cli.common.local import on_database
from app.cli.common.output import console, show_line
from solvers.policies.registry import trained_policies, trainer_of

if TYPE_CHECKING:
    from solvers.types.problem import Problem
    from solvers.types.training import EpisodeMeans, TrainingRun

Told: TypeAlias = "Callable[[EpisodeMeans], None]"

EPISODES = 1500
"""InSS, Table 1."""


def train(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The policy that is to learn")
    ],
    fleet: Annotated[
        Path,
        typer.Option(
            "--fleet",
            metavar="FILE",
            help="A scenario: its fleet, its services and their SLOs count",
        ),
    ],
    episodes: Annotated[
        int, typer.Option(min=1, help="So many more, of 200 steps each")
    ] = EPISODES,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, loads and choices")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the actor there (.npz)")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Keep the state of the training there, after every few episodes"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write reward, late requests and throughput over episodes there (.svg)"
        ),
    ] = None,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="Put the actor into the database of this machine, where the loop takes it",
        ),
    ] = False,
) -> None:
    """Train a policy's actor for a fleet.

    Needs PyTorch (pip install 'plimsoll[rl]'), half an hour of one core for 4 GPUs and 8 services. The actor is valid
    for GPUs of these types and numbers, and for these services or some of them; elsewhere it is refused.
    """
    if name not in trained_policies():
        raise CliError(
            f"policy {name} has nothing to train",
            hint=f"only {', '.join(trained_policies()) or 'none'} has",
        )
    if output is None and not save:
        raise CliError("the actor would be lost", hint="give -o FILE, or --save")
    if resume and (checkpoint is None or not checkpoint.exists()):
        raise CliError(
            "there is nothing to resume",
            hint="--checkpoint names the file of an earlier training",
        )
    for path in (output, checkpoint, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise CliError(
                f"{path} cannot be written",
                hint=f"make the folder first: mkdir -p {path.parent}",
            )
    problem = problem_of(fleet)
    training = prepare(name, problem, seed)
    if resume and checkpoint is not None:
        _resume(training, checkpoint)
    points = []
    with _progress(episodes) as tell:
        for point in training.run(episodes):
            points.append(point)
            tell(point)
            if checkpoint is not None:
                _keep(checkpoint, training.save())
    notes = f"{training.episode} episodes, seed {seed}, {datetime.now(UTC):%Y-%m-%d}"
    weights, fingerprint = training.encode(notes)
    if output is not None:
        output.write_bytes(weights)
        show_line(f"Wrote {output}: {len(weights):,} bytes for fleet {fingerprint}")
    if plot is not None:
        plot.write_text(_plotted(points), encoding="utf-8")
    if save:
        _save(fingerprint, weights, notes)
        show_line(
            f"Saved for fleet {fingerprint}; the loop takes it at its next tick under policy {name}"
        )


def problem_of(fleet: Path) -> "Problem":
    """What the loop would plan for a scenario's fleet and services, at no rates. Raises CliError."""
    from app.base.clock import ManualControlClock
    from app.cli.simulation.scenario_files import folder_of, read_scenario
    from app.loop.predict import make_problem
    from app.simulate.run.build import make_cluster, shipped_catalogue
    from app.simulate.run.closed_loop import make_store

    scenario = read_scenario(fleet)
    plan = make_cluster(
        scenario,
        scenario.spec.policies[0],
        0,
        catalogue=shipped_catalogue(scenario),
        folder=folder_of(fleet),
    )
    clock = ManualControlClock()
    snapshot = asyncio.run(make_store(plan, clock).load_snapshot(clock.now()))
    return make_problem(
        snapshot.state, snapshot.points, (), snapshot.settings, target=None
    )


def prepare(name: str, problem: "Problem", seed: int) -> "TrainingRun":
    """A training of that policy for the problem's fleet. Raises CliError."""
    try:
        return trainer_of(name).begin(problem, seed)
    except ImportError as error:
        raise CliError(
            "training needs PyTorch", hint="pip install 'plimsoll[rl]'"
        ) from error
    except ValueError as error:
        raise CliError(str(error)) from error


def _keep(checkpoint: Path, state: bytes) -> None:
    """Replace the checkpoint at once: a training that is ended meanwhile has the one before."""
    fresh = checkpoint.with_name(f"{checkpoint.name}.new")
    fresh.write_bytes(state)
    fresh.replace(checkpoint)


def _resume(training: "TrainingRun", checkpoint: Path) -> None:
    try:
        training.resume(checkpoint.read_bytes())
    except Exception as error:
        raise CliError(
            f"{checkpoint} is no checkpoint of a training for this fleet: {error}",
            hint="begin without --resume",
        ) from error


@contextmanager
def _progress(episodes: int) -> Iterator[Told]:
    """A bar on a terminal, else a line now and then; on stderr."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield lambda point: print(_words(point), file=sys.stderr, flush=True)  # noqa: T201  progress, not output
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("training", total=episodes)
        begun: list[int] = []

        def tell(point: "EpisodeMeans") -> None:
            begun.append(point.episode)
            progress.update(
                task, completed=point.episode - begun[0], description=_words(point)
            )

        yield tell


def _words(point: "EpisodeMeans") -> str:
    return (
        f"episode {point.episode}: reward {point.reward:.1f}, late {point.late_percent:.1f} %, "
        f"carried {point.carried_rps:,.0f}/s"
    )


def _plotted(points: "list[EpisodeMeans]") -> str:
    from app.cli.decisions.plot_training import curves_text

    return curves_text(
        [
            (
                "reward per step",
                [(float(each.episode), each.reward) for each in points],
            ),
            (
                "late requests, %",
                [(float(each.episode), each.late_percent) for each in points],
            ),
            (
                "throughput that is provisioned, requests/s",
                [(float(each.episode), each.carried_rps) for each in points],
            ),
        ]
    )


def _save(fingerprint: str, weights: bytes, notes: str) -> None:
    from app.db.base.transaction import Engine, transaction
    from app.db.decisions import actors

    async def save(engine: Engine) -> None:
        async with transaction(engine) as connection:
            await actors.save(
                connection, fingerprint, weights, at=datetime.now(UTC), notes=notes
            )

    on_database(save)
