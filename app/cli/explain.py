"""`plimsoll explain`: why a plan is as it is."""

from collections.abc import Sequence
from typing import Annotated

import typer

from app.cli.client import Api, Document, documents, number, text
from app.cli.diff import show_changes
from app.cli.errors import CliError
from app.cli.get import Output
from app.cli.output import (
    BAD,
    FAINT,
    Cell,
    Cells,
    Format,
    Heading,
    amount,
    plain,
    show_json,
    show_line,
    show_table,
    show_yaml,
)
from app.cli.surroundings import surroundings_of


def explain(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(metavar="PLAN|SERVICE", help="Plan id, or a service; none = the plan in force")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Say why a plan is as it is.

    What was asked for, what each service got and what limits it, the way of the solvers, and what changed.
    """
    is_plan = subject is not None and subject.isdigit()
    with Api(surroundings_of(context)) as api:
        plan_id = int(subject or 0) if is_plan else _plan_in_force(api)
        answer = api.get(f"/api/v1/plans/{plan_id}/explain")
    services = documents(answer.get("services"))
    if subject is not None and not is_plan:
        services = [entry for entry in services if entry.get("service") == subject]
        if not services:
            raise CliError(f"plan {plan_id} says nothing of a service {subject!r}", hint="`plimsoll get services`")
    if output in (Format.JSON, Format.YAML):
        document = {**answer, "services": services}
        show_json(document) if output is Format.JSON else show_yaml([document])
        return
    show_line(f"Plan {plan_id} ({text(answer, 'state')}): {text(answer, 'summary')}")
    for message in _texts(answer.get("messages")):
        show_line("  ", message)
    _show_violations(documents(answer.get("violations")))
    for service in services:
        _show_service(service)
    if subject is None or is_plan:
        _show_steps(documents(answer.get("steps")))
        show_line(Cell(text="\nAgainst the plan before", style="bold"))
        show_changes(documents(answer.get("changes")))


def _plan_in_force(api: Api) -> int:
    found = api.first("/api/v1/plans", 1, {"state": "target"})
    if not found:
        raise CliError("no plan is in force yet", hint="`plimsoll get plans` lists what was decided")
    return int(number(found[0], "id") or 0)


def _show_service(service: Document) -> None:
    figures = ", ".join(
        f"{title} {amount(number(service, key))} rps"
        for title, key in (("demand", "demand_rps"), ("planned", "planned_rps"), ("capacity", "capacity_rps"))
    )
    show_line(Cell(text=f"\n{text(service, 'service')}", style="bold"), f"  {figures}")
    show_line("  limit: ", text(service, "limit"))
    for entry in documents(service.get("unserved")):
        show_line(
            Cell(text=f"  unserved: {amount(number(entry, 'rate_rps'))} rps ({text(entry, 'reason')})", style=BAD)
        )
    titles = ("sm %", "batch", "rps each", "can take", "exec ms")
    rows = [_group(entry) for entry in documents(service.get("replicas"))]
    if rows:
        headings = [Heading("  replicas"), *(Heading(title, True) for title in titles), Heading("beside")]
        show_table(headings, rows)


def _group(entry: Document) -> Cells:
    return (
        f"  {plain(entry.get('count'))} × {text(entry, 'gpu_type')}",
        plain(entry.get("sm_percent")),
        plain(entry.get("batch")),
        amount(number(entry, "arrival_rate_rps")),
        amount(number(entry, "capacity_rps")),
        amount(number(entry, "execution_ms"), 2),
        plain(entry.get("neighbours")),
    )


def _show_steps(steps: Sequence[Document]) -> None:
    if not steps:
        return
    show_line(Cell(text="\nHow it was found", style="bold"))
    rows = [
        (
            text(step, "technique"),
            text(step, "method"),
            text(step, "status"),
            amount(1000 * (number(step, "seconds") or 0.0)),
            "; ".join(_texts(step.get("messages"))) or "-",
        )
        for step in steps
    ]
    headings = [Heading("technique"), Heading("method"), Heading("status"), Heading("ms", True), Heading("messages")]
    show_table(headings, rows)


def _show_violations(violations: Sequence[Document]) -> None:
    for entry in violations:
        words = f"  breaks {text(entry, 'rule')} at {text(entry, 'where')}: "
        show_line(Cell(text=words, style=BAD), Cell(text=text(entry, "detail"), style=FAINT))


def _texts(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []
