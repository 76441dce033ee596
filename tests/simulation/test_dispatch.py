"""Jobs of policy `oltunes` in the closed loop: they are dispatched next to the tick, done, and no service notices."""

from collections.abc import Mapping
from dataclasses import replace

from app.catalogue.catalogue import load_profiles
from app.simulate.run.closed_loop import ClusterPlan
from app.store.task_book import TaskRecord
from solvers.types.state import Task, Variant
from tests.simulation.scenes import TYPE, Scene, a_scene

RATES_RPS = {"resnet50": 100.0}
BEGIN_S = 30.0


def a_job(name: str, iterations: int, **changes: object) -> Task:
    """Batches of eight stored images."""
    facts: dict[str, object] = {
        "kind": "offline",
        "network": "resnet101",
        "batch": 8,
        "weight": 0.25,
    }
    return Task(name=name, iterations=iterations, **facts | changes)  # type: ignore[arg-type]


def with_networks(plan: ClusterPlan) -> ClusterPlan:
    """The same, knowing the jobs' networks."""
    return replace(
        plan, points=(*plan.points, *load_profiles(["resnet101", "googlenet"], [TYPE]))
    )


def play(seconds: float, *jobs: Task) -> Scene:
    """Two nodes of two GPUs; jobs come after half a minute."""
    scene = a_scene(
        policy="oltunes",
        nodes=2,
        gpus=2,
        rates_rps=RATES_RPS,
        spikes={},
        change_plan=with_networks,
    )
    scene.play(BEGIN_S)
    scene.closed.store.put_tasks(jobs, at=scene.clock.now())
    scene.play(seconds - BEGIN_S)
    return scene


def records(scene: Scene) -> Mapping[str, TaskRecord]:
    """What became of the jobs."""
    return scene.closed.store.tasks.records


def test_jobs_are_done_in_time_and_no_service_notices() -> None:
    jobs = [a_job(f"j{number}", 80, due_in_s=60.0) for number in range(3)]
    scene = play(90.0, *jobs)
    for record in records(scene).values():
        assert record.finished_at is not None
        assert record.deadline_at is not None
        assert record.finished_at <= record.deadline_at
    assert scene.attainment(30.0, 90.0) > 0.995
    assert not any(gpu.tasks for gpu in scene.target.gpus)


def test_a_new_job_is_dispatched_between_ticks() -> None:
    scene = play(60.0)
    before = len(scene.closed.store.pushed)
    scene.closed.store.put_tasks([a_job("late", 50)], at=scene.clock.now())
    scene.play(10.0)
    started = [
        plan
        for _, plan in scene.closed.store.pushed[before:]
        if any(gpu.tasks for gpu in plan.gpus)
    ]
    assert started
    assert started[0].policy == "oltunes"


def test_no_network_below_the_accuracy_floor_is_ever_used() -> None:
    variants = (
        Variant(network="resnet101", accuracy=0.774),
        Variant(network="googlenet", accuracy=0.698),
    )
    strict = [
        a_job(f"s{number}", 400, variants=variants, accuracy_floor=0.75)
        for number in range(12)
    ]
    scene = play(60.0, *strict)
    networks = {
        task.network
        for _, plan in scene.closed.store.pushed
        for gpu in plan.gpus
        for task in gpu.tasks
    }
    assert networks == {"resnet101"}
