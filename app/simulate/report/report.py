"""The report of a simulation: every run, and what the seeds say together of each policy; as JSON."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import msgspec
from scipy.special import stdtrit

from app.simulate.figures import SeedMean
from app.simulate.report.timelines import mean_known
from app.simulate.run.results import FailedRun, RunResult, TaskResult
from app.simulate.scenario.scenario import SimulationScenario

VERSION = 1
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSummary:
    """One service under one policy, over all seeds."""

    service: str
    attainment: SeedMean | None
    """None where some run had no requests."""
    p99_ms: SeedMean | None
    cost_usd: SeedMean


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """All tasks under one policy, over all seeds."""

    finished: SeedMean
    """Share of the submitted ones."""
    completion_s: SeedMean | None
    """Mean from submission to end, of those that finished; None where none did in some run."""
    in_time: SeedMean | None
    """Share of those that met their deadline, or missed it; None where there are none in some run."""
    undecided: SeedMean
    """Tasks with a deadline that was neither met nor missed when the run ended."""
    work_gpu_hours: SeedMean
    """What all tasks did in the time that counts, in hours of GPUs that do nothing else."""
    cost_usd: SeedMean
    """GPUs on which only tasks ran cost this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSummary:
    """A node's loss under one policy, over all seeds: what was late, lost or rejected in the 60 s after it."""

    at_s: float
    late: SeedMean | None
    """Share of all services' requests; None where in some run none was lost then, or there was none."""
    worst: SeedMean | None
    """Share of the requests of the service for which it is highest in each run."""


def violations(run: RunResult) -> float:
    """Share of all judged requests that were late, rejected or wait though they are late; 0 where there are none."""
    judged = sum(service.judged for service in run.services)
    return (
        1.0 - sum(service.in_slo for service in run.services) / judged
        if judged
        else 0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """One policy over all seeds."""

    policy: str
    cost_usd: SeedMean
    handover_usd: SeedMean
    """The part of it of GPUs that served on while their replicas moved."""
    memory_usd: SeedMean
    gpu_hours: SeedMean
    energy_kwh: SeedMean
    violations: SeedMean
    """Share of all requests that were late or rejected, or wait at the end though they are late."""
    worst_attainment: SeedMean | None
    """In each run the service with the lowest attainment counts."""
    replicas_started: SeedMean
    services: tuple[ServiceSummary, ...]
    tasks: TaskSummary | None = None
    """None where some run has none."""
    node_losses: tuple[LossSummary, ...] = ()
    """One for each moment at which nodes were lost."""
    carbon_g: SeedMean | None = None
    """None where the scenario has no grid intensity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """What a simulation came to."""

    scenario: Mapping[str, Any]
    """As it was run, defaults filled in."""
    runs: tuple[RunResult, ...]
    """Seed by seed, policies in the scenario's order."""
    policies: tuple[PolicySummary, ...]
    failed: tuple[FailedRun, ...] = ()
    """Runs that came to nothing; no figure has anything of them."""
    notes: tuple[str, ...] = ()
    """What was known before the runs: SLOs that no GPU of the fleet can keep, traces that end half-way, ..."""
    version: int = VERSION


def make_report(
    scenario: SimulationScenario,
    outcomes: Iterable[RunResult | FailedRun],
    *,
    notes: Sequence[str] = (),
) -> SimulationReport:
    """The report of these runs, which may be less than the scenario asks for; its policies in the scenario's order."""
    known = tuple(outcomes)
    done = tuple(run for run in known if isinstance(run, RunResult))
    # The scenario's order gives each policy its colour; runs of a policy that it does not name come after.
    found = {run.policy for run in done}
    listed = (run.label for run in scenario.spec.policies)
    names = dict.fromkeys(
        (*(label for label in listed if label in found), *(run.policy for run in done))
    )
    return SimulationReport(
        scenario=scenario.model_dump(mode="json"),
        runs=done,
        policies=tuple(
            _summary(name, [run for run in done if run.policy == name])
            for name in names
        ),
        failed=tuple(run for run in known if isinstance(run, FailedRun)),
        notes=tuple(notes),
    )


def seeds_note(report: SimulationReport, policy: str) -> str:
    """`2 of 3 seeds` where runs of a policy failed, so that its figures are of fewer than the others'; else nothing."""
    failed = sum(run.policy == policy for run in report.failed)
    done = sum(run.policy == policy for run in report.runs)
    return f"{done} of {done + failed} seeds" if failed else ""


def report_to_json(report: SimulationReport) -> bytes:
    """As a file. Equal scenarios give equal bytes but for `seconds`, how long each run's decisions took."""
    # Wall seconds stand apart at the end, so that two reports can be compared but for their last part.
    bare = replace(
        report, runs=tuple(replace(run, decision_seconds=()) for run in report.runs)
    )
    document = msgspec.to_builtins(bare)
    for run in document["runs"]:
        del run["decision_seconds"]
    seconds = [
        {"policy": run.policy, "seed": run.seed, "decisions": run.decision_seconds}
        for run in report.runs
    ]
    return (
        msgspec.json.format(
            msgspec.json.encode({**document, "seconds": seconds}), indent=1
        )
        + b"\n"
    )


def estimate(values: Sequence[float]) -> SeedMean:
    """Mean and confidence interval of independent values, at least one."""
    if len(values) < 2:
        return SeedMean(mean=values[0], half_width=None)
    # Student's t: with a few seeds the normal distribution would make the interval far too narrow.
    factor = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2.0))
    return SeedMean(
        mean=fmean(values),
        half_width=factor * stdev(values) / math.sqrt(len(values)),
    )


