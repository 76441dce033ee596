"""Runs of a scenario: every policy with every seed, each in the production loop on a clock of its own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from app.base.clock import ManualControlClock
from app.base.logs import nothing_logged
from app.catalogue.make_rows import make_rows
from app.simulate.run.build import Catalogue, make_cluster, make_world
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.simulate.run.foresight import foreseen, with_true_times
from app.simulate.run.loss_notes import LossNotes
from app.simulate.run.notes import notes_on
from app.simulate.run.record import Recorder
from app.simulate.run.results import RunResult
from app.simulate.run.timer import Timer
from app.simulate.scenario.carbon import read_grid_intensity
from app.simulate.scenario.parts import PolicyRun
from app.simulate.scenario.scenario import ScenarioSpec, SimulationScenario
from app.simulate.scenario.tasks import (
    Submissions,
    make_submissions,
    reference_times_ms,
)
from app.solver.inline import InlineSolver
from app.solver.process import PlanAnswer, PlanRequest
from solvers.forecast.room import Room

_PLANS_KEPT = 8
"""Each with the problem that it solves: of a thousand GPUs some MB. What counts in the end are the targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """One run that is wanted. Carries all that it needs, so that another process can do it."""

    scenario: SimulationScenario
    run: PolicyRun
    seed: int
    catalogue: Catalogue
    folder: Path


class SeriesSolver(InlineSolver):
    """For one run alone: its plans follow each other, so that a policy may go on with what it worked out before."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        """The policy's answer. Raises SolverUnavailable."""
        return await super().make_plan(
            replace(request, budget=replace(request.budget, is_series=True))
        )


def jobs_of(
    scenario: SimulationScenario,
    catalogue: Catalogue,
    folder: Path,
) -> tuple[SimulationRun, ...]:
    """Every policy with every seed, seed by seed."""
    return tuple(
        SimulationRun(
            scenario=scenario,
            run=run,
            seed=seed,
            catalogue=catalogue,
            folder=folder,
        )
        # Seed by seed: a run that stops half-way has complete comparisons of some seeds.
        for seed in scenario.spec.seeds
        for run in scenario.spec.policies
    )


def check(job: SimulationRun) -> tuple[str, ...]:
    """Before long work: read what the run would read, and say what will be otherwise than one may expect.

    Raises InvalidRequest for what the run could not do.
    """
    plan = make_cluster(
        job.scenario, job.run, job.seed, catalogue=job.catalogue, folder=job.folder
    )
    submissions = make_submissions(job.scenario.spec, job.catalogue.points, job.folder)
    return tuple(notes_on(job.scenario.spec, plan, submissions, job.folder))


def simulate(
    job: SimulationRun, *, passed: Callable[[float], None] = lambda _simulated_s: None
) -> RunResult:
    """Do one run, here and now; `passed` is told, now and then, how many seconds have been simulated.

    What would be an alarm on a real cluster is in the results, not in the log.
    """
    with nothing_logged():
        return asyncio.run(_simulate(job, passed))


async def _simulate(job: SimulationRun, passed: Callable[[float], None]) -> RunResult:
    spec = job.scenario.spec
    plan = make_cluster(
        job.scenario, job.run, job.seed, catalogue=job.catalogue, folder=job.folder
    )
    world, clock = make_world(job.scenario, job.catalogue), ManualControlClock()
    room = job.run.room
    # Before the loop is built: its store takes the points that the plan has.
    if job.run.clairvoyant:
        plan = replace(
            plan, points=tuple(with_true_times(points, world) for points in plan.points)
        )
    closed = ClosedLoop(
        plan,
        world=world,
        clock=clock,
        solver=SeriesSolver(make_rows=make_rows),
        promises_may_break=True,
        room=Room(room) if room is not None else None,
    )
    # At the default period a day has 17,000 ticks, each with its problem.
    closed.store.max_plans = _PLANS_KEPT
    if job.run.clairvoyant:
        closed.loop.forecast = foreseen(
            plan, clock.now_s(), job.run.foresight_s, room=1.0 if room is None else room
        )
    tasks = make_submissions(spec, job.catalogue.points, job.folder)
    submissions = Submissions(tasks, closed.store, clock.now())
    recorder = _make_recorder(job, plan, closed)

    def reach(now_s: float) -> None:
        submissions.enter(now_s)
        passed(now_s)

    losses = LossNotes(
        closed.cluster,
        recorder.services,
        plan.scenario.loads,
        faults=plan.scenario.faults,
        warm_up_s=spec.warm_up_s,
    )
    await _play(closed, recorder, losses, spec, reach)
    result = recorder.result(job.run.label, job.seed)
    return replace(result, node_losses=tuple(losses.results))


def _make_recorder(
    job: SimulationRun,
    plan: ClusterPlan,
    closed: ClosedLoop,
) -> Recorder:
    spec, now = job.scenario.spec, closed.clock.now()
    grid = None
    if spec.grid_intensity is not None:
        grid = read_grid_intensity(job.folder / spec.grid_intensity)
    return Recorder(
        cluster=closed.cluster,
        store=closed.store,
        clock=closed.clock,
        # By name, as every report lists them, whatever the scenario's order.
        services=tuple(sorted(plan.services, key=lambda service: service.name)),
        loads=plan.scenario.loads,
        gpu_types=plan.gpu_types,
        start=now,
        begun_at=now + timedelta(seconds=spec.warm_up_s),
        step_s=spec.step_s,
        reference_ms=reference_times_ms(spec, job.catalogue.points),
        grid=grid,
    )


async def _play(
    closed: ClosedLoop,
    recorder: Recorder,
    losses: LossNotes,
    spec: ScenarioSpec,
    reach: Callable[[float], None],
) -> None:
    """Agents act every agent period, the loop every period and when it is woken, and the recorder notes every step.

    Of what falls together agents come first, then the recorder, then the loop: what it decides counts from then on.
    `reach` is told every such moment before.
    """
    begun_s = closed.clock.now_s()
    agents = Timer(spec.agent_period_s)
    steps = Timer(spec.step_s, first_s=spec.warm_up_s)
    # A whole number but for rounding: the scenario's checks have seen to it.
    last = round((spec.duration_s - spec.warm_up_s) / spec.step_s)
    while steps.rung <= last:
        due_s = (agents.due_s, closed.ticks.due_s, steps.due_s)
        now_s = min(due_s if losses.due_s is None else (*due_s, losses.due_s))
        await closed.pass_time(begun_s + now_s - closed.clock.now_s())
        reach(now_s)
        losses.note(now_s)
        if agents.rings(now_s):
            await closed.step()
            recorder.look()
        if steps.rings(now_s):
            # The first ring is the end of the warm-up, every other one that of a step.
            recorder.note() if steps.rung > 1 else recorder.begin()
        outcome = await closed.tick_if_due()
        if outcome is not None:
            recorder.look()
            if steps.rung:
                recorder.outcomes.append(outcome)
