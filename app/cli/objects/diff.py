"""`plimsoll diff`: what `apply` would change, or how two plans differ."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.manifest_files import read_manifests
from app.cli.common.output import (
    GOOD,
    WARN,
    Cells,
    ColouredCell,
    plain,
    show_line,
    show_table,
    usd,
)
from app.cli.objects.changes import Action, compare, show


def diff(
    context: typer.Context,
    plans: Annotated[
        list[int] | None,
        typer.Argument(metavar="PLAN_A PLAN_B", help="Ids of two plans"),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="YAML or JSON file, folder, or -"
        ),
    ] = None,
) -> None:
    """Show what `apply` would change, or how two plans differ.

    Exit code 0: no difference; 1: there is one.
    """
    # typer takes any number of arguments for a list.
    if bool(plans) == bool(file) or (plans and len(plans) != 2):
        raise typer.BadParameter("give either -f FILE, or the ids of two plans")
    with Api(cli_context(context)) as api:
        differs = _diff_plans(api, *plans) if plans else _diff_files(api, file or [])
    # As diff(1) does, so that scripts can ask for differences.
    if differs:
        raise typer.Exit(1)


def _diff_files(api: Api, file: list[Path]) -> bool:
    steps = compare(api, read_manifests(file))
    show(steps)
    return any(step.action is not Action.KEEP for step in steps)


def _diff_plans(api: Api, before: int, after: int) -> bool:
    answer = api.get(f"/api/v1/plans/{after}/diff", {"against": before})
    cost_before = number(answer, "cost_before_usd_per_hour")
    cost_after = number(answer, "cost_after_usd_per_hour")
    show_line(f"Cost {usd(cost_before)} → {usd(cost_after)} per hour")
    changes = documents(answer, "changes")
    show_changes(changes)
    return bool(changes)


def show_changes(changes: list[Document]) -> None:
    """Print which replicas a plan has more or fewer of."""
    if not changes:
        show_line("No replica differs.")
        return
    titles = ("sm %", "batch", "clock MHz", "before", "after")
    headings = ["service", "GPU type", *(f">{title}" for title in titles)]
    show_table(headings, [_row(change) for change in changes])


def gpus_text(entry: Document) -> str:
    """The GPU type of an entry's replicas, and how many GPUs each spans where that is more than one."""
    spans = number(entry, "tp") or 1.0
    name = text(entry, "gpu_type")
    return name if spans == 1.0 else f"{name} (TP {spans:g})"


def _row(change: Document) -> Cells:
    before = number(change, "before") or 0
    after = number(change, "after") or 0
    return (
        text(change, "service"),
        gpus_text(change),
        plain(change.get("sm_percent")),
        plain(change.get("batch")),
        plain(change.get("clock_mhz")),
        f"{before:g}",
        # Fewer replicas are worth a look: they may be what somebody misses.
        ColouredCell(text=f"{after:g}", style=GOOD if after > before else WARN),
    )
