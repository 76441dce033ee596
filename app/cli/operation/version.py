"""`plimsoll version`."""

import platform
from typing import Annotated

import typer

from app.base.version import program_version
from app.cli.common.client import Api, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.output import ColouredCell, faint, show_line


def version(
    context: typer.Context,
    short: Annotated[
        bool,
        typer.Option(
            "--short", help="Only this program's version; does not contact a server"
        ),
    ] = False,
) -> None:
    """Show the versions of this program and of the control plane."""
    # For scripts on machines from which no control plane can be reached.
    if short:
        show_line(program_version())
        return
    show_line(f"plimsoll       {program_version()}")
    show_line(f"python         {platform.python_version()}")
    show_line("control plane  ", _control_plane(context))


def _control_plane(context: typer.Context) -> ColouredCell:
    """What the API says of itself in its OpenAPI document, which needs no token."""
    try:
        with Api(cli_context(context)) as api:
            status, document, _ = api.probe("/openapi.json")
    except CliError as error:
        # A control plane that does not answer must not hide the version of what runs here.
        return faint(str(error))
    api_version = text(document, "info.version")
    if status != 200 or not api_version:
        return faint(
            f"answers {status} to /openapi.json; is this the address of Plimsoll?"
        )
    return ColouredCell(
        text=f"API v{api_version} at {cli_context(context).url().value}"
    )
