"""`plimsoll cordon` and `uncordon`."""

from typing import Annotated

import typer

from app.cli.common.client import Api
from app.cli.common.context import cli_context
from app.cli.common.output import show_line

Nodes = Annotated[list[str], typer.Argument(metavar="NODE", help="Names of nodes")]


def cordon(context: typer.Context, nodes: Nodes) -> None:
    """Start nothing new on a node; what runs there stays."""
    _set(context, nodes, "cordon")


def uncordon(context: typer.Context, nodes: Nodes) -> None:
    """Use a node again."""
    _set(context, nodes, "uncordon")


def _set(context: typer.Context, nodes: list[str], verb: str) -> None:
    with Api(cli_context(context)) as api:
        for node in nodes:
            api.post(f"/api/v1/nodes/{node}/{verb}")
            show_line(f"Node {node} {verb}ed")
