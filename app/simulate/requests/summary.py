"""What a simulation came to, in the figures that `plimsoll simulate` prints."""

from app.api.decisions.simulation_views import (
    FigureView,
    PolicyFiguresView,
    ServiceFiguresView,
    SimulationSummaryView,
)
from app.simulate.figures import SeedMean, describe_estimate, describe_share
from app.simulate.report.compare import missed
from app.simulate.report.html_sentences import headline
from app.simulate.report.report import (
    PolicySummary,
    ServiceSummary,
    SimulationReport,
    seeds_note,
)
from app.simulate.scenario.scenario import ScenarioSpec


def summary_of(report: SimulationReport, spec: ScenarioSpec) -> SimulationSummaryView:
    """The summary of a report with at least one run."""
    clairvoyant = [run.label for run in spec.policies if run.clairvoyant]
    return SimulationSummaryView(
        # The first sentence names the best policy; the others compare it with each other one, as the page shows.
        headline=headline(report, clairvoyant=clairvoyant)[0],
        policies=[_policy(report, each) for each in report.policies],
        notes=list(report.notes),
        failed=[str(run) for run in report.failed],
    )


def _policy(report: SimulationReport, summary: PolicySummary) -> PolicyFiguresView:
    return PolicyFiguresView(
        policy=summary.policy,
        note=seeds_note(report, summary.policy),
        cost_usd=_figure(summary.cost_usd),
        gpu_hours=_figure(summary.gpu_hours),
        energy_kwh=_figure(summary.energy_kwh),
        violations=_share(summary.violations),
        worst_attainment=None
        if summary.worst_attainment is None
        else _share(summary.worst_attainment),
        replicas_started=_figure(summary.replicas_started, digits=0),
        misses=list(missed(report, summary)),
        services=[_service(each) for each in summary.services],
    )


def _service(summary: ServiceSummary) -> ServiceFiguresView:
    return ServiceFiguresView(
        service=summary.service,
        cost_usd=_figure(summary.cost_usd),
        attainment=None if summary.attainment is None else _share(summary.attainment),
        p99_ms=None if summary.p99_ms is None else _figure(summary.p99_ms, digits=0),
    )


def _figure(value: SeedMean, *, digits: int | None = None) -> FigureView:
    return FigureView(
        mean=value.mean,
        half_width=value.half_width,
        words=describe_estimate(value, digits=digits),
    )


def _share(value: SeedMean) -> FigureView:
    return FigureView(
        mean=value.mean,
        half_width=value.half_width,
        words=describe_share(value, digits=2),
    )
