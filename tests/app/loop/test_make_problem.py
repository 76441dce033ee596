"""The problem that a policy gets: stock, limits, points and what runs."""

from dataclasses import replace

import pytest

from app.loop.make_problem import make_problem
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, GpuId, Node
from tests.app.fleets import FAST, POINTS, SETTINGS, a_node, a_service
from tests.app.snapshots import a_bound_plan, a_replica, a_state

DEMANDS = (Demand(service="chat", arrival_rate_rps=7.0),)
SLOW = replace(FAST, name="slow")


def problem_of(state: ClusterState, **changes: object) -> Problem:
    arguments = {
        "points": (POINTS,),
        "demands": DEMANDS,
        "settings": SETTINGS,
        "target": None,
    } | changes
    return make_problem(state, **arguments)  # type: ignore[arg-type]


def test_only_healthy_gpus_without_cordon_count_as_stock() -> None:
    node, gpus = a_node("n1", gpus=4)
    gpus[0] = replace(gpus[0], healthy=False)
    gpus[1] = replace(gpus[1], cordoned=True)
    state = replace(a_state(gpus=gpus), nodes=(node,))
    assert [(each.name, each.count) for each in problem_of(state).gpu_types] == [
        ("fast", 2)
    ]
    cordoned = replace(state, nodes=(Node(id=node.id, cordoned=True),))
    assert [(each.name, each.count) for each in problem_of(cordoned).gpu_types] == [
        ("fast", 0)
    ]


def test_types_without_a_gpu_and_points_that_nobody_can_use_are_left_out() -> None:
    state = replace(a_state(), gpu_types=(SLOW, FAST))
    points = (
        POINTS,
        replace(POINTS, gpu_type="slow"),
        replace(POINTS, network="other"),
    )
    problem = problem_of(state, points=points)
    assert [each.name for each in problem.gpu_types] == ["fast"]
    assert problem.points == (POINTS,)
    assert problem.capacity_law.batches == (1,)
    assert problem.capacity_law.percentiles == (0.98,)


def test_slices_are_stock_of_their_own_type_beside_whole_gpus() -> None:
    sliced = replace(FAST, name="fast-MIG-1g.2gb", memory_mib=2000.0)
    node, (whole, *rest) = a_node("n1", gpus=3)
    slices = [
        replace(gpu, id=GpuId(f"n1/gpu-{index}"), index=index, gpu_type=sliced.name)
        for gpu, index in zip(rest, (2010, 2050), strict=True)
    ]
    state = replace(
        a_state(gpus=[whole, *slices]), nodes=(node,), gpu_types=(FAST, sliced)
    )
    points = (POINTS, replace(POINTS, gpu_type=sliced.name))
    problem = problem_of(state, points=points)
    assert [(each.name, each.count) for each in problem.gpu_types] == [
        ("fast", 1),
        ("fast-MIG-1g.2gb", 2),
    ]
    assert [each.gpu_type for each in problem.points] == ["fast", "fast-MIG-1g.2gb"]


def test_a_fleet_without_services_still_makes_a_problem() -> None:
    problem = problem_of(a_state(services=()))
    assert (problem.services, problem.points) == ((), ())


def test_a_services_figures_arrive_and_a_missing_demand_is_zero() -> None:
    services = (
        replace(a_service("photo"), priority=3.0),
        a_service("chat", max_replicas=5),
    )
    chat, photo = problem_of(a_state(services=services)).services
    assert (chat.name, chat.arrival_rate_rps) == ("chat", 7.0)
    assert (chat.slo_ms, chat.percentile, chat.max_replicas) == (100.0, 0.98, 5)
    assert (photo.arrival_rate_rps, photo.priority) == (0.0, 3.0)


@pytest.mark.parametrize(("most", "least"), [(None, 3), (4, 3), (2, 2)])
def test_spare_replicas_add_to_the_least_number_up_to_the_most(
    most: int | None, least: int
) -> None:
    service = a_service(min_replicas=1, buffer_replicas=2, max_replicas=most)
    assert problem_of(a_state(services=(service,))).services[0].min_replicas == least


@pytest.mark.parametrize(
    ("allowed", "excluded", "expected"),
    [
        (None, (), None),
        (("fast",), (), ("fast",)),
        (None, ("fast",), ("slow",)),
        (("fast", "slow"), ("slow",), ("fast",)),
        (("gone",), (), ()),
    ],
)
def test_allowed_types_are_those_of_the_fleet_less_the_excluded_ones(
    allowed: tuple[str, ...] | None,
    excluded: tuple[str, ...],
    expected: tuple[str, ...] | None,
) -> None:
    service = replace(
        a_service(), allowed_gpu_types=allowed, excluded_gpu_types=excluded
    )
    _, gpus = a_node("n1", gpus=2)
    state = a_state(
        services=(service,), gpus=[gpus[0], replace(gpus[1], gpu_type="slow")]
    )
    assert (
        problem_of(replace(state, gpu_types=(FAST, SLOW))).services[0].allowed_gpu_types
        == expected
    )


def test_what_runs_is_the_target_on_gpus_that_answer() -> None:
    target = a_bound_plan([a_replica("a")], [a_replica("b", sm_percent=100.0)])
    assert problem_of(a_state()).current is None
    whole = problem_of(a_state(), target=target).current
    assert whole is not None and len(whole.gpus) == 2
    _, gpus = a_node("n2")
    for left in ((replace(gpus[0], healthy=False),), ()):
        state = a_state(gpus=(*a_node("n1")[1], *left))
        current = problem_of(state, target=target).current
        assert current is not None
        assert [
            replica.sm_percent for gpu in current.gpus for replica in gpu.replicas
        ] == [50.0]


def test_a_cordoned_gpu_counts_while_replicas_of_the_target_run_on_it() -> None:
    state = a_state()
    running = a_bound_plan([a_replica("a")])
    cordoned = replace(
        state, gpus=tuple(replace(gpu, cordoned=True) for gpu in state.gpus)
    )
    assert running.gpus[0].id == cordoned.gpus[0].id
    assert problem_of(cordoned, target=running).gpu_types[0].count == 1
    assert (
        problem_of(cordoned, target=running, without_cordoned=True).gpu_types[0].count
        == 0
    )


def test_a_label_keeps_services_of_its_own_project_apart() -> None:
    services = tuple(
        replace(a_service(name), project=project, anti_affinity=("edge",))
        for name, project in (("chat", "red"), ("photo", "red"), ("sound", "blue"))
    )
    found = problem_of(replace(a_state(), services=services)).services
    chat, photo, sound = found
    assert not chat.may_share_with(photo)
    assert chat.may_share_with(sound) and photo.may_share_with(sound)
