"""Dispatch of jobs: which tasks, onto which GPUs, by which target; and what happens when the push is lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.dispatch.dispatcher import IDLE_S, WAITING_S, run_dispatcher
from app.loop.fill import is_dispatched, tasks_to_fill
from app.loop.tick import Loop, tick
from app.store.store import PolicyGroup, PolicySettings
from solvers.types.plan import BoundPlan, BoundTask
from solvers.types.state import GpuId, Mode, Node, NodeId, Variant
from tests.app.fleets import Answering, a_node, a_service
from tests.app.job_places import SETTINGS, Place, a_job, bound_gpu, points
from tests.waiting import eventually, run


def test_a_job_gets_a_gpu_a_share_a_batch_and_a_network_by_a_new_target() -> None:
    place = Place()
    place.submit(a_job("a"))
    assert place.round()
    gpu, task = place.tasks["a"]
    # Alone it is tuned to the whole GPU and batches of eight: 400 / 8 = 50 iterations.
    assert (gpu, task.network, task.sm_percent, task.batch, task.iterations) == (
        "n1/gpu-0",
        "photo",
        100.0,
        8,
        50,
    )
    assert place.target is not None
    assert (place.target.generation, place.target.parent) == (2, 1)
    command = asyncio.run(place.store.command_for("n1", 1))
    assert command is not None
    assert [task.name for task in command.gpus[0].tasks] == ["a"]
    assert place.store.events[-1].reason == "task a: on n1/gpu-0"


def test_jobs_share_gpus_and_the_rest_waits() -> None:
    place = Place("n1", "n2")
    place.submit(*(a_job(f"j{at}", weight=0.2) for at in range(8)))
    place.round()
    first = set(place.tasks)
    assert 2 <= len(first) < 8
    assert {gpu for gpu, _ in place.tasks.values()} == {"n1/gpu-0", "n2/gpu-0"}
    assert not place.round()
    assert place.dispatcher.next_s == WAITING_S
    for name in first:
        place.report(name, "finished", 50.0, node=place.tasks[name][0].split("/")[0])
    assert place.round()
    assert not first & set(place.tasks)


def test_a_batch_is_held_for_the_window() -> None:
    place = Place()
    narrow = replace(points("photo"), rows=points("photo").rows[:2])
    place.store.put_points([narrow])
    place.submit(a_job("a"))
    assert not place.round(after_s=0.02)
    assert place.dispatcher.next_s == pytest.approx(0.03)
    assert place.round(after_s=0.03)


def test_at_least_cost_a_job_goes_at_once_with_the_cheapest_share() -> None:
    settings = replace(SETTINGS, parameters={"oltunes": {"dispatch": "least cost"}})
    place = Place(settings=settings)
    place.submit(a_job("a"))
    # No window: as printed it would be held for 50 ms.
    assert place.round(after_s=0.02)
    _, task = place.tasks["a"]
    # Batches of eight: 100 % for 7.5 ms; 50 % for 9 ms; 25 %, of which at least a third is charged, for 15 ms.
    assert (task.sm_percent, task.batch) == (50.0, 8)


def test_a_lost_push_loses_no_job() -> None:
    place = Place()
    place.submit(a_job("a"))
    place.store.rival = lambda: place.pushed(
        BoundPlan(generation=2, parent=1, policy="oltunes")
    )
    assert not place.round()
    assert place.tasks == {}
    assert place.dispatcher.next_s == 0.0
    assert place.dispatcher.memory.failures == {"a": 1}
    assert place.dispatcher.memory.state.max_jobs == 2
    assert place.round(after_s=0.05)
    assert set(place.tasks) == {"a"}
    assert place.target is not None
    assert place.target.generation == 3


def test_a_job_that_failed_goes_before_one_that_is_more_urgent() -> None:
    place = Place()
    whole = replace(points("photo"), rows=points("photo").rows[4:])
    place.store.put_points([whole])
    place.submit(a_job("a"))
    place.store.rival = lambda: place.pushed(
        BoundPlan(generation=2, parent=1, policy="oltunes")
    )
    place.round()
    place.submit(a_job("urgent", due_in_s=2.0))
    assert place.round()
    assert set(place.tasks) == {"a"}


def test_jobs_take_what_replicas_leave_and_replicas_stay_as_they_are() -> None:
    place = Place()
    place.store.put_services([a_service()])
    place.push(bound_gpu(has_replica=True))
    place.submit(a_job("a"))
    assert place.round()
    target = place.target
    assert target is not None
    assert target.gpus[0].replicas == bound_gpu(has_replica=True).replicas
    assert place.tasks["a"][1].sm_percent == 50.0


def test_a_batch_that_the_checker_refuses_is_not_deployed() -> None:
    # 250 W: 50 idle, 60 of the replica, and 2.9 W per percent of the job are 50 + 60 + 145 on half of the SMs.
    place = Place("n1", "n2")
    place.store.put_services([a_service()])
    hot = tuple(
        row._replace(power_w=2.9 * row.sm_percent)
        for row in points("photo").rows
        if row.sm_percent == 50.0
    )
    place.store.put_points([replace(points("photo"), rows=hot)])
    place.push(bound_gpu(has_replica=True))
    place.submit(a_job("a"))
    assert place.round()
    assert place.tasks["a"][0] == "n2/gpu-0"
    place.push(bound_gpu(has_replica=True))
    place.store.put_node(
        Node(id=NodeId("n2"), cordoned=True), a_node("n2")[1], at=place.clock.now()
    )
    place.submit(a_job("b"))
    assert not place.round()


@pytest.mark.parametrize("what", ["cordoned", "unhealthy", "silent"])
def test_nothing_starts_where_a_gpu_may_not_be_used(what: str) -> None:
    place = Place("n1", "n2")
    node, (gpu,) = a_node("n2")
    place.store.put_node(
        replace(node, cordoned=what == "cordoned"),
        [replace(gpu, healthy=what != "unhealthy")],
        at=place.clock.now(),
    )
    if what == "silent":
        place.fall_silent("n2", heard="n1")
    place.heard("n1")
    place.submit(*(a_job(f"j{at}") for at in range(6)))
    assert place.round()
    assert {gpu for gpu, _ in place.tasks.values()} == {"n1/gpu-0"}


def test_a_job_on_a_silent_node_goes_on_elsewhere_from_its_last_report() -> None:
    place = Place("n1", "n2")
    place.submit(a_job("a"))
    place.round()
    (lost, _) = place.tasks["a"]
    place.report("a", "running", 20.5, node=lost.split("/")[0])
    other = {"n1/gpu-0": "n2", "n2/gpu-0": "n1"}[lost]
    place.fall_silent(lost.split("/")[0], heard=other)
    gpu, task = place.tasks["a"]
    assert gpu == f"{other}/gpu-0"
    # 20 of 50 batches of eight.
    assert (task.batch, task.iterations, task.done_iterations) == (8, 50, 20.0)


def test_the_accurate_variant_is_taken_and_none_below_the_floor() -> None:
    variants = (
        Variant(network="photo", accuracy=0.8),
        Variant(network="light", accuracy=0.7),
    )
    idle = Place()
    idle.submit(a_job("a", variants=variants, accuracy_floor=0.75))
    idle.round()
    assert idle.tasks["a"][1].network == "photo"
    only = Place()
    only.submit(a_job("a", variants=variants[1:], accuracy_floor=0.5))
    only.round()
    assert only.tasks["a"][1].network == "light"
    none = Place()
    none.submit(a_job("a", variants=variants, accuracy_floor=0.9))
    assert not none.round()


def test_a_job_that_no_gpu_can_run_waits_and_harms_nobody() -> None:
    place = Place()
    place.submit(a_job("odd", network="unknown"), a_job("a"))
    assert place.round()
    assert set(place.tasks) == {"a"}


@pytest.mark.parametrize(
    "settings",
    [
        PolicySettings(policy="joint"),
        replace(SETTINGS, mode=Mode.APPROVE),
        replace(SETTINGS, paused=True),
        PolicySettings(
            groups=(PolicyGroup(name="g", policy="oltunes", mode=Mode.ADVISE),)
        ),
    ],
)
def test_nothing_is_dispatched_under_other_policies_or_before_a_person_spoke(
    settings: PolicySettings,
) -> None:
    place = Place(settings=settings)
    place.submit(a_job("a"))
    assert not place.round()
    assert place.dispatcher.next_s == IDLE_S


def test_whose_jobs_are_dispatched() -> None:
    groups = (PolicyGroup(name="batch", policy="oltunes", projects=("night",)),)
    mixed = PolicySettings(policy="joint", groups=groups)
    assert is_dispatched(a_job("a", project="night"), mixed)
    assert not is_dispatched(a_job("a", project="day"), mixed)
    assert not is_dispatched(a_job("a", project="night", kind="training"), mixed)
    assert is_dispatched(a_job("a"), SETTINGS)
    # The fill knows which GPUs a single task avoids.
    avoiding = replace(a_job("a"), avoided_gpus=frozenset({GpuId("n1/gpu-0")}))
    assert not is_dispatched(avoiding, SETTINGS)
    labelled = PolicySettings(
        groups=(PolicyGroup(name="g", policy="oltunes", labels=(("team", "x"),)),)
    )
    assert not is_dispatched(a_job("a"), labelled)


def test_the_tick_leaves_jobs_to_the_dispatcher_and_keeps_those_that_run() -> None:
    place = Place()
    place.submit(a_job("a"), a_job("training", kind="training", network="net", batch=1))
    place.round()
    place.report("a", "running", 10.0)
    assert place.store.tasks.records["a"].done_iterations == 20.0  # of four inputs each
    place.submit(a_job("later"))
    snapshot = asyncio.run(place.store.load_snapshot(place.clock.now()))
    filled = {task.name: task for task in tasks_to_fill(snapshot, snapshot.state.tasks)}
    assert set(filled) == {"a", "training"}
    assert (filled["a"].batch, filled["a"].iterations, filled["a"].done_iterations) == (
        8,
        50,
        10.0,
    )
    before = place.tasks["a"]
    place.heard("n1")
    loop = Loop(store=place.store, solver=Answering(), clock=place.clock)
    asyncio.run(tick(loop))
    assert place.tasks["a"] == before
    assert "later" not in place.tasks


def test_training_that_runs_is_no_room_for_jobs() -> None:
    place = Place()
    place.submit(a_job("training", kind="training", network="net", batch=1), a_job("a"))
    training = BoundTask(
        name="training",
        kind="training",
        network="net",
        batch=1,
        sm_percent=50.0,
        memory_mib=4000.0,
        iterations=100,
    )
    place.push(bound_gpu(training))
    assert place.round()
    assert place.tasks["training"][1] == training
    assert place.tasks["a"][1].sm_percent == 50.0


def test_what_is_done_leaves_with_the_next_jobs() -> None:
    place = Place()
    place.submit(a_job("a"))
    place.round()
    place.report("a", "finished", 50.0)
    assert not place.round()
    place.submit(a_job("b"))
    assert place.round()
    assert set(place.tasks) == {"b"}


class Bell:
    """Wake-ups that a test rings."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

    async def listen(self) -> AsyncIterator[str]:
        while True:
            await self.rung.wait()
            self.rung.clear()
            yield "task"


