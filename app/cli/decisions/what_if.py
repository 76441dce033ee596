"""`plimsoll what-if`: what changes would cost; on a control plane's live state, or on a Problem file without one."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    warn,
)
from app.cli.decisions.scenario_flags import FLAGS, Flags, flag_error, read_scenarios

if TYPE_CHECKING:
    from app.answers.scenario import WhatIfScenario
    from app.answers.what_if import Planned
    from solvers.types.outcome import PlanReport
    from solvers.types.plan import Plan
    from solvers.types.problem import Problem

_LOCAL_POLICY = "joint"
_NOISE_USD = 5e-5
"""Differences that four decimals do not show."""

ProblemFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="PROBLEM",
        help="Problem file, - = stdin; none = the live state of the control plane",
    ),
]
DemandFactors = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SERVICE=FACTOR", help="Rate times a factor; `all` = every service"
    ),
]
Rates = Annotated[
    list[str] | None, typer.Option(metavar="SERVICE=RPS", help="Another rate")
]
GpuNumbers = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE=+N|-N", help="So many GPUs of a type more or fewer"),
]
GpuPrices = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE=USD", help="Another price per GPU and hour"),
]
SloLatencies = Annotated[
    list[str] | None, typer.Option(metavar="SERVICE=MS", help="Another SLO latency")
]
ServiceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="One more service: manifest, or entry of a Problem file"
    ),
]
Without = Annotated[
    list[str] | None, typer.Option(metavar="SERVICE", help="One service fewer")
]
Together = Annotated[
    bool, typer.Option("--together", help="All of these at once, not each by itself")
]
Suggest = Annotated[
    bool,
    typer.Option(
        "--suggest", help="Ask also: GPUs more and fewer, looser SLOs, 20 % more demand"
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        help=f"Who plans [default: {_LOCAL_POLICY} for a file, else the policy in force]"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestions:
    """What the command line asks."""

    flags: Flags
    is_together: bool
    suggest: bool
    policy: str | None
    """None: whoever plans there by default."""
    time_limit_s: float


def what_if(
    context: typer.Context,
    problem: ProblemFile = None,
    *,
    demand: DemandFactors = None,
    rate: Rates = None,
    gpus: GpuNumbers = None,
    price: GpuPrices = None,
    slo: SloLatencies = None,
    service: ServiceFiles = None,
    without: Without = None,
    together: Together = False,
    suggest: Suggest = False,
    policy: PolicyOption = None,
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
    questions = WhatIfQuestions(
        flags=flags,
        is_together=together,
        suggest=suggest,
        policy=policy,
        time_limit_s=time_limit,
    )
    answer = (
        _of_server(context, questions)
        if problem is None
        else _of_file(problem, questions)
    )
    if not show_document(answer, output):
        _show(answer)


def _of_server(context: typer.Context, questions: WhatIfQuestions) -> Document:
    body: Document = {
        "scenarios": _scenarios(questions, _manifest),
        "suggest": questions.suggest,
        "time_limit_s": questions.time_limit_s,
    }
    # Left out, not null: the control plane takes the policy in force where none is named.
    if questions.policy:
        body["policy"] = questions.policy
    with Api(cli_context(context)) as api:
        try:
            answer = api.post("/api/v1/plans/preview", body)
        except ApiProblem as problem:
            raise _in_flags(problem) from problem
    # The rest of a preview is about the plan of today, which nobody asked for here.
    return {"today": answer.get("today"), "answers": answer.get("answers")}


def _scenarios(
    questions: WhatIfQuestions, read_service: Callable[[Path], tuple[str, object]]
) -> list[Document]:
    return read_scenarios(
        questions.flags, is_together=questions.is_together, read_service=read_service
    )


def _in_flags(problem: ApiProblem) -> CliError:
    """A problem with a scenario's field, named by its option."""
    for field in problem.fields:
        parts = [part for part in field.place.split("/") if part]
        # /scenarios/<place>/<field>...: the place counts what the command built, which the user never saw.
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


