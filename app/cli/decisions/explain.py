"""`plimsoll explain`: why a plan is as it is; of a control plane, or of files without one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.options import Output
from app.cli.common.output import Format, show_document, show_line
from app.cli.decisions.explain_show import show_explanation


def explain(
    context: typer.Context,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="PLAN|SERVICE",
            help="Plan id, or a service; none = the plan in force",
        ),
    ] = None,
    *,
    problem: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Explain a plan for this Problem file, without any server",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Which plan; none = the one that --policy makes now"
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Who makes the plan of --problem")
    ] = "joint",
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Also what else GPUs could run, and tested savings; always with --problem",
        ),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=60,
            metavar="SECONDS",
            help="How long solvers may take, for each step",
        ),
    ] = 10.0,
    output: Output = Format.TABLE,
) -> None:
    """Say why a plan is as it is.

    What was asked for, what each service got, costs at the margin and what limits it, what each GPU earns and what else
    it could run, what would help, and what changed. docs/explain.md says how to read it.
    """
    if plan is not None and problem is None:
        raise typer.BadParameter(
            "a plan is explained with the Problem that it solves: add --problem FILE"
        )
    service = (
        None if subject is None or (subject.isdigit() and problem is None) else subject
    )
    if problem is not None:
        answer, whose = _of_files(problem, plan, policy, time_limit), "the plan"
    else:
        answer = _of_server(context, subject, thorough=thorough, time_limit=time_limit)
        whose = f"plan {answer.get('plan_id')}"
    _show(answer, service, whose, output)


def _show(answer: Document, service: str | None, whose: str, output: Format) -> None:
    services = documents(answer.get("services"))
    if service is not None:
        services = [entry for entry in services if entry.get("service") == service]
        if not services:
            raise CliError(
                f"{whose} says nothing of a service {service!r}", hint=_known(answer)
            )
    if show_document({**answer, "services": services}, output):
        return
    state = text(answer, "state")
    show_line(
        f"{whose[:1].upper()}{whose[1:]}{f' ({state})' if state else ''}: {text(answer, 'summary')}"
    )
    show_explanation(answer, services, is_whole=service is None)


def _known(answer: Document) -> str:
    names = [text(entry, "service") for entry in documents(answer.get("services"))]
    return (
        f"its services are {', '.join(names)}" if names else "`plimsoll get services`"
    )


def _of_server(
    context: typer.Context, subject: str | None, *, thorough: bool, time_limit: float
) -> Document:
    with Api(cli_context(context)) as api:
        plan_id = (
            int(subject)
            if subject is not None and subject.isdigit()
            else _plan_in_force(api)
        )
        query = (
            {"thorough": "true", "time_limit_s": f"{time_limit:g}"} if thorough else {}
        )
        return api.get(f"/api/v1/plans/{plan_id}/explain", query)


def _plan_in_force(api: Api) -> int:
    found = api.first("/api/v1/plans", 1, {"state": "target"})
    if not found:
        raise CliError(
            "no plan is in force yet",
            hint="`plimsoll get plans` lists what was decided",
        )
    return int(number(found[0], "id") or 0)


def _of_files(
    problem_file: Path, plan_file: Path | None, policy: str, time_limit: float
) -> Document:
    """The API's answer, made here."""
    from app.answers.explain import explain as explain_plan
    from app.cli.common.contract_files import read_plan, read_problem
    from app.cli.start.plan import solve
    from app.solver.analyse import find_out
    from app.solver.findings import Inquiry
    from solvers.check import violations
    from solvers.policies.warm_up import warm_up
    from solvers.types.outcome import Budget
    from solvers.types.state import Demand

    question = read_problem(problem_file)
    budget = Budget(seconds=time_limit, work=time_limit)
    plan, report = (
        solve(question, policy, budget) if plan_file is None else read_plan(plan_file)
    )
    warm_up("joint")
    told = explain_plan(
        plan,
        report,
        problem=question,
        demands=[
            Demand(service=one.name, arrival_rate_rps=one.arrival_rate_rps)
            for one in question.services
        ],
        violations=violations(question, plan),
        reason="",
        findings=find_out(Inquiry(problem=question, plan=plan, budget=budget)),
    )
    document = asdict(told)
    report_document = document.pop("report")
    figures = (
        "steps",
        "messages",
        "cost_usd_per_hour",
        "lower_bound_usd_per_hour",
        "gap_percent",
    )
    whole = {**document, **{name: report_document[name] for name in figures}}
    if question.current is None:
        # Nothing ran before, so that every replica would be a change.
        whole |= {"changes": [], "moves": None}
    answer: Document = json.loads(json.dumps(whole))
    return answer
