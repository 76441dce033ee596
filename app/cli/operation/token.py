"""`plimsoll token`: who may call the API."""

import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, text
from app.cli.common.context import cli_context, save_token
from app.cli.common.durations import parse_duration
from app.cli.common.errors import CliError
from app.cli.common.kinds import find_kind
from app.cli.common.options import Output, command_group
from app.cli.common.output import Format, show_items, show_line, show_table

app = command_group(
    "Make, list and revoke access tokens.\n\nviewer reads, operator also changes services and runs the cluster, "
    "admin changes everything, agent is for nodes."
)


class Scope(StrEnum):
    """What the holder of a token may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


@app.command()
def create(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose it is; events name it")
    ],
    *,
    scope: Annotated[Scope, typer.Option(help="What it allows")] = Scope.VIEWER,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--project", help="Only this project's services; repeat for several"
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Such as 12h, 30d; none = does not expire"
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Straight into the database of this machine: for the first admin",
        ),
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Keep it for this user's later commands")
    ] = False,
) -> None:
    """Make a token and print its secret.

    It is shown this once. The secret alone goes to stdout, so that it can be piped into a file.
    """
    # Parsed first: a typing error must not leave a token behind that nobody keeps.
    lasts = None if expires is None else parse_duration(expires)
    if local:
        secret = _create_locally(name, scope, project, lasts)
    else:
        secret = _create_remotely(context, name, scope, project, lasts)
    # On stderr, so that `> file` holds the secret alone.
    sys.stderr.write(f"Token {name} of scope {scope}; nobody can show it again:\n")
    show_line(secret)
    if save:
        path: Path = cli_context(context).saved_token_path()
        save_token(path, secret)
        sys.stderr.write(f"Saved to {path}\n")


@app.command("list")
def list_tokens(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List tokens, revoked ones too."""
    kind = find_kind("tokens")
    with Api(cli_context(context)) as api:
        items = list(api.items(kind.list_path))
    if not show_items(items, output):
        show_table(*kind.table(items, wide=output is Format.WIDE))


@app.command()
def revoke(
    context: typer.Context,
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN", help="Ids or names")],
) -> None:
    """End tokens.

    Other processes of the control plane follow within seconds.
    """
    with Api(cli_context(context)) as api:
        known = list(api.items("/api/v1/tokens"))
        # One list for all names: each means what it meant when the command began.
        for wanted in tokens:
            found = _find(known, wanted)
            api.delete(f"/api/v1/tokens/{text(found, 'id')}")
            show_line(f"Token {text(found, 'name')} ({text(found, 'id')}) revoked")


def _find(known: list[Document], wanted: str) -> Document:
    """The token of that id, else the only valid one of that name. Raises CliError."""
    by_id = [entry for entry in known if text(entry, "id") == wanted]
    # An id is certain; a name may have been given again after its first token was revoked.
    found = by_id or [
        entry
        for entry in known
        if text(entry, "name") == wanted and not entry.get("revoked_at")
    ]
    if not found:
        raise CliError(
            f"there is no token {wanted!r}", hint="`plimsoll token list` lists them"
        )
    # Never guess which of two tokens is to die.
    if len(found) > 1:
        ids = ", ".join(text(entry, "id") for entry in found)
        raise CliError(
            f"{len(found)} tokens are called {wanted!r}; name one by its id: {ids}"
        )
    return found[0]


def _create_remotely(
    context: typer.Context,
    name: str,
    scope: Scope,
    projects: list[str] | None,
    lasts: timedelta | None,
) -> str:
    body: Document = {"name": name, "scope": scope.value}
    if projects:
        body["projects"] = list(projects)
    if lasts is not None:
        body["expires_at"] = (datetime.now(UTC) + lasts).isoformat()
    with Api(cli_context(context)) as api:
        return text(api.post("/api/v1/tokens", body), "secret")


def _create_locally(
    name: str, scope: Scope, projects: list[str] | None, lasts: timedelta | None
) -> str:
    # Only here: the other verbs of tokens need the API alone, and SQLAlchemy takes long to import.
    from app.cli.common.local import on_database
    from app.db.operations.token_secrets import create_locally

    # `create_locally` takes no end: it is for the first admin, who makes all others through the API.
    if lasts is not None:
        raise typer.BadParameter(
            "a token that is made with --local does not expire; revoke it when it is done"
        )

    made = on_database(
        lambda engine: create_locally(
            engine,
            name=name,
            scope=scope.value,
            at=datetime.now(UTC),
            projects=tuple(projects) if projects else None,
        )
    )
    return made.secret
