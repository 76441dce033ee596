"""`plimsoll cancel`."""

from typing import Annotated

import typer

from app.cli.client import Api, text
from app.cli.output import show_line
from app.cli.surroundings import surroundings_of

Tasks = Annotated[list[str], typer.Argument(metavar="TASK", help="Names of tasks")]


def cancel(context: typer.Context, tasks: Tasks) -> None:
    """End tasks; they stay in the list.

    `delete` takes them out of it. One that is over already stays as it is.
    """
    with Api(surroundings_of(context)) as api:
        for task in tasks:
            state = text(api.post(f"/api/v1/tasks/{task}/cancel"), "status", "state")
            show_line(f"Task {task} cancelled" if state == "cancelled" else f"Task {task} was over already: {state}")