@pytest.mark.parametrize("is_on", [True, False])
def test_the_loop_runs_a_round_when_it_is_woken_while_it_is_on(is_on: bool) -> None:
    place = Place()
    asked: list[int] = []

    async def on() -> bool:
        asked.append(1)
        return is_on

    async def play() -> None:
        bell = Bell()
        running = asyncio.create_task(run_dispatcher(place.dispatcher, bell, on))
        place.submit(a_job("a"))
        place.clock.advance(1.0)
        bell.rung.set()
        await eventually(lambda: place.tasks or (asked and not is_on))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(play())
    assert set(place.tasks) == ({"a"} if is_on else set())


@pytest.mark.parametrize("turns", range(6))
def test_a_stop_that_comes_with_a_wake_up_is_not_lost(turns: int) -> None:
    """`asyncio.wait_for` of Python 3.11 returns the result and drops the cancellation."""
    place = Place()

    async def never() -> bool:
        return False

    async def play() -> None:
        bell = Bell()
        running = asyncio.create_task(run_dispatcher(place.dispatcher, bell, never))
        for _ in range(10):
            await asyncio.sleep(0.0)
        bell.rung.set()
        for _ in range(turns):
            await asyncio.sleep(0.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(play())


def test_a_round_that_fails_is_logged_and_the_next_one_starts_over() -> None:
    place = Place()
    calls: list[int] = []

    async def on() -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the database is away")
        return True

    async def play() -> None:
        bell = Bell()
        running = asyncio.create_task(run_dispatcher(place.dispatcher, bell, on))
        place.submit(a_job("a"))
        while not place.tasks:
            bell.rung.set()
            place.clock.advance(1.0)
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(play())
    assert set(place.tasks) == {"a"}