def estimate_known(values: Sequence[float | None]) -> SeedMean | None:
    """The estimate, or None where a value is not known."""
    # A mean over some seeds only could not be compared with those of the others.
    known = [value for value in values if value is not None]
    return estimate(known) if len(known) == len(values) else None


def _summary(policy: str, runs: Sequence[RunResult]) -> PolicySummary:
    def over(value: Callable[[RunResult], float]) -> SeedMean:
        return estimate([value(run) for run in runs])

    return PolicySummary(
        policy=policy,
        cost_usd=over(lambda run: run.cost_usd),
        handover_usd=over(lambda run: run.handover_usd),
        memory_usd=over(lambda run: run.memory_usd),
        gpu_hours=over(lambda run: sum(run.gpu_hours.values())),
        energy_kwh=over(lambda run: run.energy_kwh),
        violations=over(violations),
        worst_attainment=estimate_known([_worst(run) for run in runs]),
        replicas_started=over(lambda run: run.moves.replicas_started),
        services=tuple(_service(runs, place) for place in range(len(runs[0].services))),
        tasks=_tasks(runs) if all(run.tasks for run in runs) else None,
        node_losses=tuple(_losses(runs)),
        carbon_g=estimate_known([run.carbon_g for run in runs]),
    )


def _service(runs: Sequence[RunResult], place: int) -> ServiceSummary:
    mine = [run.services[place] for run in runs]
    return ServiceSummary(
        service=mine[0].service,
        attainment=estimate_known([each.attainment for each in mine]),
        p99_ms=estimate_known([each.latency_ms["p99"] for each in mine]),
        cost_usd=estimate([each.cost_usd for each in mine]),
    )


def _tasks(runs: Sequence[RunResult]) -> TaskSummary:
    return TaskSummary(
        finished=estimate(
            [fmean(task.finished_s is not None for task in run.tasks) for run in runs]
        ),
        completion_s=estimate_known(
            [mean_known([task.completion_s for task in run.tasks]) for run in runs]
        ),
        in_time=estimate_known(
            [mean_known([task.is_in_time for task in run.tasks]) for run in runs]
        ),
        undecided=estimate([sum(map(_is_undecided, run.tasks)) for run in runs]),
        work_gpu_hours=estimate(
            [sum(task.counted_gpu_hours for task in run.tasks) for run in runs]
        ),
        cost_usd=estimate([run.tasks_usd for run in runs]),
    )


def _losses(runs: Sequence[RunResult]) -> Iterator[LossSummary]:
    moments = sorted({loss.at_s for run in runs for loss in run.node_losses})
    for at_s in moments:
        # Of several nodes that are lost at once, the 60 s after are the same.
        found = [
            next((loss for loss in run.node_losses if loss.at_s == at_s), None)
            for run in runs
        ]
        yield LossSummary(
            at_s=at_s,
            late=estimate_known([each.late if each else None for each in found]),
            worst=estimate_known([each.worst if each else None for each in found]),
        )


def _is_undecided(task: TaskResult) -> bool:
    return task.deadline_s is not None and task.is_in_time is None


def _worst(run: RunResult) -> float | None:
    return min(
        (each.attainment for each in run.services if each.attainment is not None),
        default=None,
    )
