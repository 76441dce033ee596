"""Tasks in the closed loop: they take what services leave over, and services never notice."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agents.sim.load.arrivals import Spike
from agents.sim.spec import Fault
from app.catalogue.catalogue import load_profiles
from app.simulate.run.closed_loop import ClusterPlan
from app.store.task_book import TaskRecord
from solvers.types.state import Task
from tests.simulation.scenes import TYPE, Scene, a_scene

RATES_RPS = {"resnet50": 150.0, "vgg16": 40.0}
SPIKE = {"resnet50": Spike(start_s=120.0, length_s=60.0, factor=3.0)}
BEGIN_S = 30.0


def a_task(name: str, iterations: int, **changes: object) -> Task:
    """Batches of eight stored images through ResNet-50."""
    return Task(
        name=name,
        kind="offline",
        network="resnet50",
        batch=8,
        iterations=iterations,
        **changes,
    )  # type: ignore[arg-type]


def with_training(plan: ClusterPlan) -> ClusterPlan:
    """The same, knowing a training network."""
    return replace(
        plan, points=(*plan.points, *load_profiles(["resnet50-training"], [TYPE]))
    )


def play(
    seconds: float,
    *tasks: Task,
    faults: tuple[Fault, ...] = (),
    spikes: Mapping[str, Spike] = SPIKE,
) -> Scene:
    """Two nodes of two GPUs; tasks come after half a minute."""
    scene = a_scene(
        policy="joint",
        nodes=2,
        gpus=2,
        rates_rps=RATES_RPS,
        spikes=spikes,
        faults=faults,
        change_plan=with_training,
    )
    scene.play(BEGIN_S)
    scene.closed.store.put_tasks(tasks, at=scene.clock.now())
    scene.play(seconds - BEGIN_S)
    return scene


def records(scene: Scene) -> Mapping[str, TaskRecord]:
    """What became of the tasks."""
    return scene.closed.store.tasks.records


@pytest.mark.thorough
def test_tasks_cost_nothing_and_no_service_notices() -> None:
    bare, filled = (
        play(210.0),
        play(210.0, a_task("small", 100), a_task("large", 100_000)),
    )
    assert records(filled)["small"].finished_at is not None
    assert records(filled)["large"].done_iterations > 2000
    # At rest nothing is late; when the spike begins, tasks are in the way until the next tick swaps them out.
    assert filled.attainment(30.0, 95.0) > 0.999
    # What tasks have is no room for services meanwhile.
    assert filled.attainment(30.0, 210.0) >= bare.attainment(30.0, 210.0) - 0.01
    assert len(filled.target.gpus) <= len(bare.target.gpus)


def test_a_spike_swaps_tasks_out_and_they_go_on_where_there_is_room() -> None:
    # So much more needs the task's SMs at once, and a GPU more as soon as it has started.
    higher = {"resnet50": replace(SPIKE["resnet50"], factor=3.0)}
    scene = play(105.0, a_task("large", 100_000), spikes=higher)
    before = records(scene)["large"].done_iterations
    scene.play(10.0)
    swapped = records(scene)["large"]
    assert (swapped.state, swapped.swaps) == ("swapped", 1)
    assert swapped.done_iterations >= before
    # Still in the spike, next to the service that has moved to a GPU of its own.
    scene.play(50.0)
    moved = records(scene)["large"]
    assert (moved.state, moved.swaps) == ("running", 1)
    assert moved.done_iterations > swapped.done_iterations


def test_a_lost_node_costs_a_task_what_it_had_not_reported() -> None:
    before = play(100.0, a_task("large", 100_000), spikes={})
    (home,) = {gpu.node for gpu in before.target.gpus if gpu.tasks}
    lost = Fault(kind="node_lost", node=home, start_s=100.0)
    scene = play(170.0, a_task("large", 100_000), spikes={}, faults=(lost,))
    task = records(scene)["large"]
    assert task.place is not None
    assert not task.place[0].startswith(home)
    assert task.state == "running"
    assert task.done_iterations > records(before)["large"].done_iterations
    assert scene.attainment(150.0, 170.0) > 0.99


def test_a_deadline_buys_a_gpu_and_the_end_gives_it_back() -> None:
    # 40 % of the SMs, which the services leave over, take 514 ms for a step: 154 s in all; a whole V100 some 240 ms.
    task = Task(
        name="urgent",
        kind="training",
        network="resnet50-training",
        batch=64,
        iterations=300,
        due_in_s=145.0,
    )
    scene = play(90.0, task, spikes={})
    assert any(gpu.tasks and not gpu.replicas for gpu in scene.target.gpus)
    scene.play(120.0)
    urgent = records(scene)["urgent"]
    assert urgent.finished_at is not None
    assert urgent.deadline_at is not None
    assert urgent.finished_at <= urgent.deadline_at
    assert all(gpu.replicas for gpu in scene.target.gpus)


@pytest.mark.thorough
def test_a_task_called_like_a_replica_beside_it_does_what_any_other_would() -> None:
    replica = play(60.0).target.gpus[0].replicas[0].id
    alike, other = (play(90.0, a_task(name, 100_000)) for name in (replica, "large"))
    assert (
        records(alike)[replica].done_iterations
        == records(other)["large"].done_iterations
        > 500
    )
    assert alike.closed.cluster.totals() == other.closed.cluster.totals()
