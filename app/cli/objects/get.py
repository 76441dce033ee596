"""`plimsoll get`: lists of objects."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, Query, dig, text
from app.cli.common.context import CliContext, cli_context
from app.cli.common.errors import CliError, Patience
from app.cli.common.kinds import CommandKind, find_kind, parse_objects
from app.cli.common.output import (
    Format,
    show_document,
    show_items,
    show_nothing,
    show_table,
)
from app.cli.objects.completion import complete_kinds, complete_names, names_of
from app.cli.objects.show.jsonpath import JsonPath, parse_jsonpath

WATCH_S = 2.0
FILTERED = ("services", "tasks")
"""Kinds that belong to projects and have labels."""
CLEAR = "\x1b[H\x1b[2J"

KindName = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="services, nodes, plans, ...; or KIND/NAME",
        autocompletion=complete_kinds,
    ),
]
Project = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--project",
        help="Only services or tasks of this project",
        autocompletion=names_of("projects"),
    ),
]


def parse_output(typed: str) -> Format | JsonPath:
    """What `-o` of `get` takes. Raises BadParameter."""
    name, equals, template = typed.partition("=")
    if name == "jsonpath" and equals:
        return parse_jsonpath(template)
    try:
        return Format(typed)
    except ValueError:
        known = ", ".join(Format)
        raise typer.BadParameter(
            f"{typed!r} is not a format; use {known} or jsonpath='{{.status}}'"
        ) from None


def get(
    context: typer.Context,
    kind: KindName,
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name or id [default: all]",
            autocompletion=complete_names,
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, wide, json, yaml, or jsonpath='{.status}' as kubectl takes it",
        ),
    ] = Format.TABLE.value,
    project: Project = None,
    all_projects: Annotated[
        bool, typer.Option("-A", "--all-projects", help="Ignore the context's project")
    ] = False,
    selector: Annotated[
        str | None,
        typer.Option(
            "-l",
            "--selector",
            metavar="KEY=VALUE",
            help="Only services and tasks with these labels",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=100_000, help="At most this many")
    ] = 500,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Include plans that changed nothing (state kept)"),
    ] = False,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Repeat every 2 s")
    ] = False,
) -> None:
    """List objects of one kind, or show one of them.

    Without -p, services and tasks are those of the context's project; -A lists those of all projects.

    Kinds: services, tasks, nodes, gpus, gpu-types, networks, profiles, projects, budgets, webhooks, policies, plans,
    demand, endpoints and tokens.

    Example: plimsoll get service/chat -o jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'
    """
    cli = cli_context(context)
    wanted = parse_output(output)
    found, name = parse_one(kind, name)
    if project and all_projects:
        raise typer.BadParameter("give either --project or --all-projects")
    _check_filters(found, is_filtered=bool(project or selector), shows_all=show_all)
    if found.path in FILTERED and not project and not all_projects:
        project = cli.named_context().project
    query: Query = {
        "project": project,
        "label_selector": selector,
        **({} if show_all else found.default_query),
    }
    with Api(cli) as api:

        def load() -> list[Document]:
            if name is None:
                return _listed(api, found, query, limit, wanted)
            return [fetch_one(api, found, name)]

        show = partial(_show, kind=found, output=wanted, is_list=name is None)
        if watch:
            _repeat(load, show, cli)
        else:
            show(load())


def _listed(
    api: Api,
    kind: CommandKind,
    query: Query,
    limit: int,
    output: Format | JsonPath,
) -> list[Document]:
    items = api.first(kind.list_path, limit, query)
    # What YAML prints is there to be applied, and profiles are listed without their rows.
    if kind.name != "Profile" or output is not Format.YAML:
        return items
    names = [f"{text(item, 'network')}/{text(item, 'gpu_type')}" for item in items]
    return [fetch_one(api, kind, name) for name in names]


def _check_filters(kind: CommandKind, *, is_filtered: bool, shows_all: bool) -> None:
    """Raise BadParameter for flags that do nothing for the kind."""
    if is_filtered and kind.path not in FILTERED:
        raise typer.BadParameter("--project and --selector are for services and tasks")
    if shows_all and not kind.default_query:
        raise typer.BadParameter(
            "--all is for plans; other kinds are always listed in full"
        )


def parse_one(kind: str, name: str | None) -> tuple[CommandKind, str | None]:
    """The kind and the name of `KIND`, `KIND NAME` or `KIND/NAME`. Raises BadParameter."""
    if "/" not in kind:
        return find_kind(kind), name
    if name is not None:
        raise typer.BadParameter(f"write {kind} alone, or KIND NAME")
    (found,) = parse_objects([kind])
    return found.kind, found.name


def fetch_one(api: Api, kind: CommandKind, name: str) -> Document:
    """One object by its name or id. Raises CliError."""
    if kind.has_one:
        return api.get(kind.one(name))
    # Kinds without a path for one object are few and short, so that a list is read.
    for item in api.items(kind.list_path):
        if str(dig(item, kind.id_field)) == name:
            return item
    raise CliError(
        f"there is no {kind.name} {name!r}",
        hint=f"`plimsoll get {kind.path}` lists them",
    )


def _show(
    items: list[Document],
    kind: CommandKind,
    output: Format | JsonPath,
    *,
    is_list: bool,
) -> None:
    if isinstance(output, JsonPath):
        document: Document = {"items": items} if is_list else items[0]
        typer.echo(output.render(document), nl=False)
        return
    # One object is printed bare, as `apply -f -` takes it; a list has `items` around it.
    if show_items(items, output) if is_list else show_document(items[0], output):
        return
    if items:
        show_table(*kind.table(items, wide=output is Format.WIDE))
    else:
        show_nothing(kind.path)


def _repeat(
    load: Callable[[], list[Document]],
    show: Callable[[list[Document]], None],
    cli: CliContext,
) -> None:
    """Show it until the user interrupts, which is how a watch ends well; what is away for a while is waited for."""
    patience = Patience(period_s=WATCH_S)
    items = load()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            # In a file the control characters would come between the tables.
            if cli.is_terminal():
                typer.echo(CLEAR, nl=False)
            show(items)
            items = patience.ask(cli.sleep, load)
