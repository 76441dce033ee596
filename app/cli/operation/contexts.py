"""`plimsoll config get-contexts` and its siblings: control planes by name, as `kubectl config` keeps them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.context import cli_context
from app.cli.common.contexts import (
    NAME,
    ContextFile,
    NamedContext,
    save_contexts,
)
from app.cli.common.errors import CliError
from app.cli.common.options import Output
from app.cli.common.output import (
    Format,
    show_items,
    show_line,
    show_nothing,
    show_table,
)
from app.cli.objects.completion import complete_contexts

PROJECT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of a context", autocompletion=complete_contexts
    ),
]


def get_contexts(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List the contexts; a star marks the current one."""
    cli = cli_context(context)
    found = cli.contexts
    current = cli.context_name().value
    items: list[object] = [
        {
            "name": name,
            "current": name == current,
            "url": entry.url,
            "project": entry.project,
            "token_file": entry.token_file,
        }
        for name, entry in sorted(found.contexts.items())
    ]
    if show_items(items, output):
        return
    if not found.contexts:
        show_nothing("contexts")
        return
    rows = [
        (
            "*" if name == current else "",
            name,
            entry.url or "-",
            entry.project or "-",
            entry.token_file or "-",
        )
        for name, entry in sorted(found.contexts.items())
    ]
    show_table(["current", "name", "url", "project", "token file"], rows)


def current_context(context: typer.Context) -> None:
    """Print the name of the current context."""
    name = cli_context(context).context_name().value
    if name is None:
        raise CliError(
            "no context is in use", hint="`plimsoll config use-context NAME` sets one"
        )
    show_line(name)


def use_context(context: typer.Context, name: Name) -> None:
    """Use a context for all later commands.

    Flags and environment variables still take precedence.
    """
    cli = cli_context(context)
    found = cli.contexts
    found.find(name)
    save_contexts(cli.contexts_path(), replace(found, current=name))
    show_line(f"Switched to context {name}")


def set_context(
    context: typer.Context,
    name: Name,
    *,
    url: Annotated[
        str | None, typer.Option("--url", help="Address of the control plane")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            "-p", "--project", help="Project whose services and tasks `get` lists"
        ),
    ] = None,
) -> None:
    """Create a context, or change the given fields.

    Example: plimsoll config set-context production --url https://plimsoll.example.com --token-file production.token
    """
    _check(name, url, project)
    # Later commands start in other folders.
    given = NamedContext(
        url=url,
        token_file=None if token_file is None else _absolute(token_file),
        project=project,
    )
    cli = cli_context(context)
    found = cli.contexts
    before = found.contexts.get(name, NamedContext())
    changed = NamedContext(
        url=given.url or before.url,
        token_file=given.token_file or before.token_file,
        project=given.project or before.project,
    )
    save_contexts(
        cli.contexts_path(), replace(found, contexts={**found.contexts, name: changed})
    )
    show_line(f"Context {name} {'changed' if name in found.contexts else 'created'}")


def delete_context(context: typer.Context, name: Name) -> None:
    """Delete a context; its token file stays."""
    cli = cli_context(context)
    found = cli.contexts
    found.find(name)
    left = {key: entry for key, entry in found.contexts.items() if key != name}
    current = None if found.current == name else found.current
    save_contexts(cli.contexts_path(), ContextFile(current=current, contexts=left))
    show_line(f"Context {name} deleted")


def _absolute(token_file: Path) -> str:
    """Raises CliError for `~` where this user has no home."""
    try:
        return str(token_file.expanduser().absolute())
    except RuntimeError as error:
        raise CliError(
            f"cannot tell what {token_file} means: {error}",
            hint="give the path without ~, or set HOME",
        ) from error


def _check(name: str, url: str | None, project: str | None) -> None:
    if not NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} is not a valid context name: letters, digits and . _ @ : - after a letter or digit, at most 128"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"{url!r} is not an http:// or https:// address", param_hint="'--url'"
        )
    if project is not None and not PROJECT.fullmatch(project):
        raise typer.BadParameter(
            f"{project!r} is not a valid project name", param_hint="'--project'"
        )
