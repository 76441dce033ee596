"""`plimsoll what-if`: what changes would cost; on a control plane's live state, or on a Problem file without one."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.common.client import (
    Api,
    ApiProblem,
    Document,
    dig,
    documents,
    number,
    text,
)
from app.cli.common.context import cli_context
from app.cli.common.errors import CliError
from app.cli.common.options import Output, PlanningTime, check_planning_time
from app.cli.common.output import (
    BAD,
    GOOD,
    Cells,
    ColouredCell,
    Format,
    amount,
    bad,
    faint,
    show_document,
    show_line,
    show_table,
    usd,
    warn,
)
from app.cli.common.scenario_flags import FLAGS, Flags, flag_error, read_scenarios

if TYPE_CHECKING:
    from app.answers.scenario import WhatIfScenario
    from solvers.types.outcome import PlanReport
    from solvers.types.plan import Plan
    from solvers.types.problem import Problem

_LOCAL_POLICY = "joint"
_NOISE_USD = 5e-5
"""Differences that four decimals do not show."""


def what_if(
    context: typer.Context,
    problem: Annotated[
        Path | None,
        typer.Argument(
            metavar="PROBLEM",
            help="Problem file, - = stdin; none = the live state of the control plane",
        ),
    ] = None,
    *,
    demand: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE=FACTOR", help="Rate times a factor; `all` = every service"
        ),
    ] = None,
    rate: Annotated[
        list[str] | None, typer.Option(metavar="SERVICE=RPS", help="Another rate")
    ] = None,
    gpus: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=+N|-N", help="So many GPUs of a type more or fewer"),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=USD", help="Another price per GPU and hour"),
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="SERVICE=MS", help="Another SLO latency")
    ] = None,
    service: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A service more: manifest, or entry of a Problem file"
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="SERVICE", help="A service less")
    ] = None,
    together: Annotated[
        bool,
        typer.Option("--together", help="All of these at once, not each by itself"),
    ] = False,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Ask also: GPUs more and fewer, looser SLOs, 20 % more demand",
        ),
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Who plans [default: {_LOCAL_POLICY} for a file, else the policy in force]"
        ),
    ] = None,
    time_limit: PlanningTime = 30.0,
    output: Output = Format.TABLE,
) -> None:
    """Plan what would be different, and rank it by cost.

    Every option is a question of its own (`--demand chat=2 --gpus A100=+1` asks two; `--demand chat=2,photo=1.5` one).
    Nothing is changed by asking.
    """
    flags = Flags(
        demand=demand or (),
        rate=rate or (),
        gpus=gpus or (),
        price=price or (),
        slo=slo or (),
        service=service or (),
        without=without or (),
    )
    if not suggest and not flags.is_any():
        raise typer.BadParameter(
            f"ask something: {', '.join(FLAGS.values())}, or --suggest"
        )
    check_planning_time(problem, time_limit)
    if problem is not None:
        answer = _of_file(
            problem,
            flags,
            together=together,
            suggest=suggest,
            policy=policy or _LOCAL_POLICY,
            time_limit=time_limit,
        )
    else:
        answer = _of_server(
            context,
            flags,
            together=together,
            suggest=suggest,
            policy=policy,
            time_limit=time_limit,
        )
    if not show_document(answer, output):
        _show(answer)


def _of_server(
    context: typer.Context,
    flags: Flags,
    *,
    together: bool,
    suggest: bool,
    policy: str | None,
    time_limit: float,
) -> Document:
    scenarios = read_scenarios(flags, is_together=together, read_service=_manifest)
    body: Document = {
        "scenarios": scenarios,
        "suggest": suggest,
        "time_limit_s": time_limit,
        **({"policy": policy} if policy else {}),
    }
    with Api(cli_context(context)) as api:
        try:
            answer = api.post("/api/v1/plans/preview", body)
        except ApiProblem as problem:
            raise _in_flags(problem) from problem
    return {"today": answer.get("today"), "answers": answer.get("answers")}


def _in_flags(problem: ApiProblem) -> CliError:
    """A problem with a scenario's field, named by its option."""
    for field in problem.fields:
        parts = [part for part in field.place.split("/") if part]
        if parts[:1] == ["scenarios"] and len(parts) > 2:
            return flag_error(parts[2], field.detail)
    return problem


def _manifest(path: Path) -> tuple[str, object]:
    """Name and document of the one Service manifest in a file."""
    from app.cli.common.manifest_files import read_manifests

    found = read_manifests([path])
    if len(found) != 1 or found[0].kind != "Service":
        raise CliError(
            f"{path} must hold one Service manifest",
            hint="`plimsoll get service NAME -o yaml` shows one",
        )
    return found[0].name, found[0].manifest.model_dump(mode="json", exclude_unset=True)


