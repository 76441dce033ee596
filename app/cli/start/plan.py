"""`plimsoll plan`: a Problem file in, a Plan file out; no database, no network."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TextIO

import typer

from agents.base.plurals import counted
from app.cli.common.contract_files import read_problem
from app.cli.common.durations import seconds_within
from app.cli.common.errors import CliError
from app.cli.common.files import summary_stream, write_text
from app.cli.common.output import (
    Cells,
    amount,
    bad,
    good,
    plain,
    show_line,
    show_table,
    usd,
    warn,
)
from app.solver.process import PlanRequest, run_policy
from solvers.check import violations
from solvers.check_laws import audit
from solvers.check_report import report_violations
from solvers.laws.cost import gpu_power_w, llm_row
from solvers.policies.registry import (
    exporter_of,
    parameters_of,
    policies,
    refuse_slices,
    spec_of,
)
from solvers.types.documents.plan_json import plan_to_json
from solvers.types.errors import InvalidInput
from solvers.types.llm import LlmDemand
from solvers.types.outcome import Budget, PlanReport, Violation
from solvers.types.parameters import Setting
from solvers.types.plan import Plan, ReplicaPlan, replicas_of
from solvers.types.problem import Problem, ServiceDemand
from solvers.types.state import GpuType, Observed


class SolverName(StrEnum):
    """Solvers of integer programs, as people name them."""

    CP_SAT = "cp_sat"
    HIGHS = "highs"
    CBC = "cbc"


def plan(
    problem: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEM", help="Problem file (contract version 1 or 2; - = stdin)"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="PLAN", help="Where to write the plan; - = stdout"
        ),
    ] = None,
    *,
    policy: Annotated[
        str, typer.Option(help=f"Who decides: {', '.join(policies())}")
    ] = "joint",
    time_limit: Annotated[
        float,
        typer.Option(
            parser=seconds_within(0.01, 86_400.0),
            metavar="DURATION",
            help="How long the policy may think",
        ),
    ] = 10.0,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same plan"),
    ] = 0,
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Threads that the policy may use")
    ] = 1,
    solver: Annotated[
        SolverName,
        typer.Option(help="Who solves the integer program of a policy that has one"),
    ] = SolverName.CP_SAT,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Where to write that integer program, too, for a solver of your own: a .lp or .mps file",
        ),
    ] = None,
    stated: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Parameter of the policy, see `plimsoll policy describe`; repeatable",
        ),
    ] = None,
    laws: Annotated[
        bool,
        typer.Option(
            "--laws",
            help="Check, too, that language models' replicas carry what their rows state, by step_laws; takes seconds",
        ),
    ] = False,
) -> None:
    """Solve a Problem file into a Plan file, without any server.

    Needs no database and no network. The plan is checked against every rule of the contract; one that breaks a rule is
    not written, and the exit code is 1.
    """
    question = read_problem(problem)
    try:
        refuse_slices(policy, question)
    except InvalidInput as error:
        raise CliError(error.problem) from error
    budget = Budget(
        seconds=time_limit,
        work=time_limit,
        seed=seed,
        threads=threads,
        solver=solver.value,
    )
    parameters = _parameters(policy, stated or ())
    if export is not None or solver is not SolverName.CP_SAT:
        _export(
            question,
            policy,
            export,
            replace(budget, parameters=parameters_of(policy, parameters)),
        )
    solved = run(question, policy, budget, parameters)
    deliver(question, *solved, output, laws=laws)


def _parameters(policy: str, stated: Sequence[str]) -> dict[str, Setting]:
    """What --set says, checked. Raises CliError."""
    parameters: dict[str, Setting] = {}
    for each in stated:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise CliError(f"--set {each}: must be NAME=VALUE")
        parameters[name] = _setting(value)
    try:
        parameters_of(policy, parameters)
    except InvalidInput as error:
        hint = f"see `plimsoll policy describe {policy}`"
        raise CliError(f"--set: {error}", hint=hint) from error
    return parameters


def _setting(value: str) -> Setting:
    """A number where it reads as one, else a text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


def _export(problem: Problem, policy: str, path: Path | None, budget: Budget) -> None:
    """Write the policy's integer program, if it is asked for. Raises CliError where the policy has none."""
    exporter = exporter_of(policy)
    if exporter is None:
        able = [name for name in policies() if spec_of(name).exporter is not None]
        raise CliError(
            f"policy {policy} has no integer program of its own to export or to solve otherwise",
            hint=f"--solver and --export are for --policy {' or '.join(able)}",
        )
    if path is None:
        return
    try:
        exporter.export(problem, path, budget)
    except InvalidInput as error:
        raise CliError(f"--export: {error.problem}") from error
    except OSError as error:
        raise CliError(
            f"--export: {path} cannot be written: {error.strerror}"
        ) from error


