"""What Tab offers of objects: the names that the control plane knows. Silent, and short, where it does not answer."""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import typer

from app.cli.common.client import Api, Query, dig
from app.cli.common.context import CliContext
from app.cli.common.errors import CliError
from app.cli.common.kinds import CommandKind, find_kind, kind_names

MAX_WAIT_S = 0.5
"""The person who pressed Tab waits, and sees no message."""
MAX_NAMES = 500


def complete_kinds(context: typer.Context, incomplete: str) -> list[str]:
    """Kinds; after a slash the names of that kind, as `service/chat`."""
    word, slash, _ = incomplete.partition("/")
    if not slash:
        return [name for name in kind_names() if name.startswith(incomplete)]
    return [
        name
        for each in _names(context, word)
        if (name := f"{word}/{each}").startswith(incomplete)
    ]


def complete_references(context: typer.Context, incomplete: str) -> list[str]:
    """`service/chat`; names alone where the word before them is a kind."""
    given = context.params.get("objects") or context.params.get("service") or ()
    if given and "/" not in given[0]:
        return _beginning(_names(context, given[0]), incomplete)
    return complete_kinds(context, incomplete)


def complete_logged(context: typer.Context, incomplete: str) -> list[str]:
    """Services by their names alone, and `service/chat` or `task/teach`."""
    if "/" in incomplete:
        return complete_kinds(context, incomplete)
    return _beginning([*_names(context, "service"), "service/", "task/"], incomplete)


def complete_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the kind that stands before them."""
    kind = context.params.get("kind")
    return _beginning(_names(context, kind), incomplete) if kind else []


def names_of(
    word: str, query: Query | None = None
) -> Callable[[typer.Context, str], list[str]]:
    """Completes names of one kind."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        return _beginning(_names(context, word, query), incomplete)

    return complete


def complete_contexts(context: typer.Context, incomplete: str) -> list[str]:
    """Names of contexts, which are in a file."""
    cli = context.find_object(CliContext)
    try:
        found = cli.contexts.contexts if cli else {}
    except CliError:
        return []
    return _beginning(sorted(found), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _names(context: typer.Context, word: str, query: Query | None = None) -> list[str]:
    """The names of all objects of a kind; none where that is no kind, or no answer comes in time."""
    try:
        kind = find_kind(word)
    except typer.BadParameter:
        return []
    cli = _cli_of(context)
    if cli is None:
        return []
    found: list[str] = []
    try:
        api = Api(cli)
    # A message would be printed into the line that somebody types.
    except CliError:
        return []

    def ask() -> None:
        with suppress(CliError):
            found.extend(_ask(api, kind, query))

    # A thread that is not waited for at the end: timeouts of a connection leave out how long its name takes to resolve.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(MAX_WAIT_S)
    return [] if asking.is_alive() else found


def _ask(api: Api, kind: CommandKind, query: Query | None) -> list[str]:
    asked = kind.default_query if query is None else query
    with api:
        items = api.first(kind.list_path, MAX_NAMES, asked)
    return [str(dig(item, kind.id_field)) for item in items]


def _cli_of(context: typer.Context) -> CliContext | None:
    """With the flags before the verb: completion parses them, and runs no command."""
    cli = context.find_object(CliContext)
    given = context.find_root().params
    if cli is None:
        return None
    return cli.with_flags(
        url=given.get("url"),
        token_file=given.get("token_file"),
        context=given.get("context_name"),
    )
