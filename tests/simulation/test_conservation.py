"""No request is lost or invented, and Little's law holds, in every run: whatever policy, load, fault or governor."""

import asyncio
from pathlib import Path

import pytest

from agents.sim.cluster import SimulatedCluster
from app.base.clock import ManualControlClock
from app.simulate.run.build import make_cluster, make_world, shipped_catalogue
from app.simulate.run.closed_loop import ClosedLoop
from app.simulate.run.run import jobs_of, simulate
from app.simulate.scenario.tasks import Submissions, make_submissions
from app.solver.inline import InlineSolver
from tests.simulation.random_scenarios import a_random_scenario

IN_MAKE_TEST = {2, 3, 4, 5, 9, 10, 12}
"""Between them these have seven of fifteen policies, and every fault."""
FIRST, SECOND = (
    [
        pytest.param(seed, marks=() if seed in IN_MAKE_TEST else pytest.mark.thorough)
        for seed in seeds
    ]
    for seeds in (range(6), range(6, 21))
)


@pytest.mark.parametrize("seed", FIRST)
def test_every_request_of_a_random_run_is_in_its_report_once(seed: int) -> None:
    scenario = a_random_scenario(seed)
    (job,) = jobs_of(scenario, shipped_catalogue(scenario), Path())
    result = simulate(job)
    assert sum(service.arrived for service in result.services) > 500
    for service in result.services:
        left = service.served + service.rejected + service.queued_after
        assert service.arrived + service.queued_before == left
        assert 0 <= service.in_slo <= service.served
        assert service.present_s == pytest.approx(service.sojourn_s, rel=1e-9)
        steps = result.series.services[service.service].arrival_rate_rps
        assert sum(steps) * result.series.step_s == pytest.approx(service.arrived)
    assert sorted(task.task for task in result.tasks) == [
        task.name for task in job.scenario.spec.tasks
    ]
    for task in result.tasks:
        assert 0.0 <= task.done_before <= task.done_iterations <= task.iterations
        assert (task.done_iterations == task.iterations) == (
            task.finished_s is not None
        )
        assert 0.0 <= task.ran_s <= task.until_s - task.submitted_s + 1e-9


@pytest.mark.parametrize("seed", SECOND)
def test_the_books_are_balanced_at_every_moment(seed: int) -> None:
    asyncio.run(_play(seed))


async def _play(seed: int) -> None:
    scenario = a_random_scenario(seed)
    spec, catalogue = scenario.spec, shipped_catalogue(scenario)
    plan = make_cluster(
        scenario, spec.policies[0], seed, catalogue=catalogue, folder=Path()
    )
    world = make_world(scenario, catalogue)
    closed = ClosedLoop(
        plan,
        world=world,
        clock=ManualControlClock(),
        solver=InlineSolver(),
        promises_may_break=True,
    )
    clock = closed.clock
    submissions = Submissions(
        make_submissions(spec, catalogue.points, Path()), closed.store, clock.now()
    )
    for period in range(round(spec.duration_s / spec.agent_period_s)):
        submissions.enter(period * spec.agent_period_s)
        for _ in range(4):
            await closed.pass_time(spec.agent_period_s / 4)
            assert_balanced(closed.cluster)
        await closed.step()
        assert_balanced(closed.cluster)
        await closed.tick()
        assert_balanced(closed.cluster)
    assert sum(total.served for total in closed.cluster.totals()) > 500
    assert len(closed.store.tasks.records) == len(spec.tasks)


def assert_balanced(cluster: SimulatedCluster) -> None:
    for total in cluster.totals():
        assert total.arrivals == total.served + total.rejected + total.queued
        assert sum(total.latency_buckets) == total.served >= total.in_slo
        assert total.present_s == pytest.approx(total.sojourn_s, rel=1e-9, abs=1e-6)
