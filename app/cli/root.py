"""The root command: its own flags, its help, and what Tab offers, all from the table of commands."""

import gc
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from app.cli.commands import ENTRIES, HELP_FLAGS, SECTIONS, Commands
from app.cli.common.context import (
    DEFAULT_URL,
    TOKEN_FILE_VARIABLE,
    URL_VARIABLE,
    cli_context,
)

if TYPE_CHECKING:
    from typer._click.core import Command
    from typer._click.core import Context as ClickContext
    from typer._click.formatting import HelpFormatter
    from typer._click.shell_completion import CompletionItem


class LazyGroup(TyperGroup):
    """Lists the commands from the table, and imports one when it is called."""

    def __init__(self, **attributes: object) -> None:
        # The group's own dictionary would be copied, and with it every file imported.
        super().__init__(**{**attributes, "commands": {}})  # type: ignore[arg-type]
        self.commands: MutableMapping[str, Command] = Commands(ENTRIES)

    def format_commands(self, ctx: "ClickContext", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        """The commands by section, from the table."""
        for title, section in SECTIONS.items():
            if rows := [
                (entry.name, entry.help)
                for entry in section
                if entry.name in self.commands
            ]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(
        self, ctx: "ClickContext", incomplete: str
    ) -> list["CompletionItem"]:
        """Verbs from the table, else options: Tab must not wait until every command is imported."""
        # Private to typer, which brings a click of its own: only completion needs it.
        from typer._click.shell_completion import CompletionItem

        verbs = [
            entry
            for entry in ENTRIES
            if entry.name in self.commands and entry.name.startswith(incomplete)
        ]
        # An option, or the beginning of no verb.
        if incomplete and not verbs:
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(entry.name, help=entry.help) for entry in verbs]


def root_command() -> "Command":
    """The `plimsoll` command."""
    app = typer.Typer(
        cls=LazyGroup,
        rich_markup_mode=None,
        # A traceback with all local variables would print tokens.
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings=HELP_FLAGS,
        epilog="Start with `plimsoll up --demo`. Every command has its own --help.",
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _contexts(context: typer.Context, incomplete: str) -> list[str]:
    from app.cli.objects.completion import complete_contexts

    return complete_contexts(context, incomplete)


def _root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help=f"Address of the control plane [default: ${URL_VARIABLE} or {DEFAULT_URL}]"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the token [default: $PLIMSOLL_TOKEN, ${TOKEN_FILE_VARIABLE}, saved]"
        ),
    ] = None,
    context_name: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="Context to use, see `plimsoll config get-contexts`",
            autocompletion=_contexts,
        ),
    ] = None,
) -> None:
    """Plimsoll loads shared GPUs up to the line, and never past it."""
    # The command's files are imported by now, see `main`; what it makes itself may be garbage.
    gc.enable()
    context.obj = cli_context(context).with_flags(
        url=url, token_file=token_file, context=context_name
    )
