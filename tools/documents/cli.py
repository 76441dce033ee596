"""Writes docs/cli.md from the commands' help: `python -m tools.documents.cli [--check]`; `--check` exits 1 when
stale."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typer.core import TyperGroup

from app.cli.commands import PASSED_ON, SECTIONS, Commands
from app.cli.root import root_command

if TYPE_CHECKING:
    from typer._click.core import Command, Context

PATH = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
WIDTH = 80
HEAD = """# The command `plimsoll`

Generated from the commands' own help by `tools/documents/cli.py`; do not edit.

Flags come before environment variables, these before files, these before defaults. Exit codes: 0 done, 1 failed (or,
for `diff`, different), 2 wrong usage, 130 interrupted. Results go to stdout, errors and questions to stderr. `-o json`
is meant for programs: fields are added, never renamed or removed without notice.
"""


def cli_text() -> str:
    """The document as it belongs in the file."""
    root = root_command()
    context = root.make_context(
        "plimsoll", [], resilient_parsing=True, terminal_width=WIDTH
    )
    parts = [HEAD, _section(context, "##")]
    for title, section in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        commands = Commands(section)
        for entry in section:
            if entry.name in PASSED_ON:
                parts.append(
                    f"\n### plimsoll {entry.name}\n\n{entry.help} {PASSED_ON[entry.name]}\n"
                )
            elif entry.name in commands:
                parts.extend(
                    _sections(commands[entry.name], entry.name, context, "###")
                )
    return "".join(parts)


def is_stale(path: Path = PATH) -> bool:
    """Whether the file differs from what the commands say."""
    return not path.exists() or path.read_text(encoding="utf-8") != cli_text()


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 when the file is stale",
    )
    if parser.parse_args().check:
        return int(is_stale())
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(cli_text(), encoding="utf-8")
    return 0


def _sections(
    command: "Command", name: str, parent: "Context", level: str
) -> Iterator[str]:
    """The help of a command, and of the verbs that it has of its own."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield _section(context, level)
    if isinstance(command, TyperGroup):
        for verb in command.list_commands(context):
            if inner := command.get_command(context, verb):
                yield from _sections(inner, verb, context, level + "#")


def _section(context: "Context", level: str) -> str:
    return f"\n{level} {context.command_path}\n\n```text\n{context.get_help().strip()}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
