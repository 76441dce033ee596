"""`plimsoll delete`: end objects; their history stays in the database."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from httpx2 import codes

from app.cli.common.client import Api, dig, number
from app.cli.common.columns import SILENT_AFTER_S
from app.cli.common.context import cli_context
from app.cli.common.errors import ApiProblem, show_error
from app.cli.common.kinds import CommandKind, find_kind, kind_names
from app.cli.common.manifest_files import read_manifests
from app.cli.common.options import Yes
from app.cli.common.output import good, require_yes, show_line
from app.cli.objects.changes import object_path
from app.cli.objects.completion import complete_names, names_of


def delete(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help="services, nodes, ...", autocompletion=kind_names
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names", autocompletion=complete_names),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="Delete the objects in these manifests"
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete objects.

    Either `delete KIND NAME...`, or everything in a manifest file. Past costs stay in the reports.
    """
    # Both or neither; and a kind alone would mean all objects of it.
    if bool(file) == bool(kind) or bool(kind) != bool(names):
        raise typer.BadParameter("give either KIND and NAME, or -f FILE")
    targets = (
        _targets(find_kind(kind), names or [])
        if kind
        else _targets_of_files(file or [])
    )
    if not yes:
        require_yes(
            f"Delete {', '.join(title for title, _ in targets)}?",
            refusal="nothing was deleted",
        )
    with Api(cli_context(context)) as api:
        for title, path in targets:
            warning = _returns(api, path) if title.startswith("Node ") else ""
            api.delete(path)
            show_line(good(f"{title} deleted"))
            if warning:
                sys.stderr.write(f"Warning: {warning}\n")


def _returns(api: Api, path: str) -> str:
    """What makes a node come back that is deleted; empty where nothing does. Raises ApiProblem where there is none."""
    node = api.get(path)
    silent_s = number(node, "status.silent_for_s")
    # One that was never seen is silent since it was applied.
    was_seen = dig(node, "status.last_seen_at") is not None
    if not was_seen or silent_s is None or silent_s > SILENT_AFTER_S:
        return ""
    return (
        f"its agent reported {silent_s:.0f} s ago, and registers the node again with its next report; stop the agent, "
        "then delete the node again"
    )


def _targets(kind: CommandKind, names: list[str]) -> list[tuple[str, str]]:
    """Title and path of each object."""
    if not kind.is_deletable:
        hint = (
            "; revoke them with `plimsoll token revoke`" if kind.name == "Token" else ""
        )
        raise typer.BadParameter(
            f"{kind.plural or kind.name + 's'} cannot be deleted{hint}"
        )
    return [(f"{kind.name} {name}", kind.one(name)) for name in names]


def _targets_of_files(file: list[Path]) -> list[tuple[str, str]]:
    """What the manifests name, users before what they use."""
    entries = [
        entry
        # Files are read in the order in which they can be applied.
        for entry in reversed(read_manifests(file))
        # A policy in a file of objects stays: there is always one.
        if find_kind(entry.kind).is_deletable
    ]
    return [
        (f"{entry.kind} {entry.name}", object_path(entry.manifest)) for entry in entries
    ]


Tasks = Annotated[
    list[str],
    typer.Argument(
        metavar="TASK", help="Names of tasks", autocompletion=names_of("tasks")
    ),
]


def cancel(context: typer.Context, tasks: Tasks) -> None:
    """Cancel tasks; they stay in the list.

    `delete` removes them from it. Finished tasks stay as they are.
    """
    with Api(cli_context(context)) as api:
        # A list: all tasks are ended before a missing one makes the command fail.
        are_known = [_cancel(api, task) for task in tasks]
    if not all(are_known):
        raise typer.Exit(1)


def _cancel(api: Api, task: str) -> bool:
    """Whether there is such a task."""
    try:
        api.post(f"/api/v1/tasks/{task}/cancel")
    except ApiProblem as problem:
        # What is done cannot be cancelled, and the user has what they want: no failure.
        if problem.status == codes.CONFLICT:
            show_line(f"Task {task} has finished already")
            return True
        if problem.status != codes.NOT_FOUND:
            raise
        show_error(problem)
        return False
    show_line(f"Task {task} cancelled")
    return True
