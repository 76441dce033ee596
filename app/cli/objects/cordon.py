"""`plimsoll cordon`, `uncordon`, `drain`, `undrain` and `acquit`."""

from typing import Annotated

import typer

from app.cli.common.client import Api, dig, number, objects_of
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import parse_duration
from app.cli.common.errors import CliError, Patience
from app.cli.common.output import show_line
from app.cli.objects.completion import names_of

Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE", help="Names of nodes", autocompletion=names_of("nodes")
    ),
]

POLL_S = 1.0
GRACE_S = 60.0
"""After the deadline, for replicas to hand over and for the agent to report that they are gone."""


def cordon(context: typer.Context, nodes: Nodes) -> None:
    """Start nothing new on a node; what runs there stays."""
    _set(context, nodes, "cordon")


def uncordon(context: typer.Context, nodes: Nodes) -> None:
    """Use a node again."""
    _set(context, nodes, "uncordon")


def undrain(context: typer.Context, nodes: Nodes) -> None:
    """Stop draining a node and use it again."""
    _set(context, nodes, "undrain")


def acquit(
    context: typer.Context,
    nodes: Nodes,
    *,
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            "--gpu",
            metavar="INDEX",
            min=0,
            help="Only this GPU; may be repeated (default: all that are not healthy)",
        ),
    ] = None,
) -> None:
    """Use GPUs again that a critical error condemned.

    For when what NVIDIA's catalogue of Xids asks for is done: the node's agent forgets the errors so far. A GPU that
    does not answer, or tells another error, stays out of use.
    """
    with Api(cli_context(context)) as api:
        for node in nodes:
            before = api.get(f"/api/v1/nodes/{node}")
            api.post(f"/api/v1/nodes/{node}/acquit", {"gpus": gpus or None})
            shown = ", ".join(f"GPU {index}" for index in gpus or ()) or "its GPUs"
            healthy = int(number(before, "status.healthy_gpus") or 0)
            is_well = healthy == len(objects_of(dig(before, "spec.gpus")))
            show_line(
                f"Node {node}: all GPUs are healthy, none is to be acquitted"
                if is_well
                else f"Node {node}: {shown} acquitted; `plimsoll get gpus` shows when they are used again"
            )


def drain(
    context: typer.Context,
    nodes: Nodes,
    *,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="When everything must leave: running tasks, and replicas that no other node has room for",
        ),
    ] = "10m",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Until the nodes are empty")
    ] = True,
) -> None:
    """Empty nodes: nothing new starts, services move, and running tasks have until the deadline.

    Ctrl-C ends the waiting, not the draining; `plimsoll undrain NODE` stops the draining.
    """
    deadline_s = int(parse_duration(deadline).total_seconds())
    cli = cli_context(context)
    with Api(cli) as api:
        for node in nodes:
            api.post(f"/api/v1/nodes/{node}/drain", {"deadline_s": deadline_s})
            show_line(f"Node {node} drains, at most {deadline}")
        # All of them drain at once, however many are waited for in turn.
        until_s = cli.monotonic_s() + deadline_s + GRACE_S
        for node in nodes if wait else ():
            _wait_until_empty(cli, api, node, until_s)


def _wait_until_empty(cli: CliContext, api: Api, node: str, until_s: float) -> None:
    """Print what is left whenever that changes. Raises CliError where something stays beyond the deadline."""
    shown = ""
    patience = Patience(period_s=POLL_S)
    while True:
        try:
            found = api.get(f"/api/v1/nodes/{node}")
        except CliError as error:
            if cli.monotonic_s() > until_s:
                raise
            patience.failed(error)
            cli.sleep(patience.wait_s)
            continue
        patience.answered()
        if dig(found, "status.drain") is None:
            raise CliError(f"somebody stopped the draining of node {node}")
        replicas = int(number(found, "status.drain.replicas_left") or 0)
        tasks = int(number(found, "status.drain.tasks_left") or 0)
        if not replicas and not tasks:
            show_line(f"Node {node} is empty")
            return
        until = dig(found, "status.drain.deadline")
        left = f"Node {node}: replicas left: {replicas}, tasks left: {tasks}, at most until {until}"
        if left != shown:
            show_line(left)
            shown = left
        if cli.monotonic_s() > until_s:
            raise CliError(
                f"node {node} is not empty after its deadline",
                hint=f"`plimsoll describe node {node}` says whether its agent follows the plan",
            )
        cli.sleep(POLL_S)


def _set(context: typer.Context, nodes: list[str], verb: str) -> None:
    with Api(cli_context(context)) as api:
        for node in nodes:
            api.post(f"/api/v1/nodes/{node}/{verb}")
            show_line(f"Node {node} {verb}ed")
