"""`plimsoll rollout`: how the nodes take up what was planned for a service."""

import math
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.durations import parse_timeout
from app.cli.common.errors import CliError
from app.cli.common.kinds import NamedObject, parse_objects
from app.cli.common.options import command_group
from app.cli.common.output import show_line
from app.cli.objects.completion import complete_references
from app.cli.objects.get import fetch_one
from app.cli.objects.wait import behind, find_condition, poll

app = command_group("Follow the rollout of a service's plan to the nodes.")

HINTS = {
    "SloOutOfReach": "`plimsoll explain` shows what limits it; a longer SLO or another GPU type may help",
    "ModeOff": "apply the service with mode auto to have it planned again",
}
"""Reasons that only another manifest ends."""


@app.callback()
def _group() -> None:
    """Keeps `status` a word of its own, as the only command of a group is not."""


@app.command()
def status(
    context: typer.Context,
    service: Annotated[
        list[str],
        typer.Argument(
            metavar="service/NAME",
            help="One service",
            autocompletion=complete_references,
        ),
    ],
    *,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="0 = as long as it takes")
    ] = "0",
    watch: Annotated[
        bool, typer.Option("-w/-W", "--watch/--no-watch", help="Until it is complete")
    ] = True,
) -> None:
    """Follow a service until the plan in force meets its demand and its nodes have its replicas ready.

    Prints a line whenever something changes. Exits with 0 when the rollout is complete, and with 1 if it times out
    or if only a different manifest can help.

    Example: plimsoll rollout status service/chat --timeout 10m
    """
    named = parse_objects(service)
    if len(named) != 1 or named[0].kind.name != "Service":
        raise typer.BadParameter("name one service, such as service/chat")
    timeout_s = parse_timeout(timeout)
    cli = cli_context(context)
    until_s = cli.monotonic_s() + (timeout_s or math.inf)
    shown: list[str] = []
    with Api(cli) as api:

        def look() -> bool:
            item = fetch_one(api, named[0].kind, named[0].name)
            # Nodes take a command up at once; their replicas may take minutes, as language models' do.
            starting = _starting(api, named[0]) if _is_complete(item) else ""
            line = starting or _line(item)
            if line not in shown[-1:]:
                show_line(line)
                shown.append(line)
            return _is_complete(item) and not starting

        # Without watching one look is enough, as of a time that is over.
        is_complete = poll(cli, look, until_s=until_s if watch else -math.inf)
    if watch and not is_complete:
        raise CliError(
            f"timed out waiting for {named[0]} to be rolled out",
            hint=f"`plimsoll describe {named[0]}` shows how far it got",
        )


def _starting(api: Api, service: NamedObject) -> str:
    """That replicas of the plan in force are not ready yet; empty: all are."""
    nodes = documents(api.get(f"{service.kind.one(service.name)}/endpoints"), "nodes")
    counts = [
        (number(node, "planned_replicas") or 0.0, number(node, "ready_replicas") or 0.0)
        for node in nodes
    ]
    planned = sum(each for each, _ in counts)
    # By node: what is still there of an older plan does not count for what another node is to start.
    missing = sum(max(0.0, each - ready) for each, ready in counts)
    if not missing:
        return ""
    return f"Waiting: {planned - missing:.0f} of {planned:.0f} replicas are ready"


def _is_complete(item: Document) -> bool:
    """Whether nothing is left to do. Raises CliError where waiting does not help."""
    if behind(item):
        return False
    ready = find_condition(item, "Ready")
    if hint := HINTS.get(text(ready, "reason")):
        raise CliError(
            f"the rollout cannot continue: {text(ready, 'message')}", hint=hint
        )
    return text(ready, "status") == "True" and not find_condition(item, "Launches")


def _line(item: Document) -> str:
    """Why it is not complete, or that it is."""
    name = text(item, "metadata.name")
    ready = find_condition(item, "Ready")
    # Replicas that do not come up are planned and delivered all the same.
    launches = find_condition(item, "Launches")
    if launches:
        return f"Waiting: {text(launches, 'message')} ({text(launches, 'reason')})"
    if text(ready, "status") == "True":
        if older := behind(item):
            return f"Waiting: {older}"
        applied = text(find_condition(item, "Applied"), "message")
        return f"service {name} is rolled out: {applied}; {text(ready, 'message')}"
    return f"Waiting: {text(ready, 'message')} ({text(ready, 'reason')})"
