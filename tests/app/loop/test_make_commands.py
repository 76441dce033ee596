"""From a bound plan to what every node is told."""

from dataclasses import replace

import pytest

from agents.base.protocol import GovernorCommand, Route, TaskCommand
from app.loop.make_commands import make_commands
from solvers.types.llm import LlmEngineSettings
from tests.app.fleets import a_service
from tests.app.snapshots import a_bound_plan, a_replica, a_state
from tests.solvers.factories import a_task, bound_task

PLAN = a_bound_plan(
    [a_replica("b", rate_rps=20.0), a_replica("a", rate_rps=5.0)],
    [a_replica("c", rate_rps=10.0)],
)


def test_every_node_gets_its_gpus_under_the_plans_generation() -> None:
    commands = make_commands(PLAN, a_state(silent_for_s=(0.0, 0.0, 0.0)))
    assert [
        (command.node, command.generation, len(command.gpus)) for command in commands
    ] == [
        ("n1", 1, 1),
        ("n2", 1, 1),
        ("n3", 1, 0),
    ]
    (gpu,) = commands[0].gpus
    assert (gpu.index, gpu.gpu_type, gpu.clock_mhz, gpu.power_cap_w) == (
        0,
        "fast",
        1000.0,
        250.0,
    )
    assert [
        (each.id, each.arrival_rate_rps, each.memory_mib) for each in gpu.replicas
    ] == [
        ("b", 20.0, 4000.0),
        ("a", 5.0, 4000.0),
    ]


def test_a_node_knows_the_whole_rate_of_the_services_that_run_on_it() -> None:
    commands = make_commands(PLAN, a_state(silent_for_s=(0.0, 0.0, 0.0)))
    chat = Route(service="chat", slo_ms=100.0, percentile=0.98, arrival_rate_rps=35.0)
    assert [command.routes for command in commands] == [(chat,), (chat,), ()]


def test_services_that_run_nowhere_are_known_to_sixteen_nodes_that_are_heard() -> None:
    silent_for_s = (60.0, *(0.0,) * 20)
    state = a_state(
        services=(a_service("photo"), a_service("chat")), silent_for_s=silent_for_s
    )
    routes = [command.routes for command in make_commands(PLAN, state)]
    photo = Route(service="photo", slo_ms=100.0, percentile=0.98, arrival_rate_rps=0.0)
    assert sum(photo in each for each in routes) == 16
    first_node, *others = (photo in each for each in routes)
    assert not first_node and others[0]


def test_gpus_of_a_node_come_by_index() -> None:
    first = PLAN.gpus[0]
    gpus = (replace(first, id="n1/gpu-b"), replace(first, id="n1/gpu-a"))
    state = a_state()
    known = (
        replace(state.gpus[0], id="n1/gpu-a", index=1),
        replace(state.gpus[0], id="n1/gpu-b", index=0),
    )
    (command, _) = make_commands(replace(PLAN, gpus=gpus), replace(state, gpus=known))
    assert [gpu.index for gpu in command.gpus] == [0, 1]


def test_a_gpu_that_left_the_fleet_is_told_to_nobody() -> None:
    state = a_state()
    commands = make_commands(PLAN, replace(state, gpus=state.gpus[:1]))
    assert [len(command.gpus) for command in commands] == [1, 0]


def test_a_model_that_spans_a_gpu_that_left_the_fleet_is_told_to_nobody() -> None:
    first, state = PLAN.gpus[0], a_state()
    second = replace(state.gpus[0], id="n1/gpu-1", index=1)
    settings = LlmEngineSettings(
        gpus=(first.id, second.id),
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        max_model_len=4096,
    )
    model = replace(first.replicas[0], llm=settings)
    plan = replace(PLAN, gpus=(replace(first, replicas=(model,)),))
    both = replace(state, gpus=(state.gpus[0], second))
    (command, *_) = make_commands(plan, both)
    (told,) = command.gpus[0].replicas
    assert told.engine is not None
    assert told.engine.gpus == (0, 1)
    (command, *_) = make_commands(plan, replace(state, gpus=state.gpus[:1]))
    assert [gpu.replicas for gpu in command.gpus] == [()]


