"""A simulation's report as tables: one line for each policy, then one for each service under each policy."""

from typing import TextIO

from app.cli.output import Cells, Heading, amount, show_table
from app.simulate.report import Estimate, PolicySummary, Report


def show_report(report: Report, stream: TextIO) -> None:
    """Print what the seeds say together; ± is the 95 % confidence interval over them."""
    figures = ("USD", "GPU hours", "kWh", "late %", "worst service %", "starts")
    rows = [_policy(summary) for summary in report.policies]
    show_table([Heading("policy"), *(Heading(title, right=True) for title in figures)], rows, stream=stream)
    stream.write("\n")
    show_table(
        [Heading("service"), Heading("policy"), *(Heading(t, right=True) for t in ("USD", "in SLO %", "p99 ms"))],
        [
            (
                service.service,
                summary.policy,
                _estimate(service.cost_usd, digits=3),
                _estimate(service.attainment, digits=2, scale=100.0),
                _estimate(service.p99_ms, digits=0),
            )
            for place in range(len(report.policies[0].services))
            for summary in report.policies
            for service in [summary.services[place]]
        ],
        stream=stream,
    )


def _policy(summary: PolicySummary) -> Cells:
    return (
        summary.policy,
        _estimate(summary.cost_usd, digits=3),
        _estimate(summary.gpu_hours, digits=2),
        _estimate(summary.energy_kwh, digits=3),
        _estimate(summary.violations, digits=2, scale=100.0),
        _estimate(summary.worst_attainment, digits=2, scale=100.0),
        _estimate(summary.replicas_started, digits=0),
    )


def _estimate(value: Estimate | None, *, digits: int, scale: float = 1.0) -> str:
    if value is None:
        return "-"
    spread = "" if value.half_width is None else f" ±{amount(scale * value.half_width, digits)}"
    return amount(scale * value.mean, digits) + spread