def deliver(
    problem: Problem,
    plan: Plan,
    report: PlanReport,
    output: Path | None,
    *,
    laws: bool = False,
) -> None:
    """Show a plan, and write it if it keeps every rule. Raises CliError for one that breaks any.

    `laws`: language models' capacities are audited as well.
    """
    # Whichever policy made the plan, the checker has the last word: figures in a report may be wrong as well.
    broken = violations(problem, plan) + report_violations(problem, plan, report)
    # The plan itself may go to stdout; the summary then stays out of its way.
    stream = summary_stream(output)
    _show_summary(problem, plan, report, stream)
    if laws:
        audited = audit(problem, plan)
        for line in audited.unknown:
            stream.write(f"Not checked by laws: {line}\n")
        stream.write(f"Checked by laws: {counted(audited.audited, 'row')}\n")
        broken += audited.violations
    if broken:
        _show_violations(broken, stream)
        # Shown, so that people see what is wrong; not written, so that no program takes it.
        raise CliError(
            f"the plan of {plan.policy} breaks {counted(len(broken), 'rule')}; it is not written"
        )
    if output is not None:
        write_text(output, plan_to_json(plan, report) + "\n", stream=stream)


def run(
    problem: Problem,
    policy: str,
    budget: Budget,
    parameters: Mapping[str, Setting] = MappingProxyType({}),
) -> tuple[Plan, PlanReport]:
    """The plan of a policy with these parameters. Loading and compiling the solvers is not the policy's time."""
    # Imports numba, for which `--help` does not wait.
    from solvers.policies.compile_clock import clock_without_compiling

    # Where a policy counts work, that ends it before the seconds do, so that a seed gives one plan on any machine.
    request = PlanRequest(
        policy=policy,
        problem=problem,
        observed=Observed(at_s=0.0),
        memory=None,
        budget=budget,
        parameters=parameters,
    )
    with clock_without_compiling() as now_s:
        answer = run_policy(request, now_s)
    return answer.plan, answer.report


def _show_summary(
    problem: Problem, plan: Plan, report: PlanReport, stream: TextIO
) -> None:
    gap = "" if report.gap_percent is None else f", gap {report.gap_percent:.2f} %"
    bound = report.lower_bound_usd_per_hour
    bound_text = "" if bound is None else f" (at least {usd(bound)}{gap})"
    show_line(
        f"Policy {plan.policy}: ",
        good(report.status) if report.status == "optimal" else warn(report.status),
        f" after {report.seconds:.2f} s",
        stream=stream,
    )
    show_line(f"Method {report.method or 'not stated'}", stream=stream)
    show_line(
        f"Cost {usd(report.cost_usd_per_hour)} per hour{bound_text}", stream=stream
    )
    for message in report.messages:
        show_line("Note: ", message, stream=stream)
    stream.write("\n")
    _show_gpus(problem, plan, stream)
    _show_layouts(problem, plan, stream)
    stream.write("\n")
    _show_services(problem, plan, stream)


def _show_gpus(problem: Problem, plan: Plan, stream: TextIO) -> None:
    titles = ["GPU type", ">used", ">of", ">replicas", ">sm %", ">W each", ">price/h"]
    rows = [_gpu_row(problem, plan, gpu_type) for gpu_type in problem.gpu_types]
    show_table(titles, rows, stream=stream)


def _gpu_row(problem: Problem, plan: Plan, gpu_type: GpuType) -> Cells:
    used = [gpu for gpu in plan.gpus if gpu.gpu_type == gpu_type.name]
    models = [each for each in plan.llm_replicas if each.gpu_type == gpu_type.name]
    number = sum(gpu.count for gpu in used) + sum(each.gpus for each in models)
    replicas = sum(gpu.count * len(gpu.replicas) for gpu in used)
    replicas += sum(each.count for each in models)
    # In slices SM percents are of the slices' own SMs, and say nothing of the GPU.
    uncut = [gpu for gpu in used if not any(each.slice for each in gpu.replicas)]
    uncut_number = sum(gpu.count for gpu in uncut)
    sm_percent = sum(
        gpu.count * replica.sm_percent for gpu in uncut for replica in gpu.replicas
    )
    power_w = sum(gpu.count * gpu_power_w(problem, gpu) for gpu in used)
    power_w += sum(
        each.gpus * (gpu_type.idle_w + llm_row(problem, each).power_w_per_gpu)
        for each in models
    )
    return (
        gpu_type.name,
        str(number),
        "any" if gpu_type.count is None else str(gpu_type.count),
        str(replicas),
        # Means over the used GPUs: unused ones are off, and would only hide how full the others are.
        amount(sm_percent / uncut_number if uncut_number else None, 0),
        amount(power_w / number if number else None, 0),
        usd(gpu_type.price_usd_per_hour * number, 2),
    )


