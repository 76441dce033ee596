"""`plimsoll what-if`: what changes would cost; on a control plane's live state, or on a Problem file without one."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.common.client import Api, Document
from app.cli.common.context import cli_context
from app.cli.common.errors import ApiProblem, CliError
from app.cli.common.options import Output, PlanningTime, check_planning_time
from app.cli.common.output import Format, show_document
from app.cli.common.scenario_flags import FLAGS, Flags, flag_error, read_scenarios
from app.cli.decisions.what_if_table import show_answers

if TYPE_CHECKING:
    from app.answers.scenario import WhatIfScenario
    from app.answers.what_if import Planned
    from solvers.types.outcome import PlanReport
    from solvers.types.plan import Plan
    from solvers.types.problem import Problem

_LOCAL_POLICY = "joint"

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
    typer.Option(
        metavar="TYPE=+N|-N",
        help="More or fewer GPUs, of any type in the catalogue, at its price",
    ),
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
    list[str] | None, typer.Option(metavar="SERVICE", help="Without this service")
]
Together = Annotated[
    bool,
    typer.Option("--together", help="All of these at once, rather than one by one"),
]
Suggest = Annotated[
    bool,
    typer.Option(
        "--suggest", help="Also ask: more and fewer GPUs, looser SLOs, 20 % more demand"
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
    """None: the policy that plans there by default."""
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
    """Plan alternatives, and rank them by cost.

    Every option is a question of its own (`--demand chat=2 --gpus A100=+1` asks two; `--demand chat=2,photo=1.5` one).
    Changes nothing.
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
        show_answers(answer)


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
    # The rest of a preview is about the plan of today, which was not asked for here.
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
    from app.catalogue.catalogue import with_gpu_types
    from app.cli.common.contract_files import read_uncut_problem
    from solvers.types.errors import InvalidInput

    scenarios = [_scenario(one) for one in _scenarios(questions, _entry)]
    named = {name for one in scenarios for name in (*one.gpus, *one.price_usd_per_hour)}
    problem = with_gpu_types(read_uncut_problem(file, "what-if"), named)
    try:
        # Before anything is planned: a question with a wrong name is not worth the others' minutes.
        asked = [(scenario, changed(problem, scenario)) for scenario in scenarios]
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
    from app.answers.what_if import FREE_TO_MOVE, FollowUp, ask
    from app.cli.start.plan import run
    from solvers.types.outcome import Budget

    policy = questions.policy or _LOCAL_POLICY

    async def make_plan(of: "Problem", seconds: float) -> "tuple[Plan, PlanReport]":
        return run(of, policy, Budget(seconds=seconds, work=seconds))

    return asyncio.run(
        ask(
            make_plan,
            problem,
            asked,
            follow_up=FollowUp(suggest=questions.suggest),
            seconds=questions.time_limit_s,
            is_free_to_move=policy in FREE_TO_MOVE,
        )
    )


def _entry(path: Path) -> tuple[str, object]:
    """Name and entry of a service in a file, as a Problem has it."""
    import yaml

    from solvers.types.documents.problem_json import service_from_document
    from solvers.types.errors import InvalidInput

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
