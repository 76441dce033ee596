"""What is known of a scenario before its runs, and would be taken for a policy's fault afterwards. In words."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.base.plurals import counted
from agents.sim.load.arrivals import ArrivalProcess
from app.answers.feasible import infeasibility
from app.simulate.figures import duration
from app.simulate.run.closed_loop import ClusterPlan
from app.simulate.scenario.scenario import ScenarioSpec
from app.simulate.scenario.tasks import TimedTask, jobs_in


def notes_on(
    spec: ScenarioSpec,
    plan: ClusterPlan,
    submissions: Sequence[TimedTask],
    folder: Path,
) -> Iterator[str]:
    """SLOs that no GPU of the fleet can keep; replicas that are ready late; traces and job lists that are cut."""
    for service in plan.services:
        # How language models may run is found out while the run goes on.
        if service.llm is not None:
            continue
        reason = infeasibility(service, plan.gpu_types, plan.points)
        if reason is not None:
            yield f"service {service.name}: {reason}"
    yield from _late_starts(spec)
    yield from _ended_traces(spec, plan)
    yield from _cut_lists(spec, submissions, folder)


def _late_starts(spec: ScenarioSpec) -> Iterator[str]:
    # The slowest pool: a plan may use any of them first.
    launch_s = max(pool.launch_s for pool in spec.fleet)
    if spec.warm_up_s < launch_s:
        yield (
            f"warm_up_s, {spec.warm_up_s:g} s, is shorter than launch_s, {launch_s:g} s: until the first replicas are "
            "ready, requests count that no policy can serve"
        )


def _ended_traces(spec: ScenarioSpec, plan: ClusterPlan) -> Iterator[str]:
    for service in spec.services:
        load = plan.scenario.loads.get(service.name)
        if service.load.trace is None or not isinstance(load, ArrivalProcess):
            continue
        end_s = float(load.rates.edges_s[-1])
        if end_s < spec.duration_s:
            yield (
                f"service {service.name}: {service.load.trace.file} ends at {duration(end_s)} of "
                f"{duration(spec.duration_s)}; nothing arrives after that"
            )


def _cut_lists(
    spec: ScenarioSpec,
    submissions: Sequence[TimedTask],
    folder: Path,
) -> Iterator[str]:
    for entry in spec.task_lists:
        jobs = jobs_in(entry, folder)
        # Tasks of a list are called by its name and a number; no other task may be.
        taken = sum(
            each.task.name.rpartition("-")[0] == entry.name for each in submissions
        )
        if taken < jobs:
            yield f"list {entry.name}: {counted(taken, 'task')} of the {counted(jobs, 'job')} in {entry.file}"