@pytest.mark.parametrize(
    ("name", "power_limit_w"),
    [("batch_dvfs", 1.1 * 250.0), ("clipper_latency", 250.0)],
    ids=[
        "the governor holds the cap, the board 10 % more",
        "only the board holds the cap",
    ],
)
def test_every_gpu_of_a_governed_plan_gets_its_governor_with_its_types_clocks(
    name: str, power_limit_w: float
) -> None:
    state = a_state()
    types = tuple(
        replace(gpu_type, clocks_mhz=(500.0, 1000.0)) for gpu_type in state.gpu_types
    )
    commands = make_commands(
        replace(PLAN, governor=name), replace(state, gpu_types=types)
    )
    governors = [gpu.governor for command in commands for gpu in command.gpus]
    expected = GovernorCommand(
        name=name, clocks_mhz=(500.0, 1000.0), power_limit_w=power_limit_w
    )
    assert governors == [expected, expected]


def test_replicas_and_tasks_are_told_with_their_projects_and_without_those_that_are_gone() -> (
    None
):
    tasks = (bound_task("a"), bound_task("gone"))
    plan = replace(PLAN, gpus=(replace(PLAN.gpus[0], tasks=tasks), *PLAN.gpus[1:]))
    state = replace(
        a_state(services=(replace(a_service("chat"), project="team-a"),)),
        tasks=(a_task("a", project="team-b"),),
    )
    (gpu,) = make_commands(plan, state)[0].gpus
    assert {each.project for each in gpu.replicas} == {"team-a"}
    # As the user of which project "gone" should run is not known any more.
    assert [(each.name, each.project) for each in gpu.tasks] == [("a", "team-b")]
    (gpu,) = make_commands(plan, replace(state, services=()))[0].gpus
    assert gpu.replicas == ()


def test_what_operators_changed_of_a_governor_is_told_with_it() -> None:
    tuning = (("largest_clock_step", 5), ("steady_power_share", 0.9))
    plan = replace(PLAN, governor="power_latency", governor_tuning=tuning)
    (gpu, *_) = make_commands(plan, a_state())[0].gpus
    assert gpu.governor is not None
    told = gpu.governor
    assert (told.largest_clock_step, told.steady_power_share) == (5, 0.9)
    assert told.steady_latency_share == 0.9


def test_agents_are_told_where_no_sm_limits_hold() -> None:
    state = a_state()
    uncapped = tuple(replace(each, overload=0.9) for each in state.gpu_types)
    for types, is_capped in ((state.gpu_types, True), (uncapped, False)):
        (gpu, *_) = make_commands(PLAN, replace(state, gpu_types=types))[0].gpus
        assert gpu.is_capped is is_capped


def test_nobody_governs_unless_the_plan_says_so() -> None:
    assert {
        gpu.governor
        for command in make_commands(PLAN, a_state())
        for gpu in command.gpus
    } == {None}


def test_a_node_is_told_its_tasks() -> None:
    tasks = (bound_task("a", done_iterations=7.0), bound_task("b", is_resident=False))
    plan = replace(PLAN, gpus=(replace(PLAN.gpus[0], tasks=tasks), *PLAN.gpus[1:]))
    state = replace(a_state(), tasks=(a_task("a"), a_task("b")))
    (gpu,) = make_commands(plan, state)[0].gpus
    assert [
        (each.name, each.done_iterations, each.is_resident) for each in gpu.tasks
    ] == [
        ("a", 7.0, True),
        ("b", 0.0, False),
    ]
    assert gpu.tasks[0] == TaskCommand(
        name="a",
        kind="training",
        network="train",
        batch=64,
        sm_percent=20.0,
        memory_mib=4096.0,
        iterations=1000,
        done_iterations=7.0,
    )
