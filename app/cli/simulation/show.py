"""A simulation's report as tables: a line for each policy, one for each service under it, and one for all its tasks."""

from typing import TextIO

from app.cli.common.output import Cells, show_table
from app.simulate.figures import describe_estimate, describe_share, duration
from app.simulate.report.report import PolicySummary, SimulationReport, seeds_note
from app.simulate.scenario.scenario import PERFECT

_NO_BOUND = (
    "No perfect run kept every SLO on every seed: requests that come before the first replicas are ready count as late "
    "without warm_up_s."
)
MAX_LOSSES = 40
"""Lines of node losses; the report as JSON has all of them."""


def show_report(report: SimulationReport, stream: TextIO) -> None:
    """Print what the seeds say together; ± is the 95 % confidence interval over them.

    `late`: requests that were late, rejected or are overdue; `worst`: in SLO, of the service that is worst off.
    """
    show_table(
        ["policy", ">USD", ">GPU h", ">kWh", ">late %", ">worst %", ">starts"],
        [
            _policy(summary, seeds_note(report, summary.policy))
            for summary in report.policies
        ],
        stream=stream,
    )
    _show_carbon(report, stream)
    _show_services(report, stream)
    if any(summary.node_losses for summary in report.policies):
        _show_losses(report, stream)
    if any(summary.tasks for summary in report.policies):
        _show_tasks(report, stream)


def show_bound(report: SimulationReport, stream: TextIO) -> None:
    """How many times as much as the cheapest perfect run that keeps every SLO the other policies cost."""
    # A mean over fewer seeds than the others have is no bound of theirs.
    missing = {run.policy for run in report.runs if run.misses_an_slo}
    missing |= {run.policy for run in report.failed}
    costs = {each.policy: each.cost_usd.mean for each in report.policies}
    keeping = costs.keys() & PERFECT.keys() - missing
    if not keeping:
        stream.write(f"\n{_NO_BOUND}\n")
        return
    best = min(sorted(keeping), key=lambda name: costs[name])
    stream.write(f"\nThe cheapest perfect system that keeps every SLO: {best}\n")
    rows = [
        (name, _times(usd, costs[best]), "no" if name in missing else "yes")
        for name, usd in costs.items()
        if name not in PERFECT
    ]
    show_table(["policy", ">× its USD", "keeps every SLO"], rows, stream=stream)


def _times(usd: float, of_usd: float) -> str:
    return f"{usd / of_usd:.2f}" if of_usd else "-"


def _show_services(report: SimulationReport, stream: TextIO) -> None:
    stream.write("\n")
    # By service, so that its line under one policy stands next to the one under the other.
    rows = [
        (
            service.service,
            summary.policy,
            describe_estimate(service.cost_usd),
            describe_share(service.attainment, digits=2),
            describe_estimate(service.p99_ms, digits=0),
        )
        for place in range(len(report.policies[0].services))
        for summary in report.policies
        for service in [summary.services[place]]
    ]
    titles = ["service", "policy", ">USD", ">in SLO %", ">p99 ms"]
    show_table(titles, rows, stream=stream)


def _show_carbon(report: SimulationReport, stream: TextIO) -> None:
    """One line, where the scenario has a grid intensity."""
    known = [
        (summary.policy, summary.carbon_g)
        for summary in report.policies
        if summary.carbon_g is not None
    ]
    if known:
        stream.write(
            f"g CO2e: {', '.join(f'{policy} {describe_estimate(grams)}' for policy, grams in known)}\n"
        )


def _show_losses(report: SimulationReport, stream: TextIO) -> None:
    """By moment, so that one policy's line stands next to the other's; `late` and `worst` are those of 60 s."""
    stream.write("\n")
    losses = sorted(
        (
            (loss, summary.policy)
            for summary in report.policies
            for loss in summary.node_losses
        ),
        key=lambda each: each[0].at_s,
    )
    rows = [
        (
            duration(loss.at_s),
            policy,
            describe_share(loss.late, digits=2),
            describe_share(loss.worst, digits=2),
        )
        for loss, policy in losses[:MAX_LOSSES]
    ]
    show_table(
        ["node lost at", "policy", ">late % in 60 s", ">worst service %"],
        rows,
        stream=stream,
    )
    if (left_out := len(losses) - MAX_LOSSES) > 0:
        stream.write(f"{left_out} more in the report (-o)\n")


def _show_tasks(report: SimulationReport, stream: TextIO) -> None:
    stream.write("\n")
    figures = (">finished %", ">mean min", ">in time %", ">GPU h of work", ">own USD")
    show_table(
        ["tasks under", *figures],
        [
            (
                summary.policy,
                describe_share(tasks.finished, digits=1),
                describe_estimate(tasks.completion_s, digits=1, scale=1.0 / 60.0),
                describe_share(tasks.in_time, digits=0),
                describe_estimate(tasks.work_gpu_hours),
                describe_estimate(tasks.cost_usd),
            )
            for summary in report.policies
            if (tasks := summary.tasks)
        ],
        stream=stream,
    )


def _policy(summary: PolicySummary, note: str) -> Cells:
    return (
        f"{summary.policy} ({note})" if note else summary.policy,
        describe_estimate(summary.cost_usd),
        describe_estimate(summary.gpu_hours),
        describe_estimate(summary.energy_kwh),
        describe_share(summary.violations, digits=2),
        describe_share(summary.worst_attainment, digits=2),
        describe_estimate(summary.replicas_started, digits=0),
    )