def _of_file(file: Path, questions: WhatIfQuestions) -> Document:
    """The same made here."""
    # The solvers take seconds to import, which a question to the control plane need not wait for.
    from app.answers.scenario import changed
    from app.answers.what_if import answers
    from app.cli.common.contract_files import read_problem
    from solvers.types.errors import InvalidInput

    problem = read_problem(file)
    try:
        # Before anything is planned: a question with a wrong name is not worth the others' minutes.
        asked = [
            (scenario, changed(problem, scenario))
            for scenario in map(_scenario, _scenarios(questions, _entry))
        ]
    except InvalidInput as error:
        raise flag_error(error.field, error.problem) from error
    today, *planned = _planned(problem, asked, questions)
    made = (
        {name: value for name, value in asdict(one).items() if name != "plan"}
        for one in answers(today, planned)
    )
    # Through JSON, so that tuples and enums look as they do in the API's answer.
    first, *others = json.loads(json.dumps(list(made)))
    return {"today": first, "answers": others}


def _planned(
    problem: "Problem",
    asked: "Sequence[tuple[WhatIfScenario, Problem]]",
    questions: WhatIfQuestions,
) -> "tuple[Planned, ...]":
    from app.answers.what_if import FREE_TO_MOVE, ask
    from app.cli.start.plan import run
    from solvers.policies.warm_up import warm_up
    from solvers.types.outcome import Budget

    policy = questions.policy or _LOCAL_POLICY

    async def make_plan(of: "Problem", seconds: float) -> "tuple[Plan, PlanReport]":
        return run(of, policy, Budget(seconds=seconds, work=seconds))

    # Compiling is not the questions' time: their seconds begin afterwards.
    warm_up(policy)
    return asyncio.run(
        ask(
            make_plan,
            problem,
            asked,
            suggest=questions.suggest,
            seconds=questions.time_limit_s,
            is_free_to_move=policy in FREE_TO_MOVE,
        )
    )


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
    # The same fields as in the API's body, which is checked there by pydantic and here by the options' parsers.
    return WhatIfScenario(**fields)  # type: ignore[arg-type]


def _show(answer: Document) -> None:
    today = answer.get("today")
    answers = documents(answer, "answers")
    show_table(
        ["what if", ">cost/h", ">difference", ">unserved", ">gap", "gpus"],
        [_row(today, is_today=True), *map(_row, answers)],
    )
    if any(map(_is_borrowed, answers)):
        show_line(
            faint(
                "* the plan of another question, which is better here than the one found"
            )
        )
    if _is_unsure(today, answers):
        show_line(
            warn(
                "Differences smaller than the gaps are not proven; a longer --time-limit narrows the gaps."
            )
        )


def _is_borrowed(answer: object) -> bool:
    return text(answer, "planned_for") != text(answer, "question")


def _row(answer: object, *, is_today: bool = False) -> Cells:
    name = text(answer, "question") + (" *" if _is_borrowed(answer) else "")
    difference = number(answer, "difference_usd_per_hour") or 0.0
    unserved = number(answer, "unserved_percent") or 0.0
    gap = number(answer, "gap_percent")
    return (
        bold(name) if is_today else name,
        usd(number(answer, "cost_usd_per_hour")),
        "-" if is_today else _signed(difference),
        bad(f"{unserved:.2f} %") if unserved else "-",
        "-" if gap is None else f"{amount(gap, 2)} %",
        _used(dig(answer, "gpus")) or "none",
    )


def _used(gpus: object) -> str:
    """GPUs by type, without the types of which none is used."""
    counts = gpus.items() if isinstance(gpus, dict) else ()
    return ", ".join(f"{count} {name}" for name, count in counts if count)


def _signed(difference: float) -> str | ColouredCell:
    # Rounding would show +$0.0000.
    if abs(difference) < _NOISE_USD:
        return "same"
    return (
        bad(f"+{usd(difference)}") if difference > 0 else good(f"−{usd(-difference)}")
    )


def _is_unsure(today: object, answers: Sequence[Document]) -> bool:
    """Whether some difference is smaller than what is not proven."""
    gap_today = number(today, "gap_percent") or 0.0
    for each in answers:
        gap = max(number(each, "gap_percent") or 0.0, gap_today)
        # Either of the two plans may cost that much less in truth.
        unproven_usd = gap / 100.0 * (number(each, "cost_usd_per_hour") or 0.0)
        if abs(number(each, "difference_usd_per_hour") or 0.0) < unproven_usd:
            return True
    return False
