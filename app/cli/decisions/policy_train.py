"""`plimsoll policy train`: trains what a policy needs to have learned: the actor of one that asks for it."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from app.cli.common.errors import CliError
from app.cli.common.local import on_database
from app.cli.common.output import console, show_line
from solvers.policies.registry import trained_policies, trainer_of

if TYPE_CHECKING:
    from solvers.types.policy_spec import EpisodeMeans, TrainingRun
    from solvers.types.problem import Problem

Report: TypeAlias = "Callable[[EpisodeMeans], None]"

EPISODES = 1500
"""InSS, Table 1."""


TrainedPolicy = Annotated[
    str, typer.Argument(metavar="NAME", help="The policy to train")
]
FleetFile = Annotated[
    Path,
    typer.Option(
        "--fleet",
        metavar="FILE",
        help="The scenario whose fleet, services and SLOs to train for",
    ),
]
Episodes = Annotated[
    int, typer.Option(min=1, help="How many more episodes to train, of 200 steps each")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, loads and choices")]
ActorFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the actor there (.npz)")
]
CheckpointFile = Annotated[
    Path | None,
    typer.Option(help="Save the training state there every few episodes"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint")]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        help="Plot reward, late requests and throughput over episodes there (.svg)"
    ),
]
Save = Annotated[
    bool,
    typer.Option(
        "--save",
        help="Store the actor in the database of this machine, from which the loop takes it",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """What the command line says."""

    policy: str
    fleet: Path
    episodes: int
    seed: int
    output: Path | None
    checkpoint: Path | None
    resume: bool
    plot: Path | None
    save: bool


def train(
    name: TrainedPolicy,
    *,
    fleet: FleetFile,
    episodes: Episodes = EPISODES,
    seed: Seed = 0,
    output: ActorFile = None,
    checkpoint: CheckpointFile = None,
    resume: Resume = False,
    plot: PlotFile = None,
    save: Save = False,
) -> None:
    """Train a policy's actor for a fleet.

    Needs PyTorch (pip install 'plimsoll[rl]'), half an hour of one core for 4 GPUs and 8 services. The actor is valid
    for GPUs of these types and numbers, and for these services or some of them; elsewhere it is refused.
    """
    wanted = TrainOptions(
        policy=name,
        fleet=fleet,
        episodes=episodes,
        seed=seed,
        output=output,
        checkpoint=checkpoint,
        resume=resume,
        plot=plot,
        save=save,
    )
    # Half an hour later is too late to find out that nothing can be written.
    _check(wanted)
    training = prepare(name, problem_of(fleet), seed)
    points = _run(training, wanted)
    _deliver(training, points, wanted)


def _check(wanted: TrainOptions) -> None:
    """Raises CliError for what would end without an actor."""
    if wanted.policy not in trained_policies():
        raise CliError(
            f"policy {wanted.policy} cannot be trained",
            hint=f"only {', '.join(trained_policies()) or 'none'} has",
        )
    if wanted.output is None and not wanted.save:
        raise CliError(
            "the trained actor would be lost", hint="give -o FILE, or --save"
        )
    if wanted.resume and (wanted.checkpoint is None or not wanted.checkpoint.exists()):
        raise CliError(
            "there is nothing to resume",
            hint="--checkpoint names the file of an earlier training",
        )
    for path in (wanted.output, wanted.checkpoint, wanted.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise CliError(
                f"{path} cannot be written",
                hint=f"create the folder first: mkdir -p {path.parent}",
            )


def _run(training: "TrainingRun", wanted: TrainOptions) -> "list[EpisodeMeans]":
    """Train, and keep the state meanwhile; the means of every few episodes."""
    checkpoint = wanted.checkpoint
    if wanted.resume and checkpoint is not None:
        _resume(training, checkpoint)
    points = []
    with _progress(wanted.episodes) as report:
        for point in training.run(wanted.episodes):
            points.append(point)
            report(point)
            if checkpoint is not None:
                _keep(checkpoint, training.save())
    return points


def _deliver(
    training: "TrainingRun", points: "list[EpisodeMeans]", wanted: TrainOptions
) -> None:
    """Put the actor, and the plot of its training, where they are wanted."""
    # All episodes of a training that was resumed, not only those of this run.
    notes = (
        f"{training.episode} episodes, seed {wanted.seed}, {datetime.now(UTC):%Y-%m-%d}"
    )
    weights, fingerprint = training.encode(notes)
    if wanted.output is not None:
        wanted.output.write_bytes(weights)
        show_line(
            f"Wrote {wanted.output}: {len(weights):,} bytes for fleet {fingerprint}"
        )
    if wanted.plot is not None:
        wanted.plot.write_text(_plotted(points), encoding="utf-8")
    if wanted.save:
        _save(fingerprint, weights, notes)
        show_line(
            f"Saved for fleet {fingerprint}; the loop takes it at its next tick under policy {wanted.policy}"
        )


def problem_of(fleet: Path) -> "Problem":
    """What the loop would plan for a scenario's fleet and services, at no rates. Raises CliError."""
    from app.base.clock import ManualControlClock
    from app.cli.simulation.scenario_files import folder_of, read_scenario
    from app.loop.make_problem import make_problem
    from app.simulate.run.build import make_cluster, shipped_catalogue
    from app.simulate.run.closed_loop import make_store

    scenario = read_scenario(fleet)
    plan = make_cluster(
        scenario,
        # Fleet and services are the same under each of the scenario's policies.
        scenario.spec.policies[0],
        0,
        catalogue=shipped_catalogue(scenario),
        folder=folder_of(fleet),
    )
    # A store on a clock that stands still: nothing is simulated, only the tick's own view of the fleet is wanted.
    clock = ManualControlClock()
    snapshot = asyncio.run(make_store(plan, clock).load_snapshot(clock.now()))
    return make_problem(
        # No rates: the training draws its own loads.
        snapshot.state,
        snapshot.points,
        (),
        snapshot.settings,
        target=None,
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
        # PyTorch's loader raises whatever a foreign file makes it stumble over.
        raise CliError(
            f"{checkpoint} is not a checkpoint of a training for this fleet: {error}",
            hint="start without --resume",
        ) from error


@contextmanager
def _progress(episodes: int) -> Iterator[Report]:
    """A bar on a terminal, else a line now and then; on stderr."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # Lines for logs, where a bar would leave control characters.
    if not sys.stderr.isatty():
        yield lambda point: print(describe_point(point), file=sys.stderr, flush=True)  # noqa: T201  progress, not output
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("training", total=episodes)
        begun: list[int] = []

        def report(point: "EpisodeMeans") -> None:
            # A resumed training counts on from the checkpoint's episodes, the bar from 0.
            begun.append(point.episode)
            progress.update(
                task,
                completed=point.episode - begun[0],
                description=describe_point(point),
            )

        yield report


def describe_point(point: "EpisodeMeans") -> str:
    return (
        f"episode {point.episode}: reward {point.reward:.1f}, late {point.late_percent:.1f} %, "
        f"carried {point.carried_rps:,.0f}/s"
    )


def _plotted(points: "list[EpisodeMeans]") -> str:
    from app.cli.decisions.plot_training import curves_text

    episodes = [float(each.episode) for each in points]
    curves = {
        "reward per step": [each.reward for each in points],
        "late requests, %": [each.late_percent for each in points],
        "provisioned throughput, requests/s": [each.carried_rps for each in points],
    }
    return curves_text(
        [
            (title, list(zip(episodes, values, strict=True)))
            for title, values in curves.items()
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
