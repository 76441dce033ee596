"""What README and docs/ show stays true: links lead somewhere, and commands and their options exist."""

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.doctor.doctor import make_parser as doctor_parser
from agents.gateway.command import make_parser as gateway_parser
from agents.gpu.mig.command import make_parser as mig_parser
from agents.main import make_parser as agent_parser
from agents.serving.arguments import make_parser as worker_parser
from agents.trainer.trainer import make_parser as trainer_parser
from app.cli.common.context import CliContext
from app.cli.root import root_command

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"(?m)(?:^[ \t]*(?:\$ )?|`|\$\()(plimsoll(?:-agent)? [^`\n]+)")
AFTER = re.compile(r"\s(?:#|\||>|<|&&|;|--\s).*|\)(?:\s.*)?$")
"""What follows a command on its line: a remark, a pipe, another command."""


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def dead_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            yield link
        elif place and target.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.*)$", prose(target))
            if place not in {anchor(heading) for heading in headings}:
                yield link


def test_every_link_leads_somewhere() -> None:
    assert [(page.name, link) for page in PAGES for link in dead_links(page)] == []


def test_every_test_that_is_named_is_there() -> None:
    there = {each.name for each in (ROOT / "tests").rglob("test_*.py")}
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"\btest_\w+\.py\b", page.read_text())
    }
    assert {(page, name) for page, name in named if name not in there} == set()


def test_every_boundary_names_its_test() -> None:
    page = (ROOT / "docs/security.md").read_text()
    table = page.partition("## Which boundary holds how")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (?!boundary ).*", table)
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"`test_\w+\.py` \|$", row), row


def test_every_page_can_be_found_from_the_readme() -> None:
    found, new = set[Path](), [ROOT / "README.md"]
    while new:
        page = new.pop()
        found.add(page)
        links = [
            (page.parent / link).resolve()
            for link in re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
        ]
        new += [link for link in links if link not in found and link.exists()]
    assert not set(PAGES) - found


def commands(page: Path) -> Iterator[str]:
    text = page.read_text().replace("\\\n", " ")
    for line in COMMAND.findall(text):
        yield AFTER.sub("", line).strip()


def _all_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Its own and those of the commands below it."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _all_options(below)


def options_of(words: list[str]) -> set[str]:
    """The options of the command that the words name. Raises AssertionError where there is none."""
    program, *rest = words
    if program == "plimsoll" and rest and rest[0] in PARSERS:
        program, *rest = rest
    if program in PARSERS:
        name = f"agent {rest[0]}" if rest and f"agent {rest[0]}" in PARSERS else program
        return set(_all_options(PARSERS[name]()))
    found: Any = root_command()
    context = found.make_context(
        "plimsoll",
        [],
        obj=CliContext(environment={}, home=ROOT),
        resilient_parsing=True,
    )
    known = set[str]()
    while True:
        known |= {
            name
            for each in found.get_params(context)
            for name in (*each.opts, *each.secondary_opts)
        }
        if not hasattr(found, "get_command") or not rest or rest[0].startswith("-"):
            return known
        name, *rest = rest
        following = found.get_command(context, name)
        assert following is not None, f"{context.command_path} has no command {name!r}"
        found, context = (
            following,
            type(context)(following, parent=context, info_name=name),
        )


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "agent": agent_parser,
    "plimsoll-agent": agent_parser,
    "agent doctor": doctor_parser,
    "agent mig": mig_parser,
    "gateway": gateway_parser,
    "worker": worker_parser,
    "trainer": trainer_parser,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_exists_with_its_options(page: Path) -> None:
    unknown = set[tuple[str, str]]()
    for line in {*commands(page)} - {"plimsoll"}:
        words = shlex.split(line)
        given = {
            word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)
        }
        unknown |= {(line, option) for option in given - options_of(words)}
    assert unknown == set()


def test_commands_are_found_and_wrong_ones_would_be_seen() -> None:
    assert len({line for page in PAGES for line in commands(page)}) > 120
    with pytest.raises(AssertionError, match="no command 'nonsense'"):
        options_of(["plimsoll", "db", "nonsense"])
    assert "--flag" not in options_of(["plimsoll", "serve", "--flag"])
