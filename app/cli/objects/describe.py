"""`plimsoll describe`: everything about one object."""

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import typer

from agents.base.plurals import counted
from app.cli.common.client import Api, Document, dig, documents, objects_of, text
from app.cli.common.columns import truth_cell
from app.cli.common.context import cli_context
from app.cli.common.errors import ApiProblem
from app.cli.common.kinds import CommandKind
from app.cli.common.output import (
    Cells,
    bold,
    faint,
    plain,
    show_line,
    show_table,
    time_text,
)
from app.cli.objects.completion import complete_names
from app.cli.objects.get import KindName, fetch_one, parse_one
from app.cli.objects.show.forecasts import show_forecast_line
from app.cli.objects.show.predictions import show_predictions
from solvers.types.documents.gpu_type_json import ROW_FIELDS

NEWEST_EVENTS = 8
MAX_TABLE = 20
"""Rows of an object's own tables that are printed; `get -o json` has all of them."""


def describe(
    context: typer.Context,
    kind: KindName,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name or id", autocompletion=complete_names
        ),
    ] = None,
) -> None:
    """Show one object with its status and latest events."""
    found, name = parse_one(kind, name)
    if name is None:
        raise typer.BadParameter(f"name one, such as {found.reference('NAME')}")
    with Api(cli_context(context)) as api:
        item = fetch_one(api, found, name)
        show_line(bold(f"{found.name} {name}"))
        # Known, or too long for a terminal: the document of a plan is hundreds of lines.
        left_out = {"apiVersion", "kind", "document"}
        if found.name == "Project":
            # Both are the table of its quota.
            left_out |= {"spec", "status"}
        shown = {key: value for key, value in item.items() if key not in left_out}
        _show_fields(shown, "")
        if found.name == "Project":
            _show_project(item)
        if found.name == "Service":
            _show_nodes(api, found, name)
            _show_forecast(api, found, name)
        _show_events(api, found, name)


def _show_fields(fields: Mapping[str, object], indent: str) -> None:
    """Scalars as lines, objects indented, lists of objects as tables."""
    scalars = {key: value for key, value in fields.items() if not _is_nested(value)}
    width = max(map(len, scalars), default=0) + 1
    for key, value in fields.items():
        if key in scalars:
            label = faint(f"{indent}{key + ':':<{width}} ")
            show_line(label, _scalar(value))
        elif key == "conditions":
            _show_conditions(objects_of(value), indent)
        elif key == "predictions" and objects_of(value):
            show_predictions(objects_of(value))
        else:
            show_line(f"{indent}{key}:")
            _show_nested(key, value, indent)


def _show_project(project: Document) -> None:
    """Limits next to what is taken of them: two objects in the API, and one question of the reader."""
    show_line(faint("description: "), text(project, "spec.description") or "-")
    show_line("quota:")
    taken = cast(Document, dig(project, "status"))
    limits = cast(Document, dig(project, "spec.quota"))
    rows = []
    for key, limit in limits.items():
        used = "-"
        if key in taken:
            # A service that states no max_replicas may take any number.
            used = "unlimited" if taken[key] is None else plain(taken[key])
        name = key.removeprefix("max_")
        rows.append(("  " + name, "not set" if limit is None else plain(limit), used))
    show_table(["  of", ">limit", ">taken"], rows)


def _show_nested(key: str, value: object, indent: str) -> None:
    if isinstance(value, Mapping):
        _show_fields(value, indent + "  ")
    elif isinstance(value, list):
        # Rows of a profile are arrays in the API, which does not repeat the names thousands of times.
        _show_list(value, ROW_FIELDS if key == "rows" else ())


def _is_nested(value: object) -> bool:
    # An empty list or object fits a line, as does a list of plain values.
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict | list)
    return isinstance(value, Mapping) and bool(value)


