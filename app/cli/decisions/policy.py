"""`plimsoll policy`: which policies there are, what they would do here, and how to change to another one.

To add a verb, write `policy_<verb>.py` with its function, and enter it at the end of this file.
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.common.options import Output, command_group
from app.cli.common.output import (
    Cells,
    Format,
    bad,
    console,
    good,
    show_document,
    show_items,
    show_table,
)
from app.cli.decisions.policy_compare import compare
from app.cli.decisions.policy_switch import switch
from app.cli.decisions.policy_train import train
from solvers.policies.cards import card, cards
from solvers.policies.registry import main_policies, policies, spec_of
from solvers.types.parameters import ParameterFacts, facts_of
from solvers.types.policy_spec import Card

WIDEST = 100
"""Lines of prose are not longer, however wide the terminal is."""
_LABEL = 12
_PLAIN_WIDTH = 80
"""Where stdout is no terminal."""

PolicyName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="See `plimsoll policy list`",
        # A function, so that Tab alone pays for it.
        autocompletion=lambda: [*policies()],
    ),
]

app = command_group("List, describe, compare and switch policies.")


@app.command("list")
def list_policies(output: Output = Format.TABLE) -> None:
    """List the policies that this program has.

    Needs no server; `plimsoll get policies` shows the one in force.
    """
    if output in (Format.JSON, Format.YAML):
        show_items([_document(each) for each in cards()], output)
        return
    is_wide = output is Format.WIDE
    headings = ["name", "keeps slos", "what it does"]
    if is_wide:
        headings += ["source", "needs"]
    main = main_policies()
    show_table(
        headings,
        [_row(each, is_wide=is_wide) for each in cards() if each.name in main],
    )
    sys.stdout.write("\nBaselines and variants, to compare with:\n")
    show_table(
        headings,
        [_row(each, is_wide=is_wide) for each in cards() if each.name not in main],
    )


@app.command()
def describe(name: PolicyName, output: Output = Format.TABLE) -> None:
    """Say where a policy comes from, what it decides, and what its limits are."""
    found, parameters = card(name), facts_of(spec_of(name).parameters)
    document = _document(found)
    document["parameters"] = [each._asdict() for each in parameters]
    if show_document(document, output):
        return
    lines = [*_card_lines(found, _width()), *_parameter_lines(parameters, _width())]
    sys.stdout.write("\n".join(lines) + "\n")


def _document(found: Card) -> dict[str, object]:
    return {
        # YAML has no tuples: its safe dumper refuses them.
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(found).items()
    }


def _row(found: Card, *, is_wide: bool) -> Cells:
    keeps = good("yes") if found.promises else bad("may not")
    wide = (found.source, ", ".join(found.needs) or "-") if is_wide else ()
    return found.name, keeps, found.title, *wide


def _card_lines(found: Card, width: int) -> list[str]:
    """The card as lines of at most `width` characters."""
    keeps = (
        "yes"
        if found.promises
        else "not always: a real cluster's loop refuses plans that break a promise"
    )
    facts = [
        ("source", found.source),
        ("decides", ", ".join(found.decides)),
        ("keeps SLOs", keeps),
        ("techniques", ", ".join(f"solvers.{name}" for name in found.techniques)),
        ("needs", ", ".join(found.needs) or "nothing more"),
        ("good for", found.good_for),
        *(
            # One line for each limit, under one label.
            ("limits" if place == 0 else "", limit)
            for place, limit in enumerate(found.limits)
        ),
    ]
    lines = [f"{found.name}: {found.title}", ""]
    for label, fact in facts:
        head = f"{label + ':' if label else '':<{_LABEL}}"
        indent = " " * _LABEL
        lines += textwrap.wrap(
            fact,
            width,
            initial_indent=head,
            subsequent_indent=indent,
            # Names such as k8s-hpa stay in one piece, so that they can be copied.
            break_on_hyphens=False,
        )
    return lines


def _parameter_lines(parameters: Sequence[ParameterFacts], width: int) -> Iterator[str]:
    """The policy's parameters; nothing where it has none."""
    if not parameters:
        return
    yield ""
    yield "parameters, in `spec.parameters` of the Policy or by `plimsoll plan --set`:"
    for each in parameters:
        yield ""
        yield f"  {each.name} = {each.default}   ({each.allowed})"
        yield from textwrap.wrap(
            each.about, width, initial_indent=" " * 6, subsequent_indent=" " * 6
        )


def _width() -> int:
    """How wide prose may be on this terminal."""
    found = console()
    # A pipe has no width; a fixed one gives the same text everywhere.
    return min(WIDEST, found.width) if found.is_terminal else _PLAIN_WIDTH


# At the end: typer lists the verbs in this order.
app.command()(compare)
app.command()(switch)
app.command()(train)
