"""`plimsoll cancel`."""

from typing import Annotated

import typer
from httpx2 import codes

from app.cli.client import Api, ApiProblem
from app.cli.errors import show_error
from app.cli.output import show_line
from app.cli.surroundings import surroundings_of

Tasks = Annotated[list[str], typer.Argument(metavar="TASK", help="Names of tasks")]


def cancel(context: typer.Context, tasks: Tasks) -> None:
    """End tasks; they stay in the list.

    `delete` takes them out of it. One that has finished stays as it is.
    """
    missing = 0
    with Api(surroundings_of(context)) as api:
        for task in tasks:
            try:
                api.post(f"/api/v1/tasks/{task}/cancel")
            except ApiProblem as problem:
                if problem.status == codes.CONFLICT:
                    show_line(f"Task {task} has finished already")
                    continue
                if problem.status != codes.NOT_FOUND:
                    raise
                show_error(problem)
                missing += 1
            else:
                show_line(f"Task {task} cancelled")
    if missing:
        raise typer.Exit(1)
