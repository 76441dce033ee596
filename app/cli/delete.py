"""`plimsoll delete`: end objects; their history stays in the database."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.changes import object_path
from app.cli.client import Api
from app.cli.kinds import Kind, find_kind, kind_names
from app.cli.manifest_files import read_manifests
from app.cli.output import GOOD, Cell, require_yes, show_line
from app.cli.surroundings import surroundings_of


def delete(
    context: typer.Context,
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="services, nodes, ...", autocompletion=kind_names)
    ] = None,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Names")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", metavar="FILE", help="Delete what these manifests name")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask")] = False,
) -> None:
    """Delete objects.

    Either `delete KIND NAME...`, or all that a manifest file names. What they cost stays in the reports.
    """
    if bool(file) == bool(kind) or bool(kind) != bool(names):
        raise typer.BadParameter("give either KIND and NAME, or -f FILE")
    targets = _targets(find_kind(kind), names or []) if kind else _targets_of_files(file or [])
    if not yes:
        require_yes(f"Delete {', '.join(title for title, _ in targets)}?", refusal="nothing was deleted")
    with Api(surroundings_of(context)) as api:
        for title, path in targets:
            api.delete(path)
            show_line(Cell(text=f"{title} deleted", style=GOOD))


def _targets(kind: Kind, names: list[str]) -> list[tuple[str, str]]:
    """Title and path of each object."""
    if not kind.is_deletable:
        hint = "; revoke them with `plimsoll token revoke`" if kind.name == "Token" else ""
        raise typer.BadParameter(f"{kind.plural or kind.name + 's'} cannot be deleted{hint}")
    return [(f"{kind.name} {name}", kind.one(name)) for name in names]


def _targets_of_files(file: list[Path]) -> list[tuple[str, str]]:
    """What the manifests name, users before what they use."""
    entries = [entry for entry in reversed(read_manifests(file)) if find_kind(entry.kind).is_deletable]
    return [(f"{entry.kind} {entry.name}", object_path(entry.manifest)) for entry in entries]
