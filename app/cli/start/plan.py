"""`plimsoll plan`: a Problem file in, a Plan file out; no database, no network."""

from collections import defaultdict
from pathlib import Path
from typing import Annotated, TextIO

import typer

from app.cli.common.contract_files import read_problem
from app.cli.common.errors import CliError
from app.cli.common.files import summary_stream, write_text
from app.cli.common.output import (
    BAD,
    GOOD,
    WARN,
    ColouredCell,
    amount,
    bad,
    count,
    plain,
    show_line,
    show_table,
    usd,
)
from app.solver.process import PlanRequest, run_policy
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.laws.cost import gpu_power_w
from solvers.policies.registry import policies
from solvers.policies.warm_up import warm_up
from solvers.types.outcome import Budget, PlanReport, Violation
from solvers.types.plan import Plan, replicas_of
from solvers.types.plan_json import plan_to_json
from solvers.types.problem import Problem
from solvers.types.state import Observed


def plan(
    problem: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEM", help="Problem file (contract version 1; - = stdin)"
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
            min=0.01,
            max=86_400,
            metavar="SECONDS",
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
) -> None:
    """Solve a Problem file into a Plan file, without any server.

    Needs no database and no network. The plan is checked against every rule of the contract; one that breaks a rule is
    not written, and the exit code is 1.
    """
    question = read_problem(problem)
    budget = Budget(seconds=time_limit, work=time_limit, seed=seed, threads=threads)
    deliver(question, *solve(question, policy, budget), output)


def deliver(
    problem: Problem, plan: Plan, report: PlanReport, output: Path | None
) -> None:
    """Show a plan, and write it if it keeps every rule. Raises CliError for one that breaks any."""
    broken = violations(problem, plan) + report_violations(problem, plan, report)
    # The plan itself may go to stdout; the summary then stays out of its way.
    stream = summary_stream(output)
    _show_summary(problem, plan, report, stream)
    if broken:
        _show_violations(broken, stream)
        raise CliError(
            f"the plan of {plan.policy} breaks {count(len(broken), 'rule')}; it is not written"
        )
    if output is not None:
        write_text(output, plan_to_json(plan, report) + "\n", stream=stream)


def solve(problem: Problem, policy: str, budget: Budget) -> tuple[Plan, PlanReport]:
    """The plan of a policy. Loading the solvers takes seconds, which are not the policy's."""
    warm_up(policy)
    return run(problem, policy, budget)


def run(problem: Problem, policy: str, budget: Budget) -> tuple[Plan, PlanReport]:
    """The same where the solvers are loaded."""
    # Where a policy counts work, that ends it before the seconds do, so that a seed gives one plan on any machine.
    request = PlanRequest(
        policy=policy,
        problem=problem,
        observed=Observed(at_s=0.0),
        memory=None,
        budget=budget,
    )
    answer = run_policy(request)
    return answer.plan, answer.report


def _show_summary(
    problem: Problem, plan: Plan, report: PlanReport, stream: TextIO
) -> None:
    gap = "" if report.gap_percent is None else f", gap {report.gap_percent:.2f} %"
    bound = report.lower_bound_usd_per_hour
    bound_text = "" if bound is None else f" (at least {usd(bound)}{gap})"
    show_line(
        f"Policy {plan.policy}: ",
        ColouredCell(
            text=report.status, style=GOOD if report.status == "optimal" else WARN
        ),
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
    stream.write("\n")
    _show_services(problem, plan, stream)


def _show_gpus(problem: Problem, plan: Plan, stream: TextIO) -> None:
    rows = []
    for gpu_type in problem.gpu_types:
        used = [gpu for gpu in plan.gpus if gpu.gpu_type == gpu_type.name]
        number = sum(gpu.count for gpu in used)
        replicas = sum(gpu.count * len(gpu.replicas) for gpu in used)
        sm_percent = sum(
            gpu.count * replica.sm_percent for gpu in used for replica in gpu.replicas
        )
        power_w = sum(gpu.count * gpu_power_w(problem, gpu) for gpu in used)
        rows.append(
            (
                gpu_type.name,
                str(number),
                "any" if gpu_type.count is None else str(gpu_type.count),
                str(replicas),
                amount(sm_percent / number if number else None, 0),
                amount(power_w / number if number else None, 0),
                usd(gpu_type.price_usd_per_hour * number, 2),
            )
        )
    figures = ("used", "of", "replicas", "sm %", "W each", "price/h")
    show_table(
        ["GPU type", *(f">{title}" for title in figures)],
        rows,
        stream=stream,
    )


def _show_services(problem: Problem, plan: Plan, stream: TextIO) -> None:
    rows = []
    for service in problem.services:
        groups: dict[tuple[str, float, int], int] = defaultdict(int)
        for gpu, replica in replicas_of(plan, service.name):
            groups[gpu.gpu_type, replica.sm_percent, replica.batch] += gpu.count
        planned = sum(
            gpu.count * replica.arrival_rate_rps
            for gpu, replica in replicas_of(plan, service.name)
        )
        missing = [entry for entry in plan.unserved if entry.service == service.name]
        rows.append(
            (
                service.name,
                f"p{100 * service.percentile:g} ≤ {plain(service.slo_ms)} ms",
                amount(service.arrival_rate_rps),
                ColouredCell(text=amount(planned), style=BAD if missing else GOOD),
                "; ".join(
                    [
                        f"{number} × {name} at {sm:g} %, batch {batch}"
                        for (name, sm, batch), number in groups.items()
                    ]
                    + [
                        f"{entry.rate_rps:.1f} unserved ({entry.reason})"
                        for entry in missing
                    ]
                )
                or "-",
            )
        )
    headings = [
        "service",
        "slo",
        ">rps",
        ">planned",
        "replicas",
    ]
    show_table(headings, rows, stream=stream)


def _show_violations(broken: tuple[Violation, ...], stream: TextIO) -> None:
    stream.write("\n")
    rows = [
        (
            bad(entry.rule),
            entry.severity,
            entry.where,
            entry.detail,
        )
        for entry in broken
    ]
    show_table(
        [
            "broken rule",
            "severity",
            "where",
            "detail",
        ],
        rows,
        stream=stream,
    )
