"""One run: a stream of jobs, a dispatcher that is asked every 50 ms, and the simulated GPUs.

    every STEP_S    what was done is learned from → new jobs get their settings and queue → the dispatcher's round →
                    its batches start; one that cannot goes back to it

The queue is bounded: a job that finds it full is rejected. Nothing depends on how long the machine takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.sim.truth.truth import Truth
from app.simulate.scenario.carbon import JOULES_PER_KWH, GridIntensity
from bench.papers.jobs.dispatchers import Dispatcher
from bench.papers.jobs.report import Course, JobsReport, judge
from bench.papers.jobs.requests import JobRequest
from bench.papers.jobs.settle import Settler
from bench.papers.jobs.world import Done, JobWorld, SimGpu
from solvers.types.jobs import Job, fleet_load
from solvers.types.state import GpuId

STEP_S = 0.05
"""OLTunes dispatches every 50 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRun:
    """What a run consists of."""

    policy: str
    gpus: tuple[SimGpu, ...]
    requests: tuple[JobRequest, ...]
    """In the order of their submission."""
    length_s: float
    warm_up_s: float = 0.0
    seed: int = 0
    launch_s: float = 5.0
    """From the start of a container until it is ready."""
    preloaded: tuple[str, ...] = ()
    """Networks of which every GPU has an idle container at the beginning."""
    queue_limit: int = 1000
    grid: GridIntensity | None = None


@dataclass(slots=True, kw_only=True)
class _Notes:
    """What the loop notes."""

    done: dict[str, Done] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    counted_energy_j: float = 0.0
    carbon_g: float = 0.0


def run_jobs(
    run: JobsRun, truth: Truth, dispatcher: Dispatcher, settler: Settler
) -> JobsReport:
    """The report of a run. The same run gives the same report."""
    world = JobWorld(truth, run.gpus, launch_s=run.launch_s, seed=run.seed)
    world.preload(run.preloaded)
    notes = _Notes()
    coming = list(reversed(run.requests))
    warm_busy: dict[GpuId, float] = {}
    for step in range(1, round(run.length_s / STEP_S) + 1):
        now_s = step * STEP_S
        before_j = world.energy_j()
        done = world.advance(now_s)
        _note_energy(run, notes, world.energy_j() - before_j, now_s)
        notes.done.update((each.job.name, each) for each in done)
        settler.learn(done)
        new: list[JobRequest] = []
        while coming and coming[-1].submitted_s <= now_s:
            new.append(coming.pop())
        _submit(run, notes, new, dispatcher, settler, world)
        for batch in dispatcher.step(world.views(), now_s):
            if not world.start(batch):
                dispatcher.failed(batch)
        if now_s <= run.warm_up_s:
            warm_busy = world.busy_sm_s()
    return _report(run, notes, world, settler, warm_busy)


def _note_energy(run: JobsRun, notes: _Notes, energy_j: float, now_s: float) -> None:
    if now_s > run.warm_up_s:
        notes.counted_energy_j += energy_j
        notes.carbon_g += (
            run.grid.grams(energy_j, now_s) if run.grid is not None else 0.0
        )


def _submit(
    run: JobsRun,
    notes: _Notes,
    new: Sequence[JobRequest],
    dispatcher: Dispatcher,
    settler: Settler,
    world: JobWorld,
) -> None:
    if not new:
        return
    load = fleet_load(world.views(), len(dispatcher.queues))
    free = run.queue_limit - len(dispatcher.queues)
    jobs: list[Job] = []
    for request in new:
        job = settler.job(request, load) if len(jobs) < free else None
        if job is None:
            notes.rejected.add(request.name)
        else:
            jobs.append(job)
    dispatcher.submit(jobs)


def _report(
    run: JobsRun,
    notes: _Notes,
    world: JobWorld,
    settler: Settler,
    warm_busy: dict[GpuId, float],
) -> JobsReport:
    course = Course(
        requests=[one for one in run.requests if one.submitted_s <= run.length_s],
        done=notes.done,
        rejected=frozenset(notes.rejected),
        warm_up_s=run.warm_up_s,
        end_s=run.length_s,
    )
    counted_s = run.length_s - run.warm_up_s
    shares = [
        100.0 * (busy - warm_busy.get(key, 0.0)) / counted_s
        for key, busy in world.busy_sm_s().items()
    ]
    return JobsReport(
        policy=run.policy,
        seed=run.seed,
        counted_s=counted_s,
        jobs=judge(course),
        utilisation_percent=sum(shares) / len(shares),
        utilisation_spread_percent=max(shares) - min(shares),
        energy_kwh=notes.counted_energy_j / JOULES_PER_KWH,
        carbon_g=None if run.grid is None else notes.carbon_g,
        launches=world.launches,
        trainings=settler.foresight.trainings,
    )
