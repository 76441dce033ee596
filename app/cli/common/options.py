"""Options that several commands take, and what groups of commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.durations import seconds_within
from app.cli.common.output import Format

MAX_SERVER_S = 60.0
"""A control plane plans for no longer when a person asks."""

Output = Annotated[
    Format,
    typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml"),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would change, but change nothing")
]
PlanningTime = Annotated[
    float,
    typer.Option(
        parser=seconds_within(0.1, 3600.0),
        metavar="DURATION",
        help="How long all plans may take together",
    ),
]


def check_planning_time(problem: Path | None, time_limit: float) -> None:
    """Refuse what a control plane would refuse, before it is asked. Raises BadParameter."""
    if problem is None and time_limit > MAX_SERVER_S:
        raise typer.BadParameter(
            f"a control plane plans for at most {MAX_SERVER_S:g} s; a Problem file may take longer",
            param_hint="'--time-limit'",
        )


def command_group(about: str) -> typer.Typer:
    """A verb that has verbs of its own. Plain text everywhere: Rich would read brackets in a help text as markup."""
    return typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode=None, help=about
    )
