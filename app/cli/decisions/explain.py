"""`plimsoll explain`: why a plan is as it is; of a control plane, or of files without one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.common.client import Api, Document, documents, number, text
from app.cli.common.context import cli_context
from app.cli.common.durations import seconds_within
from app.cli.common.errors import CliError
from app.cli.common.options import Output
from app.cli.common.output import Format, show_document, show_line
from app.cli.decisions.explain_show import show_explanation

if TYPE_CHECKING:
    from app.answers.explain import Explanation

_REPORT_FIELDS = (
    "steps",
    "messages",
    "cost_usd_per_hour",
    "lower_bound_usd_per_hour",
    "gap_percent",
)


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
            metavar="FILE",
            help="The plan to explain [default: the one that --policy makes now]",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Who makes the plan of --problem")
    ] = "joint",
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Also show what else GPUs could run, and tested savings; always with --problem",
        ),
    ] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            parser=seconds_within(0.1, 60.0),
            metavar="DURATION",
            help="How long solvers may take, for each step",
        ),
    ] = 10.0,
    output: Output = Format.TABLE,
) -> None:
    """Explain why a plan is as it is.

    What was asked for, what each service got, costs at the margin and what limits it, what each GPU earns and what else
    it could run, what would help, and what changed. docs/explain.md says how to read it.
    """
    if plan is not None and problem is None:
        raise typer.BadParameter(
            "a plan is explained with the Problem that it solves: add --problem FILE"
        )
    # A number names a plan of the control plane; with a Problem file it can only be a service.
    is_plan_id = problem is None and subject is not None and subject.isdigit()
    service = None if is_plan_id else subject
    if problem is not None:
        answer = _of_files(problem, plan, policy, time_limit)
        whose = "the plan"
    else:
        plan_id = int(subject) if subject is not None and is_plan_id else None
        answer = _of_server(
            context, plan_id, thorough=thorough, time_limit_s=time_limit
        )
        whose = f"plan {answer.get('plan_id')}"
    _show(answer, service, whose, output)


def _show(answer: Document, service: str | None, whose: str, output: Format) -> None:
    services = documents(answer, "services")
    if service is not None:
        services = [entry for entry in services if entry.get("service") == service]
        if not services:
            raise CliError(f"{whose} has no service {service!r}", hint=_known(answer))
    if show_document({**answer, "services": services}, output):
        return
    # A plan made from files has no state: it was not decided on.
    state = f" ({answer['state']})" if answer.get("state") else ""
    # Not capitalize(), which would make small letters of all others.
    subject = f"{whose[:1].upper()}{whose[1:]}"
    show_line(f"{subject}{state}: {text(answer, 'summary')}")
    show_explanation(answer, services, is_entire=service is None)


def _known(answer: Document) -> str:
    names = [text(entry, "service") for entry in documents(answer, "services")]
    return (
        f"its services are {', '.join(names)}" if names else "`plimsoll get services`"
    )


def _of_server(
    context: typer.Context, plan_id: int | None, *, thorough: bool, time_limit_s: float
) -> Document:
    query = {"thorough": "true", "time_limit_s": f"{time_limit_s:g}"}
    with Api(cli_context(context)) as api:
        shown = _plan_in_force(api) if plan_id is None else plan_id
        # Without it the answer comes from stored prices at once, and no solver runs that a time could limit.
        return api.get(f"/api/v1/plans/{shown}/explain", query if thorough else {})


def _plan_in_force(api: Api) -> int:
    found = api.first("/api/v1/plans", 1, {"state": "target"})
    if not found:
        raise CliError(
            "no plan is in force yet",
            hint="`plimsoll get plans` lists the decisions",
        )
    return int(number(found[0], "id") or 0)


def _of_files(
    problem_file: Path, plan_file: Path | None, policy: str, time_limit: float
) -> Document:
    """The API's answer, made here."""
    # Solvers take seconds to import; a question to the control plane does not wait for them.
    from app.answers.explain import explain as explain_plan
    from app.cli.common.contract_files import read_plan, read_uncut_problem
    from app.cli.start.plan import run
    from app.solver.analyse import find_out
    from app.solver.findings import Inquiry
    from solvers.check import violations
    from solvers.types.outcome import Budget
    from solvers.types.state import Demand

    question = read_uncut_problem(problem_file, "explain")
    budget = Budget(seconds=time_limit, work=time_limit)
    plan, report = (
        run(question, policy, budget) if plan_file is None else read_plan(plan_file)
    )
    explanation = explain_plan(
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
    return _document(explanation, is_first=question.current is None)


def _object(items: list[tuple[str, Any]]) -> dict[str, Any]:
    # Plans that are explained have no slices, and the API's answers no field for them.
    return {name: value for name, value in items if name != "slice"}


def _document(explanation: "Explanation", *, is_first: bool) -> Document:
    """The explanation as the API writes it: the report's figures next to everything else."""
    fields = asdict(explanation, dict_factory=_object)
    report = fields.pop("report")
    fields |= {name: report[name] for name in _REPORT_FIELDS}
    if is_first:
        # Nothing ran before, so that every replica would be a change.
        fields |= {"changes": [], "moves": None}
    # Through JSON, so that tuples are lists as in the API's answer.
    document: Document = json.loads(json.dumps(fields))
    return document
