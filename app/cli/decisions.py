"""`plimsoll approve`, `reject`, `pause` and `resume`: what people say to the control loop."""

from typing import Annotated

import typer

from app.cli.client import Api, text
from app.cli.output import show_line
from app.cli.surroundings import surroundings_of

PlanId = Annotated[int, typer.Argument(metavar="PLAN", min=1, help="Id of a plan; `plimsoll get plans` lists them")]
POLICY = "default"


def approve(context: typer.Context, plan: PlanId) -> None:
    """Let a proposed plan become the target."""
    _judge(context, plan, "approve")


def reject(context: typer.Context, plan: PlanId) -> None:
    """Refuse a proposed plan."""
    _judge(context, plan, "reject")


def pause(context: typer.Context) -> None:
    """Stop the control loop from changing anything.

    Nodes keep what they run, and keep enforcing it.
    """
    _act(context, "pause")
    show_line("The control loop is paused; nodes keep what they run. `plimsoll resume` lets it go on.")


def resume(context: typer.Context) -> None:
    """Let the control loop go on."""
    _act(context, "resume")
    show_line("The control loop goes on.")


def _judge(context: typer.Context, plan: int, verb: str) -> None:
    with Api(surroundings_of(context)) as api:
        answer = api.post(f"/api/v1/plans/{plan}/{verb}")
    follows = "; the next tick pushes it" if verb == "approve" else ""
    show_line(f"Plan {plan} is {text(answer, 'state')}{follows}.")


def _act(context: typer.Context, verb: str) -> None:
    with Api(surroundings_of(context)) as api:
        api.post(f"/api/v1/policies/{POLICY}/{verb}")
