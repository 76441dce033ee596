"""`plimsoll apply`: create or change objects as manifests say."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api
from app.cli.common.context import cli_context
from app.cli.common.manifest_files import STDIN, read_manifests
from app.cli.common.options import DryRun, Yes
from app.cli.common.output import require_yes
from app.cli.objects.changes import Action, carry_out, compare, show, show_cost

Files = Annotated[
    list[Path],
    typer.Option(
        "-f", "--file", metavar="FILE", help="YAML or JSON file, folder, or - for stdin"
    ),
]


def apply(
    context: typer.Context,
    file: Files,
    yes: Yes = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Accept an SLO that no operating point can keep"),
    ] = False,
) -> None:
    """Create or change objects from YAML or JSON manifests.

    Shows every field that would change, then asks. Unknown fields are refused. Objects that are not in the manifests
    stay as they are.
    """
    # The answer would be read from the manifests.
    if STDIN in file and not (yes or dry_run):
        raise typer.BadParameter(
            "stdin holds the manifests, so nobody can be asked; add -y or --dry-run"
        )
    entries = read_manifests(file)
    with Api(cli_context(context)) as api:
        steps = compare(api, entries)
        show(steps)
        # The cost is for whoever answers the question; a script with -y need not wait for a plan.
        if not yes:
            show_cost(api, steps)
        if dry_run or all(step.action is Action.KEEP for step in steps):
            return
        if not yes:
            require_yes("Apply?", refusal="nothing was changed")
        carry_out(api, steps, force=force)
