"""`plimsoll policy compare`: policies side by side, on what runs now, on a Problem file or in a simulation."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.options import Output, PlanningTime, check_planning_time
from app.cli.common.output import (
    Cells,
    ColouredCell,
    Format,
    amount,
    bad,
    bold,
    faint,
    good,
    show_document,
    show_line,
    show_table,
    usd,
)
from solvers.policies.cards import card, in_order
from solvers.policies.registry import main_policies, policies

_FIGURES = (
    *("cost/h", "gpus", "replicas", "starts"),
    *("unserved", "room", "broken", "s"),
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Policies [default: the main ones, or those of the scenario]",
        autocompletion=lambda: [*policies()],
    ),
]


def compare(
    context: typer.Context,
    names: Names = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Also baselines and variants")
    ] = False,
    problem: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="On a Problem file, without any server; - = stdin"
        ),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="In a simulation, without any server; - = stdin"
        ),
    ] = None,
    time_limit: PlanningTime = 30.0,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j", "--jobs", min=1, max=256, help="With --scenario: runs at a time"
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare policies: what each would decide for the live state, and what it costs.

    Changes nothing. With --scenario every policy runs through the whole simulation, under the same
    requests; policies that the scenario has settings for keep them.
    """
    chosen = _chosen(names or (), every=every)
    if problem is not None and scenario is not None:
        raise typer.BadParameter("give --problem or --scenario, not both")
    if scenario is not None:
        _in_simulation(scenario, chosen, jobs, output)
        return
    check_planning_time(problem, time_limit)
    chosen = chosen or in_order(main_policies())
    answer = (
        _of_server(context, chosen, time_limit)
        if problem is None
        else _of_file(problem, chosen, time_limit)
    )
    if not show_document(answer, output):
        _show(answer)


def _chosen(names: Sequence[str], *, every: bool) -> tuple[str, ...]:
    """All policies, or those that are named, each once and in the order given; (): none was named."""
    if names and every:
        raise typer.BadParameter("name policies or give --all, not both")
    for name in names:
        # Raises for a name that there is not, before anything is solved.
        card(name)
    return in_order(policies()) if every else tuple(dict.fromkeys(names))


def _of_server(
    context: typer.Context, names: Sequence[str], time_limit_s: float
) -> Document:
    with Api(cli_context(context)) as api:
        return api.post(
            "/api/v1/plans/compare",
            {"policies": list(names), "time_limit_s": time_limit_s},
        )


def _of_file(file: Path, names: Sequence[str], time_limit_s: float) -> Document:
    # Here, as solvers and numba take seconds to import.
    from app.answers.compare_policies import compare_policies
    from app.cli.common.contract_files import read_problem
    from app.solver.inline import TimedSolver
    from solvers.types.outcome import Budget
    from solvers.types.state import Observed

    question = read_problem(file)
    budget = Budget(seconds=time_limit_s, work=time_limit_s)
    found = asyncio.run(
        # At second 0 and without memory: a Problem file is one moment, so that nothing was observed before it.
        compare_policies(TimedSolver(), question, Observed(at_s=0.0), names, budget)
    )
    return {
        "in_force": None,
        "policies": json.loads(json.dumps([asdict(each) for each in found])),
    }


def _in_simulation(
    file: Path, names: Sequence[str], jobs: int | None, output: Format
) -> None:
    """Raises CliError; Exit where a run failed."""
    from app.cli.simulation.runs import show_failures, simulated
    from app.cli.simulation.scenario_files import folder_of, read_scenario
    from app.cli.simulation.show import show_report
    from app.simulate.report.report import report_to_json
    from app.simulate.scenario.scenario import with_policies

    scenario = read_scenario(file)
    own = {run.policy for run in scenario.spec.policies}
    report = simulated(
        with_policies(scenario, names or in_order(own)),
        folder_of(file),
        jobs=jobs,
    )
    # A report without any run has no figures: what failed is all that there is to say.
    if not show_document(json.loads(report_to_json(report)), output) and report.runs:
        show_report(report, sys.stdout)
    show_failures(report)
    if report.failed:
        raise typer.Exit(1)


def _show(answer: Document) -> None:
    found = documents(answer, "policies")
    if not found:
        raise CliError("the control plane compared no policies")
    in_force = text(answer, "in_force")
    show_table(
        ["policy", *(f">{title}" for title in _FIGURES)],
        [_row(each, is_in_force=text(each, "policy") == in_force) for each in found],
    )
    for each in found:
        # A policy without a plan has no broken rules; of a broken plan the first rule says enough for a line.
        if reason := text(each, "reason"):
            show_line(bad(f"{text(each, 'policy')}: {reason}"))
        elif broken := text(each, "first_violation"):
            show_line(bad(f"{text(each, 'policy')} breaks {broken}"))
    note = (
        "room: left within the SLO on the fullest replica; below 0 % it misses the SLO"
    )
    show_line(faint(f"* in force; {note}" if in_force else note))


def _row(each: Document, *, is_in_force: bool) -> Cells:
    name = text(each, "policy") + (" *" if is_in_force else "")
    if text(each, "reason"):
        return bad(name), *("-" for _ in _FIGURES)
    unserved = number(each, "unserved_percent") or 0.0
    broken = int(number(each, "violations") or 0)
    return (
        bold(name) if is_in_force else name,
        usd(number(each, "cost_usd_per_hour")),
        text(each, "gpus"),
        text(each, "replicas"),
        text(each, "starts"),
        bad(f"{unserved:.2f} %") if unserved else "-",
        _room(number(each, "worst_slack_percent")),
        bad(str(broken)) if broken else "-",
        amount(number(each, "seconds"), 2),
    )


def _room(percent: float | None) -> str | ColouredCell:
    if percent is None:
        return "-"
    return good(f"{percent:.1f} %") if percent >= 0.0 else bad(f"{percent:.1f} %")