def _scalar(value: object) -> str:
    # JSON has no times. Labels and messages are texts, too, so that the shape must be right.
    is_time = (
        isinstance(value, str)
        and len(value) >= 20
        and value[4] == value[7] == "-"
        and value[10] == "T"
    )
    return time_text(value) if is_time else plain(value)


def _show_conditions(conditions: Sequence[Document], indent: str) -> None:
    show_line(f"{indent}conditions:")
    rows = [
        (text(entry, "type"), truth_cell(entry), text(entry, "message"))
        for entry in conditions
    ]
    show_table(
        [indent + "  condition", "reason", "message"], _indented(rows, indent + "  ")
    )


def _show_list(entries: Sequence[object], names: Sequence[str]) -> None:
    """Objects with a column for each key, or rows of values under these names."""
    shown = entries[:MAX_TABLE]
    flat = [
        _flat(row)
        if isinstance(row, dict)
        else dict(zip(names, _values(row), strict=True))
        for row in shown
    ]
    # Rows may differ in their keys; columns come in the order in which they first appear.
    titles = list(dict.fromkeys(title for row in flat for title in row))
    cells: list[Cells] = [[row.get(title, "-") for title in titles] for row in flat]
    show_table(["    " + titles[0], *titles[1:]], _indented(cells, "    "))
    if len(entries) > MAX_TABLE:
        show_line(f"    ... and {counted(len(entries) - MAX_TABLE, 'more row')}")


def _values(row: object) -> list[str]:
    return [plain(value) for value in row] if isinstance(row, list) else []


def _flat(row: Document) -> dict[str, str]:
    """One row's cells; a list of objects inside, such as a GPU's replicas, becomes one text."""
    cells = {}
    for key, value in row.items():
        inner = objects_of(value)
        cells[key] = (
            "; ".join(_brief(entry) for entry in inner) if inner else _scalar(value)
        )
    return cells


def _brief(entry: Document) -> str:
    if "service" in entry and "sm_percent" in entry:
        return f"{text(entry, 'service')} {plain(entry['sm_percent'])} % × {plain(entry.get('batch'))}"
    if "is_resident" in entry:
        where = (
            f"{plain(entry.get('sm_percent'))} %"
            if entry["is_resident"]
            else "swapped out"
        )
        return f"{text(entry, 'name')} {where} × {plain(entry.get('batch'))}"
    return plain(entry)


def _indented(rows: Sequence[Cells], indent: str) -> list[Cells]:
    return [(indent + str(row[0]), *row[1:]) for row in rows]


def _show_nodes(api: Api, kind: CommandKind, name: str) -> None:
    """Which nodes take a service's requests; the address itself is in its status."""
    try:
        nodes = documents(api.get(f"{kind.one(name)}/endpoints"), "nodes")
    except ApiProblem as problem:
        # An older control plane has no such answer; the rest of the object is worth showing all the same.
        show_line(faint(f"endpoints: {problem.detail}"))
        return
    if nodes:
        show_line("requests go to:")
        _show_list(nodes, ())


def _show_forecast(api: Api, kind: CommandKind, name: str) -> None:
    try:
        show_forecast_line(api.get(f"{kind.one(name)}/forecast"))
    except ApiProblem as problem:
        # The rest of the object is worth showing all the same: this part may need another scope.
        show_line(faint(f"forecast: {problem.detail}"))


def _show_events(api: Api, kind: CommandKind, name: str) -> None:
    # Events name kinds in snake case: GpuType becomes gpu_type.
    subject = "".join(
        f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.name
    ).lstrip("_")
    try:
        events = api.first(
            "/api/v1/events", NEWEST_EVENTS, {"subject": f"{subject}/{name}"}
        )
    except ApiProblem as problem:
        show_line(faint(f"events: {problem.detail}"))
        return
    if not events:
        return
    show_line("events:")
    rows = [
        (
            "  " + time_text(event.get("at")),
            text(event, "kind"),
            text(event, "actor"),
            text(event, "reason") or "-",
        )
        for event in events
    ]
    show_table(["  at", "event", "actor", "reason"], rows)
