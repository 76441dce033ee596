"""`plimsoll approve`, `reject`, `rollback`, `pause` and `resume`: what people say to the control loop."""

from typing import Annotated

import typer

from app.cli.common.client import Api, dig, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.output import show_line, warn
from app.cli.objects.completion import names_of

PlanId = Annotated[
    int,
    typer.Argument(
        metavar="PLAN",
        min=1,
        help="Id of a plan; `plimsoll get plans` lists them",
        autocompletion=names_of("plans", {"state": "proposed"}),
    ),
]
# A control plane has one policy; groups of services are parts of it.
POLICY = "default"


def approve(context: typer.Context, plan: PlanId) -> None:
    """Let a proposed plan become the target.

    The approval is refused, with what to do instead, where nothing would push the plan: in mode advise or off, while
    the loop is paused, or when a newer plan, another target or another catalogue came first.
    """
    _judge(context, plan, "approve")


def reject(context: typer.Context, plan: PlanId) -> None:
    """Refuse a proposed plan."""
    _judge(context, plan, "reject")


def rollback(
    context: typer.Context,
    plan: Annotated[
        int | None,
        typer.Argument(
            metavar="PLAN",
            min=1,
            help="Id of a plan that was in force [default: the previous one]",
            autocompletion=names_of("plans", {"state": "superseded"}),
        ),
    ] = None,
) -> None:
    """Put an earlier plan back in force on the present fleet.

    The next tick pushes it. If the policy is in mode auto, it is set to mode approve; otherwise the loop would undo the
    rollback.
    """
    with Api(cli_context(context)) as api:
        chosen = _newest_before(api) if plan is None else plan
        answer = api.post(f"/api/v1/plans/{chosen}/restore")
    show_line(
        f"Plan {chosen} is restored as plan {dig(answer, 'plan.id')}; the next tick pushes it."
    )
    # The fleet and the rates moved on since that plan was made: what it no longer keeps is said, not refused.
    warnings = answer.get("warnings")
    for warning in warnings if isinstance(warnings, list) else []:
        show_line(warn(f"  not kept at the present demand: {warning}"))
    # In mode auto the next tick would undo the rollback at once, so the API changes the mode, which people must know.
    if answer.get("mode_before") != answer.get("mode"):
        show_line(
            warn(
                "The policy is now in mode approve: new plans wait for you. "
                "Apply a Policy with mode auto to change that."
            )
        )


def _newest_before(api: Api) -> int:
    found = api.first("/api/v1/plans", 1, {"state": "superseded"})
    if not found:
        raise CliError(
            "there is no earlier plan that was in force",
            hint="`plimsoll get plans` lists them",
        )
    return int(number(found[0], "id") or 0)


def pause(context: typer.Context) -> None:
    """Stop the control loop from changing anything.

    Nodes keep running and enforcing the plan that they have.
    """
    _act(context, "pause")
    show_line(
        "The control loop is paused; nodes keep running what they have. `plimsoll resume` continues it."
    )


def resume(context: typer.Context) -> None:
    """Let the control loop continue."""
    _act(context, "resume")
    show_line("The control loop continues.")


def _judge(context: typer.Context, plan: int, verb: str) -> None:
    with Api(cli_context(context)) as api:
        answer = api.post(f"/api/v1/plans/{plan}/{verb}")
    follows = "; the next tick pushes it" if verb == "approve" else ""
    show_line(f"Plan {plan} is {text(answer, 'state')}{follows}.")


def _act(context: typer.Context, verb: str) -> None:
    with Api(cli_context(context)) as api:
        api.post(f"/api/v1/policies/{POLICY}/{verb}")