def _show_layouts(problem: Problem, plan: Plan, stream: TextIO) -> None:
    """How the GPUs that are cut are to be cut, as `plimsoll-agent mig apply --layout` takes it."""
    sizes = {
        (gpu_type.name, profile.name): profile.gpcs
        for gpu_type in problem.gpu_types
        for profile in gpu_type.slices
    }
    used: Counter[tuple[str, str]] = Counter()
    for gpu in plan.gpus:
        cut = [each.slice.profile for each in gpu.replicas if each.slice]
        cut.sort(key=lambda name: (-sizes[gpu.gpu_type, name], name))
        if cut:
            used[gpu.gpu_type, ",".join(cut)] += gpu.count
    if used:
        stream.write("\n")
        rows = [(name, str(number), cut) for (name, cut), number in used.items()]
        show_table(["GPU type", ">GPUs", "layout (MIG)"], rows, stream=stream)


def _show_services(problem: Problem, plan: Plan, stream: TextIO) -> None:
    titles = ["service", "slo", ">rps", ">planned", "replicas"]
    rows = [_service_row(plan, service) for service in problem.services]
    rows += [_llm_row(plan, service) for service in problem.llm_services]
    show_table(titles, rows, stream=stream)


def _llm_row(plan: Plan, service: LlmDemand) -> Cells:
    own = [each for each in plan.llm_replicas if each.service == service.name]
    parts = [
        f"{each.count} × {each.gpu_type} TP {each.tp}, {each.max_num_batched_tokens} tokens per step"
        for each in own
    ]
    slo = service.slo
    return _row(
        plan,
        service,
        f"p{100 * slo.percentile:g} TTFT ≤ {plain(slo.ttft_ms)} ms, ITL ≤ {plain(slo.itl_ms)} ms",
        sum(each.count * each.arrival_rate_rps for each in own),
        parts,
    )


def _row(
    plan: Plan,
    service: ServiceDemand | LlmDemand,
    slo: str,
    planned_rps: float,
    parts: Sequence[str],
) -> Cells:
    """One service's line, with what the plan leaves over of it."""
    missing = [entry for entry in plan.unserved if entry.service == service.name]
    left = [f"{entry.rate_rps:.1f} unserved ({entry.reason})" for entry in missing]
    planned = amount(planned_rps)
    return (
        service.name,
        slo,
        amount(service.arrival_rate_rps),
        bad(planned) if missing else good(planned),
        "; ".join((*parts, *left)) or "-",
    )


def _service_row(plan: Plan, service: ServiceDemand) -> Cells:
    # GPUs with other neighbours or clocks are other entries of the plan: here only the replicas' own settings count.
    groups: dict[tuple[str, str, int], int] = defaultdict(int)
    planned_rps = 0.0
    for gpu, replica in replicas_of(plan, service.name):
        groups[gpu.gpu_type, _part(replica), replica.batch] += gpu.count
        planned_rps += gpu.count * replica.arrival_rate_rps
    parts = [
        f"{number} × {name} {part}, batch {batch}"
        for (name, part, batch), number in groups.items()
    ]
    slo = f"p{100 * service.percentile:g} ≤ {plain(service.slo_ms)} ms"
    return _row(plan, service, slo, planned_rps, parts)


def _part(replica: ReplicaPlan) -> str:
    """The part of a GPU that a replica has."""
    if replica.slice is None:
        return f"at {replica.sm_percent:g} %"
    return f"in {replica.slice.profile} with {counted(replica.slice.processes, 'process', 'processes')}"


def _show_violations(broken: tuple[Violation, ...], stream: TextIO) -> None:
    stream.write("\n")
    rows = [
        (bad(entry.rule), entry.severity, entry.where, entry.detail) for entry in broken
    ]
    show_table(["broken rule", "severity", "where", "detail"], rows, stream=stream)
