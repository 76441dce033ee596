"""What the verbs of `plimsoll trace generate` have in common: which series, how long, and the file with its note."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from agents.sim.load.rates import Shape
from app.cli.common.durations import parse_duration
from app.cli.simulation.trace_files import write
from app.simulate.traces.generate import generate

# Each verb lists these options itself, because Typer reads them from its signature. A decorator that adds them would
# have to build signatures while the program runs, which no type checker follows.
Name = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Name of the series; may be repeated [default: service]"
    ),
]
Duration = Annotated[
    str, typer.Option(metavar="TIME", help="How long, in whole seconds: 90s, 1h, 7d")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same file")]
Draw = Annotated[
    bool,
    typer.Option(
        "--draw",
        help="Write requests as they would arrive, not the rates that a simulation draws from",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSeries:
    """These options as they were typed, and where the file goes."""

    name: Sequence[str] | None
    duration: str
    seed: int
    draw: bool
    output: Path

    @property
    def names(self) -> Sequence[str]:
        """One for each series, at least one."""
        return self.name or ["service"]

    @property
    def duration_s(self) -> int:
        """Length of the trace. Raises BadParameter."""
        duration_s = seconds(self.duration)
        # Requests are counted by the second.
        if duration_s != int(duration_s):
            raise typer.BadParameter(
                f"{self.duration!r} is not a whole number of seconds",
                param_hint="'--duration'",
            )
        return int(duration_s)

    @property
    def options(self) -> str:
        """What makes the same series again, as part of a command line."""
        # Without the default name: the note holds what was typed. The file may lie elsewhere by then.
        options = [f"--name {quote(each)}" for each in self.name or ()]
        options += [f"--duration {self.duration}", f"--seed {self.seed}"]
        return " ".join([*options, "--draw"] if self.draw else options)


def write_series(shapes: Sequence[Shape], command: str, wanted: WantedSeries) -> None:
    """Make and write a trace of one shape for each name. Raises BadParameter.

    command: the verb with its own options, which becomes part of the note.
    """
    try:
        made = generate(
            shapes,
            names=wanted.names,
            duration_s=wanted.duration_s,
            seed=wanted.seed,
            draws=wanted.draw,
            note=f"plimsoll trace generate {command} {wanted.options}",
        )
    # Of options that are each within their bounds, a rate may come out that no float holds or that cannot be drawn.
    except ValueError as error:
        raise typer.BadParameter(f"these values give no rates: {error}") from error
    write(made, wanted.output)


def seconds(duration: str) -> float:
    """`90s` or `1h30m` in seconds. Raises BadParameter."""
    return parse_duration(duration).total_seconds()
