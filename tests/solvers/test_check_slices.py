"""The checker's rules for GPUs that are cut into slices: each is broken by one change of a valid plan."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.types.plan import Plan, ReplicaPlan
from solvers.types.problem import Problem
from solvers.types.slices import SlicePoint, SlicePoints, SliceUse
from tests.solvers.instances import a_problem, a_service, a_type, gpu_plan
from tests.solvers.sliced import A100_PROFILES

ROW = SlicePoint(1, 2, 1000.0, 20.0, 9_000.0, 30.0)
"""Two processes of 50 rps each, less what the law leaves free."""


def sliced_problem(**of_type: object) -> Problem:
    """A service that runs in every slice of an A100."""
    facts: dict[str, object] = {
        "memory_mib": 81_920.0,
        "power_cap_w": 400.0,
        "slices": A100_PROFILES,
        "is_sliced_only": True,
        "count": 2,
    }
    return replace(
        a_problem(a_service(rate_rps=10.0), types=(a_type(**facts | of_type),)),
        points=(),
        slice_points=tuple(
            SlicePoints(network="net", gpu_type="gpu", profile=each.name, rows=(ROW,))
            for each in A100_PROFILES
        ),
    )


def in_slice(profile: str, rate_rps: float = 0.0, processes: int = 2) -> ReplicaPlan:
    return ReplicaPlan(
        service="chat",
        sm_percent=100.0,
        batch=1,
        arrival_rate_rps=rate_rps,
        slice=SliceUse(profile=profile, processes=processes),
    )


def broken(problem: Problem, *replicas: ReplicaPlan) -> set[tuple[str, str]]:
    """Rules and places."""
    gpu = gpu_plan(*replicas)
    found = violations(problem, Plan(policy="joint", gpus=(gpu,)))
    return {(each.rule, each.where) for each in found}


def test_replicas_of_one_service_may_stand_in_slices_of_one_gpu() -> None:
    replicas = (in_slice("3g.40gb", 5.0), in_slice("3g.40gb", 5.0))
    assert broken(sliced_problem(), *replicas) == set()


@pytest.mark.parametrize(
    "profiles",
    [
        ("4g.40gb", "4g.40gb"),
        ("3g.40gb", "3g.40gb", "1g.10gb"),
        ("7g.80gb", "1g.10gb"),
        ("2g.20gb", "2g.20gb", "2g.20gb", "2g.20gb"),
    ],
)
def test_what_no_gpu_can_be_cut_into_is_refused(profiles: tuple[str, ...]) -> None:
    first, *others = profiles
    replicas = (in_slice(first, 10.0), *map(in_slice, others))
    assert broken(sliced_problem(), *replicas) == {("layout", "gpus[0]")}


def test_a_slice_that_the_type_has_not_is_refused() -> None:
    found = broken(sliced_problem(), in_slice("1g.5gb", 10.0))
    assert ("layout", "gpus[0].slices[0]") in found


def test_a_slice_must_have_the_memory_of_its_replica() -> None:
    hungry = replace(
        sliced_problem(),
        slice_points=(
            SlicePoints(
                network="net",
                gpu_type="gpu",
                profile="1g.10gb",
                rows=(ROW._replace(memory_mib=9_900.0),),
            ),
        ),
    )
    found = broken(hungry, in_slice("1g.10gb", 10.0))
    assert found == {("memory", "gpus[0].slices[0]")}


def test_a_replica_carries_what_its_processes_do() -> None:
    problem = sliced_problem()
    problem = replace(
        problem, services=(replace(problem.services[0], arrival_rate_rps=80.0),)
    )
    # Five times as long as a batch the law lets each of the two processes of 50 rps work half of the time.
    assert problem.capacity_law.utilisation(0.95, 1, 5.0) == 0.5
    found = broken(problem, in_slice("1g.10gb", 50.1), in_slice("1g.10gb", 29.9))
    assert found == {("capacity", "gpus[0].slices[0]")}


def test_processes_that_were_not_measured_are_refused() -> None:
    rules = {rule for rule, _ in broken(sliced_problem(), in_slice("1g.10gb", 10.0, 3))}
    assert "point" in rules


def test_watts_of_all_slices_count() -> None:
    problem = sliced_problem(power_cap_w=100.0)
    found = broken(problem, in_slice("3g.40gb", 10.0), in_slice("3g.40gb"))
    assert found == {("power", "gpus[0]")}
