"""`plimsoll config`: settings and where they come from, and contexts."""

import os
from typing import TYPE_CHECKING

import typer

from app.cli.common.context import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    CliContext,
    Sourced,
    cli_context,
)
from app.cli.common.options import Output, command_group
from app.cli.common.output import Format, show_document, show_table
from app.cli.operation import contexts

if TYPE_CHECKING:
    from app.base.settings import Settings

app = command_group("Show settings and their origin; manage contexts.")
app.command("get-contexts")(contexts.get_contexts)
app.command("current-context")(contexts.current_context)
app.command("use-context")(contexts.use_context)
app.command("set-context")(contexts.set_context)
app.command("delete-context")(contexts.delete_context)
# Enough for the longest scope; `_masked` cuts off again what follows the last underscore in it.
SHOWN_OF_TOKEN = len("plim_operator_") + 2


@app.command()
def show(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Show every setting with its value and origin.

    Secrets are masked.
    """
    # Reading settings takes libraries of the control plane, and contexts none of them.
    from app.cli.common.local import load_settings

    entries = [*_client(cli_context(context)), *_server(load_settings())]
    document = {
        name: {"value": entry.value, "origin": entry.origin} for name, entry in entries
    }
    if not show_document(document, output):
        rows = [(name, entry.value or "-", entry.origin) for name, entry in entries]
        show_table(["setting", "value", "origin"], rows)


def _client(cli: CliContext) -> list[tuple[str, Sourced]]:
    """What the commands use to reach a control plane."""
    token = cli.token()
    return [
        ("context", cli.context_name()),
        (URL_VARIABLE, cli.url()),
        (TOKEN_VARIABLE, Sourced(value=_masked(token.value), origin=token.origin)),
    ]


def _server(settings: "Settings") -> list[tuple[str, Sourced]]:
    """What `up`, `serve` and `db` use."""
    shown = settings.printable()
    return [
        (variable(name), Sourced(value=shown[name], origin=_origin(name)))
        for name in shown
    ]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"PLIMSOLL_{name.upper()}"


def _origin(name: str) -> str:
    # pydantic-settings reads variables whatever their case.
    is_set = variable(name) in {key.upper() for key in os.environ}
    return "environment" if is_set else "default"


def _masked(token: str | None) -> str | None:
    return None if token is None else token[:SHOWN_OF_TOKEN].rpartition("_")[0] + "_***"