def _of_file(
    file: Path,
    flags: Flags,
    *,
    together: bool,
    suggest: bool,
    policy: str,
    time_limit: float,
) -> Document:
    """The same made here."""
    from app.answers.scenario import changed
    from app.answers.what_if import FREE_TO_MOVE, answers, ask
    from app.cli.common.contract_files import read_problem
    from app.cli.start.plan import run
    from solvers.policies.warm_up import warm_up
    from solvers.types.errors import InvalidInput
    from solvers.types.outcome import Budget

    problem = read_problem(file)
    scenarios = [
        _scenario(each)
        for each in read_scenarios(flags, is_together=together, read_service=_entry)
    ]
    try:
        asked = [(scenario, changed(problem, scenario)) for scenario in scenarios]
    except InvalidInput as error:
        raise flag_error(error.field, error.problem) from error

    async def make_plan(of: "Problem", seconds: float) -> "tuple[Plan, PlanReport]":
        return run(of, policy, Budget(seconds=seconds, work=seconds))

    warm_up(policy)
    is_free = policy in FREE_TO_MOVE
    today, *planned = asyncio.run(
        ask(
            make_plan,
            problem,
            asked,
            suggest=suggest,
            seconds=time_limit,
            is_free_to_move=is_free,
        )
    )
    made = (
        {name: value for name, value in asdict(one).items() if name != "plan"}
        for one in answers(today, planned)
    )
    first, *others = json.loads(json.dumps(list(made)))
    return {"today": first, "answers": others}


def _entry(path: Path) -> tuple[str, object]:
    """Name and entry of a service in a file, as a Problem has it."""
    import yaml

    from solvers.types.errors import InvalidInput
    from solvers.types.problem_json import service_from_document

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        service = service_from_document(document, "")
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, InvalidInput) as error:
        hint = "as in the Problem's services: name, network, slo_ms, percentile, arrival_rate_rps, priority, …"
        raise CliError(f"{path}: {error}", hint=hint) from error
    return service.name, service


def _scenario(document: Document) -> "WhatIfScenario":
    from app.answers.scenario import WhatIfScenario

    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in document.items()
    }
    return WhatIfScenario(**fields)  # type: ignore[arg-type]


def _show(answer: Document) -> None:
    today, answers = answer.get("today"), documents(answer.get("answers"))
    figures = ("cost/h", "difference", "unserved", "gap")
    headings = [
        "what if",
        *(f">{title}" for title in figures),
        "gpus",
    ]
    show_table(
        headings, [_row(today, is_today=True), *(_row(each) for each in answers)]
    )
    if any(_is_borrowed(each) for each in answers):
        show_line(
            faint(
                "* the plan of another question, which is better here than the one found"
            )
        )
    if _is_unsure(today, answers):
        words = "Differences smaller than the gaps are not proven; a longer --time-limit narrows the gaps."
        show_line(warn(words))


def _is_borrowed(answer: object) -> bool:
    return text(answer, "planned_for") != text(answer, "question")


def _row(answer: object, *, is_today: bool = False) -> Cells:
    difference, unserved = (
        number(answer, "difference_usd_per_hour") or 0.0,
        number(answer, "unserved_percent") or 0.0,
    )
    gap = number(answer, "gap_percent")
    gpus = dig(answer, "gpus")
    used = (
        [f"{count} {name}" for name, count in gpus.items() if count]
        if isinstance(gpus, dict)
        else []
    )
    sign = "-" if is_today else _signed(difference)
    return (
        ColouredCell(
            text=text(answer, "question") + (" *" if _is_borrowed(answer) else ""),
            style="bold" if is_today else "",
        ),
        usd(number(answer, "cost_usd_per_hour")),
        sign,
        bad(f"{unserved:.2f} %") if unserved else "-",
        "-" if gap is None else f"{amount(gap, 2)} %",
        ", ".join(used) or "none",
    )


def _signed(difference: float) -> str | ColouredCell:
    if abs(difference) < _NOISE_USD:
        return "same"
    return ColouredCell(
        text=f"{'+' if difference > 0 else '−'}{usd(abs(difference))}",
        style=BAD if difference > 0 else GOOD,
    )


def _is_unsure(today: object, answers: Sequence[Document]) -> bool:
    """Whether some difference is smaller than what is not proven."""
    for each in answers:
        cost, gap = (
            number(each, "cost_usd_per_hour") or 0.0,
            number(each, "gap_percent"),
        )
        before = number(today, "gap_percent")
        room = max(gap or 0.0, before or 0.0) / 100.0 * cost
        if abs(number(each, "difference_usd_per_hour") or 0.0) < room:
            return True
    return False
