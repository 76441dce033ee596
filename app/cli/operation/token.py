"""`plimsoll token`: who may call the API."""

import sys
from datetime import UTC, datetime
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
    "Create, list, rotate and revoke access tokens.\n\nviewer reads, operator also changes services and runs the "
    "cluster, admin changes everything. join is for nodes: an agent that is given such a token gets one of its own, "
    "which agent makes by hand."
)


class Scope(StrEnum):
    """What the holder of a token may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    JOIN = "join"
    AGENT = "agent"


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Owner; events show it")],
    *,
    scope: Annotated[Scope, typer.Option(help="What it allows")] = Scope.VIEWER,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--project", help="Only this project's services; repeat for several"
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="agent: its node; join: the only node that it may enrol"),
    ] = None,
    uses: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="join: nodes that it enrols [default: 1]"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Such as 12h, 30d, or never [default: 90d, join 1d]",
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Write straight into the database of this machine: for the first admin",
        ),
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Save it for this user's later commands")
    ] = False,
) -> None:
    """Create a token and print its secret.

    The secret is shown only once. It alone goes to stdout, so that it can be piped into a file.
    """
    wanted: Document = {"name": name, "scope": scope.value}
    given = {"projects": project, "node": node, "uses": uses}
    wanted |= {key: value for key, value in given.items() if value}
    # Parsed first: a typing error must not leave a token behind that is not kept.
    if expires is not None:
        wanted["expires_at"] = _end(expires)
    secret = _create_locally(wanted) if local else _create(context, wanted)
    # On stderr, so that `> file` holds the secret alone.
    sys.stderr.write(f"Token {name} of scope {scope}; it cannot be shown again:\n")
    show_line(secret)
    if save:
        _save(context, secret)


@app.command("list")
def list_tokens(context: typer.Context, output: Output = Format.TABLE) -> None:
    """List tokens, including revoked ones."""
    kind = find_kind("tokens")
    with Api(cli_context(context)) as api:
        items = list(api.items(kind.list_path))
    if not show_items(items, output):
        show_table(*kind.table(items, wide=output is Format.WIDE))


@app.command()
def rotate(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Id or name")],
    *,
    grace: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long the old one stays valid; `revoke` ends it at once",
        ),
    ] = "1h",
) -> None:
    """Replace a token with a new one of the same rights, and print its secret.

    The new one lasts as long as the old one did. Pass it on within the grace period; for a token of your own that is
    at most an hour, unless you are an admin.
    """
    grace_s = int(parse_duration(grace).total_seconds())
    with Api(cli_context(context)) as api:
        found = _find(_rotatable(api), token)
        made = api.post(
            f"/api/v1/tokens/{text(found, 'id')}/rotate", {"grace_s": grace_s}
        )
    sys.stderr.write(
        f"Token {text(found, 'name')}; the old one ends in {grace}, and the new one cannot be shown again:\n"
    )
    show_line(text(made, "secret"))


@app.command()
def revoke(
    context: typer.Context,
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN", help="Ids or names")],
) -> None:
    """Revoke tokens, with those that replaced them or that they replaced.

    Other processes of the control plane follow within seconds.
    """
    with Api(cli_context(context)) as api:
        known = list(api.items("/api/v1/tokens"))
        # One list for all names: each means what it meant when the command began.
        for wanted in tokens:
            found = _find(known, wanted)
            api.delete(f"/api/v1/tokens/{text(found, 'id')}")
            show_line(f"Token {text(found, 'name')} ({text(found, 'id')}) revoked")


def _rotatable(api: Api) -> list[Document]:
    """All tokens for an admin of the whole cluster; for everybody else, who may not list them, the caller's own."""
    caller = api.get("/api/v1/auth/whoami")
    if text(caller, "scope") == "admin" and caller.get("projects") is None:
        return list(api.items("/api/v1/tokens"))
    return [caller | {"id": text(caller, "token_id")}]


def _find(known: list[Document], wanted: str) -> Document:
    """The token of that id, else the only one of that name that is valid and was not replaced. Raises CliError."""
    by_id = [entry for entry in known if text(entry, "id") == wanted]
    # An id is certain; a name may have been given again after its first token ended, and a successor has its name.
    found = by_id or [
        entry
        for entry in known
        if wanted in (text(entry, "name"), text(entry, "person")) and _is_used(entry)
    ]
    if not found:
        raise CliError(
            f"there is no valid token {wanted!r}",
            hint="admins see all with `plimsoll token list`, and only they can rotate another's",
        )
    # Never guess which of two tokens is to die.
    if len(found) > 1:
        ids = ", ".join(text(entry, "id") for entry in found)
        raise CliError(
            f"{len(found)} tokens are called {wanted!r}; name one by its id: {ids}"
        )
    return found[0]


def _is_used(entry: Document) -> bool:
    """Whether it is valid and nothing has taken its place."""
    if entry.get("revoked_at") or entry.get("rotated_at"):
        return False
    expires = entry.get("expires_at")
    return expires is None or datetime.fromisoformat(str(expires)) > datetime.now(UTC)


def _end(expires: str) -> str | None:
    """The moment after that duration; None: never."""
    if expires == "never":
        return None
    return (datetime.now(UTC) + parse_duration(expires)).isoformat()


def _create(context: typer.Context, wanted: Document) -> str:
    with Api(cli_context(context)) as api:
        return text(api.post("/api/v1/tokens", wanted), "secret")


def _save(context: typer.Context, secret: str) -> None:
    path: Path = cli_context(context).saved_token_path()
    save_token(path, secret)
    sys.stderr.write(f"Saved to {path}\n")


def _create_locally(wanted: Document) -> str:
    # Only here: the other verbs of tokens need the API alone, and SQLAlchemy takes long to import.
    from pydantic import ValidationError

    from app.api.operations.tokens import TokenRequest, order_of
    from app.cli.common.local import on_database
    from app.db.operations.token_secrets import create_locally

    now = datetime.now(UTC)
    try:
        order = order_of(TokenRequest.model_validate(wanted), now)
    except ValidationError as error:
        # The API would say the same of the field.
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"])) or "token"
        raise CliError(f"{place}: {wrong['msg']}, not {wrong['input']!r}") from error
    return on_database(lambda engine: create_locally(engine, order, at=now)).secret
