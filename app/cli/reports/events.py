"""`plimsoll events`: the audit."""

import contextlib
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, Query, number, text
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import parse_moment
from app.cli.common.errors import Patience
from app.cli.common.options import Output
from app.cli.common.output import (
    BAD,
    WARN,
    ColouredCell,
    Format,
    show_json,
    show_line,
    show_nothing,
    show_yaml,
    time_text,
)

FOLLOW_S = 1.0
STYLES = {
    "Refused": BAD,
    "Failed": BAD,
    "Held": WARN,
    "Deleted": WARN,
    "Revoked": WARN,
    "Rejected": WARN,
}


def events(
    context: typer.Context,
    follow: Annotated[
        bool,
        typer.Option("-f", "--follow", help="Keep printing new ones until interrupted"),
    ] = False,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Such as 1h, or 2026-01-31T18:00Z; UTC where it says no zone",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Such as PlanPushed, ServiceChanged")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Such as service/chat, plan/12, node/n1")
    ] = None,
    actor: Annotated[
        str | None, typer.Option(help="Such as token/alice, controller")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many of the newest to show")
    ] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show who changed what, and what the loop did.

    Oldest first.
    """
    cli = cli_context(context)
    moment = (
        None if since is None else parse_moment(since, datetime.now(UTC)).isoformat()
    )
    query = {"kind": kind, "subject": subject, "actor": actor, "since": moment}
    with Api(cli) as api:
        # The API lists the newest first; people read downwards.
        found = api.first("/api/v1/events", limit, query)[::-1]
        _show_all(found, output, follow=follow)
        if follow:
            _follow(api, query, found, output, cli)


def _follow(
    api: Api, query: Query, seen: list[Document], output: Format, cli: CliContext
) -> None:
    """Show new events until the user interrupts, which is how following ends well."""
    # Where none matches yet, the newest of all: what happened before is not new.
    last = _last_id(seen or api.first("/api/v1/events", 1), 0)
    patience = Patience(period_s=FOLLOW_S)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            newer = partial(_newer_than, api, query, last)
            fresh = patience.ask(cli.sleep, newer)
            _show_all(fresh, output, follow=True)
            last = _last_id(fresh, last)


def _last_id(events: list[Document], otherwise: float) -> float:
    return max((number(event, "id") or 0 for event in events), default=otherwise)


def _newer_than(api: Api, query: Query, last: float) -> list[Document]:
    """Events with higher numbers, oldest first; the API lists them newest first."""
    fresh = []
    for event in api.items("/api/v1/events", {"limit": 100, **query}):
        # Ids grow, so that paging stops at the first one that was shown.
        if (number(event, "id") or 0) <= last:
            break
        fresh.append(event)
    return fresh[::-1]


def _show_all(found: list[Document], output: Format, *, follow: bool) -> None:
    if output is Format.YAML:
        show_yaml(found)
    elif output is Format.JSON and not follow:
        show_json({"items": found})
    elif output is Format.JSON:
        # One document for each event: a list that never ends could not be parsed.
        for event in found:
            show_json(event)
    else:
        if not found and not follow:
            show_nothing("events")
        for event in found:
            _show(event, wide=output is Format.WIDE)


def _show(event: Document, *, wide: bool) -> None:
    kind = text(event, "kind")
    # Kinds end in what happened: PlanRefused, ServiceDeleted.
    style = next((style for word, style in STYLES.items() if kind.endswith(word)), "")
    request = (
        f"  request {text(event, 'request_id')}"
        if wide and event.get("request_id")
        else ""
    )
    reason = f": {text(event, 'reason')}" if event.get("reason") else ""
    show_line(
        time_text(event.get("at")),
        "  ",
        ColouredCell(text=f"{kind:<16}", style=style),
        f"  {text(event, 'subject')} by {text(event, 'actor')}{reason}{request}",
    )
