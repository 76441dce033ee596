"""`plimsoll apply`: create or change objects as manifests say."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api
from app.cli.common.context import CliContext, cli_context
from app.cli.common.durations import seconds_within
from app.cli.common.manifest_files import STDIN, read_manifests
from app.cli.common.options import Yes
from app.cli.common.output import require_yes
from app.cli.common.scenario_flags import parse_pairs, parse_rate
from app.cli.objects.changes import (
    Action,
    ApplyStep,
    carry_out,
    check,
    compare,
    show,
    written_services,
)
from app.cli.objects.priced_plan import expected_rates, show_priced_plan
from app.cli.objects.wait_ready import wait_ready

MAX_WAIT_S = 3600.0
PERSON_WAITS_S = 60.0
"""The person who said yes wants to see it serve; nothing is undone where it takes longer."""

Files = Annotated[
    list[Path],
    typer.Option(
        "-f", "--file", metavar="FILE", help="YAML or JSON file, folder, or - for stdin"
    ),
]


def apply(
    context: typer.Context,
    file: Files,
    *,
    yes: Yes = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, but change nothing"),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Accept an SLO that no operating point can meet"),
    ] = False,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE=RPS", help="Expected rate, for the price of the plan"
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            parser=seconds_within(0.0, MAX_WAIT_S),
            metavar="DURATION",
            help="Wait until the services serve [default: 60 after a question, else 0]",
        ),
    ] = None,
) -> None:
    """Create or change objects from YAML or JSON manifests.

    All or nothing. Shows every field that would change and the priced plan with two alternatives, then asks.
    Unknown fields are refused. Objects that are not in the manifests stay as they are. With --dry-run the control plane
    checks everything as for a write, and the exit code is that of the write.
    """
    # The answer would be read from the manifests.
    if STDIN in file and not (yes or dry_run):
        raise typer.BadParameter(
            "the manifests come from stdin, so there is no way to ask; add -y or --dry-run"
        )
    entries = read_manifests(file)
    around = cli_context(context)
    with Api(around) as api:
        steps = compare(api, entries)
        show(steps)
        rates = _given_rates(rate or (), steps)
        if all(step.action is Action.KEEP for step in steps):
            return
        # Before anybody is asked: what would be refused is no question.
        if dry_run or not yes:
            check(api, steps, force=force)
        # A script with -y need not wait for a plan.
        if not yes:
            may_ask = not dry_run and _is_person(around)
            show_priced_plan(api, steps, expected_rates(steps, rates, may_ask=may_ask))
        if dry_run:
            return
        if not yes:
            require_yes("Apply?", refusal="nothing was changed")
        carry_out(api, steps, force=force)
        # With -y and without --wait there may be no one to read it.
        is_asked = wait is None and not yes and _is_person(around)
        limit_s = PERSON_WAITS_S if is_asked else wait
        if limit_s:
            names = written_services(steps)
            wait_ready(api, around, names, limit_s=limit_s, must=not is_asked)


def _is_person(context: CliContext) -> bool:
    return sys.stdin.isatty() and context.is_terminal()


def _given_rates(
    texts: Sequence[str], steps: Sequence[ApplyStep]
) -> Mapping[str, float]:
    """The rates of --rate, by service. Raises BadParameter for a service that the manifests do not have."""
    services = [step.entry.name for step in steps if step.entry.kind == "Service"]
    given: dict[str, float] = {}
    for one in texts:
        given |= parse_pairs(one, "--rate", parse_rate)
    for name in given:
        if name not in services:
            there = ", ".join(services) or "none"
            raise typer.BadParameter(
                f"the manifests have no service {name!r}; they have {there}",
                param_hint="'--rate'",
            )
    return given
