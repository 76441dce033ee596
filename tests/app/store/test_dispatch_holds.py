"""When nothing is dispatched though jobs wait and a GPU is free."""

import asyncio
from dataclasses import replace

import pytest

from app.store.store import PlanRecord, PolicyGroup, PolicySettings
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, Plan
from solvers.types.state import Mode
from tests.app.fleets import a_service
from tests.app.job_places import SETTINGS, Place, a_job, bound_gpu

IN_GROUP = replace(
    SETTINGS,
    groups=(
        PolicyGroup(name="web", policy="joint", projects=("web",), mode=Mode.APPROVE),
    ),
)


def propose(place: Place, *gpus: BoundGpu, policy: str = "oltunes") -> int:
    """A plan that the tick made from the target and did not push."""
    target = place.target
    assert target is not None
    snapshot = asyncio.run(place.store.load_snapshot(place.clock.now()))
    record = PlanRecord(
        at=snapshot.at,
        state="proposed",
        policy_version=snapshot.settings.version,
        catalogue_revision=snapshot.state.catalogue_revision,
        plan=Plan(policy=policy),
        report=PlanReport(status="greedy", cost_usd_per_hour=0.0),
        bound=BoundPlan(
            generation=target.generation + 1,
            parent=target.generation,
            policy=policy,
            gpus=gpus,
        ),
        problem=None,
    )
    return asyncio.run(place.store.record_plan(record))


def with_service(
    mode: Mode, settings: PolicySettings = SETTINGS, *, project: str = "default"
) -> Place:
    place = Place(settings=settings)
    place.store.put_services([replace(a_service(), mode=mode, project=project)])
    place.submit(a_job("a"))
    return place


@pytest.mark.parametrize(
    "place",
    [with_service(Mode.APPROVE), with_service(Mode.AUTO, IN_GROUP, project="web")],
    ids=["service", "group"],
)
def test_nothing_is_dispatched_while_a_plan_waits_for_a_person(place: Place) -> None:
    waiting = propose(
        place, bound_gpu(has_replica=True), policy=place.store.settings.planner
    )
    assert not place.round()
    assert place.store.plans[waiting].state == "proposed"
    place.store.reject(waiting)
    assert place.round()
    assert set(place.tasks) == {"a"}


def test_the_first_plan_of_another_policy_may_still_be_approved() -> None:
    place = Place(
        settings=replace(SETTINGS, approve_switch=True, groups=IN_GROUP.groups)
    )
    place.submit(a_job("a"))
    waiting = propose(place, policy=place.store.settings.planner)
    assert not place.round()
    # The switch was taken back: that plan is not waited for any more.
    place.store.settings = replace(SETTINGS, approve_switch=True)
    assert place.round()
    assert place.store.plans[waiting].state == "lost"


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.AUTO])
def test_plans_for_which_nobody_waits_hold_no_job(mode: Mode) -> None:
    # Advice is not to be approved; in mode auto it is what a push that failed left.
    place = with_service(mode)
    propose(place, bound_gpu(has_replica=True))
    assert place.round()


def test_a_plan_that_could_not_be_pushed_any_more_holds_no_job() -> None:
    place = with_service(Mode.APPROVE)
    propose(place, bound_gpu(has_replica=True))
    place.store.put_services([a_service("other")])  # the catalogue changes
    assert place.round()


def test_after_an_outage_jobs_stay_until_their_nodes_had_time_to_call() -> None:
    place = Place("n1", "n2")
    place.submit(a_job("a", iterations=10**6))
    assert place.round()
    before = place.tasks["a"]
    own, other = ("n1", "n2") if before[0].startswith("n1") else ("n2", "n1")
    # The database was away for a minute; the job's node calls 10 s later than the other, within the limit of 15 s.
    place.clock.advance(60.0)
    for _ in range(10):
        place.heard(other)
        assert not place.round()
    place.report("a", "running", 50.0, node=own)
    assert not place.round()
    assert place.tasks["a"] == before


def test_after_an_outage_a_node_that_does_not_call_is_given_up() -> None:
    place = Place("n1", "n2")
    place.submit(a_job("a", iterations=10**6))
    assert place.round()
    other = "n2" if place.tasks["a"][0].startswith("n1") else "n1"
    place.clock.advance(60.0)
    for _ in range(17):
        place.heard(other)
        place.round()
    assert place.tasks["a"][0] == f"{other}/gpu-0"
