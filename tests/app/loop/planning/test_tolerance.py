"""Nothing starts for a shortage within the tolerance, and the demand says what was planned for."""

from dataclasses import replace

import pytest

from app.loop.planning.tolerance import TOLERANCE, Tolerated, with_tolerance
from app.store.store import PolicyGroup, PolicySettings
from solvers.greedy.routing import SAFE
from solvers.types.plan import Plan
from solvers.types.state import Demand
from tests.app.fleets import a_service as a_wanted_service
from tests.solvers.instances import a_problem, a_service, gpu_plan, replica_on

# Half a GPU carries 50 rps, and both halves are taken.
RUNNING = Plan(
    policy="joint",
    gpus=(gpu_plan(replica_on("a", 50.0, 40.0), replica_on("b", 50.0, 40.0)),),
)

JOINT = PolicySettings(policy="joint")


def tolerated(
    a_rps: float,
    *,
    settings: PolicySettings = JOINT,
    max_replica_rps: float | None = None,
    **demand: float,
) -> Tolerated:
    problem = a_problem(
        replace(a_service("a", rate_rps=a_rps), max_replica_rps=max_replica_rps),
        a_service("b", rate_rps=40.0),
        current=RUNNING,
    )
    demands = (
        Demand(service="a", arrival_rate_rps=a_rps, **demand),
        Demand(service="b", arrival_rate_rps=40.0),
    )
    services = (a_wanted_service("a"), a_wanted_service("b"))
    return with_tolerance(problem, demands, services, settings)


@pytest.mark.parametrize("a_rps", [50.0, 50.0 * (1.001 + TOLERANCE)])
def test_what_runs_carries_it_or_falls_short_by_too_much(a_rps: float) -> None:
    found = tolerated(a_rps)
    assert found.services == ()
    assert found.problem.service("a").arrival_rate_rps == a_rps
    assert found.demands[0].arrival_rate_rps == a_rps


def test_a_little_more_than_what_runs_carries_is_planned_for_what_it_carries() -> None:
    found = tolerated(55.0)
    assert found.services == ("a",)
    assert found.problem.service("a").arrival_rate_rps == 50.0 * SAFE
    assert found.problem.service("b").arrival_rate_rps == 40.0
    assert [each.arrival_rate_rps for each in found.demands] == [50.0 * SAFE, 40.0]


def test_what_a_loss_may_take_of_a_service_is_all_that_a_replica_counts_for() -> None:
    # 50 rps would be carried, of which 45 count where 55 are asked for: that is too little.
    assert tolerated(55.0, max_replica_rps=45.0).services == ()
    assert tolerated(49.0, max_replica_rps=45.0).services == ("a",)


def test_what_is_missing_comes_off_the_reserve_and_then_off_the_headroom() -> None:
    (of_a, _) = tolerated(55.0, reserve_rps=3.0, headroom_rps=4.0).demands
    assert (of_a.reserve_rps, of_a.headroom_rps) == (0.0, pytest.approx(2.0))
    (of_a, _) = tolerated(55.0, reserve_rps=7.0, headroom_rps=4.0).demands
    assert (of_a.reserve_rps, of_a.headroom_rps) == (pytest.approx(2.0), 4.0)


def test_published_systems_have_their_own_rules_as_have_their_groups() -> None:
    hetsev = PolicySettings(policy="hetsev")
    assert tolerated(55.0, settings=hetsev).services == ()
    group = PolicyGroup(name="old", policy="hetsev")
    assert tolerated(55.0, settings=replace(JOINT, groups=(group,))).services == ()
