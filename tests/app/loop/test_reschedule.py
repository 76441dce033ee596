"""Launches that fail again and again: the service goes elsewhere, comes back later, and stays where nothing fits."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from agents.base.protocol import LaunchFailure, Observation
from app.answers.status import service_statuses
from app.loop.demand_fallbacks import decide_with_fallbacks
from app.loop.fill import task_places
from app.loop.forecast import make_demands
from app.loop.observe import usable_state
from app.loop.planning.reschedule import (
    AvoidedGpus,
    avoided_gpus,
    with_shared_cordons,
    without_avoided,
)
from app.loop.tick import TickOutcome
from app.store.launch_book import FAILURES, FIRST, AvoidedGpu, task_key
from app.store.store import Snapshot
from solvers.types.plan import (
    BoundPlan,
    BoundTask,
    GpuPlan,
    Plan,
    ReplicaPlan,
    Unserved,
)
from solvers.types.problem import Problem
from solvers.types.state import GpuId, NodeId, Task
from tests.app.fleets import (
    POINTS,
    Answering,
    Fleet,
    a_fleet,
    a_node,
    a_service,
    on_half_gpus,
)
from tests.app.snapshots import NOW, a_bound_plan, a_replica, a_snapshot, a_state

RATES = {"chat": 20.0}
NIGHTLY = Task(
    name="nightly", kind="training", network="train", batch=1, iterations=10**6
)


def one_gpu_per_service(problem: Problem) -> Plan:
    """Each service on a GPU of its own, as long as there are some; the others are left out."""
    usable = problem.gpu_types[0].count or 0
    served, left = problem.services[:usable], problem.services[usable:]
    return Plan(
        policy="test",
        gpus=tuple(
            GpuPlan(
                gpu_type="fast",
                clock_mhz=1000.0,
                replicas=(
                    ReplicaPlan(
                        service=each.name,
                        sm_percent=100.0,
                        batch=1,
                        arrival_rate_rps=each.arrival_rate_rps,
                    ),
                ),
            )
            for each in served
        ),
        unserved=tuple(
            Unserved(service=each.name, rate_rps=each.arrival_rate_rps, reason="stock")
            for each in left
        ),
    )


def after(fleet: Fleet, rates_rps: dict[str, float] | None = None) -> TickOutcome:
    heard = [node.id for node in snapshot_of(fleet).state.nodes]
    fleet.pass_time(rates_rps=rates_rps or RATES, heard=heard)
    return fleet.tick()


def snapshot_of(fleet: Fleet) -> Snapshot:
    return asyncio.run(fleet.store.load_snapshot(fleet.clock.now()))


def places(fleet: Fleet) -> dict[str, str]:
    """The GPU of each service's replica."""
    return places_of(fleet.store.pushed[-1][1])


def places_of(plan: BoundPlan) -> dict[str, str]:
    return {replica.service: gpu.id for gpu in plan.gpus for replica in gpu.replicas}


def report_failures(fleet: Fleet, service: str = "chat", count: int = FAILURES) -> str:
    """The node of a service's replica says that it does not start; on which GPU."""
    gpu, replica = next(
        (gpu, replica)
        for gpu in fleet.store.pushed[-1][1].gpus
        for replica in gpu.replicas
        if replica.service == service
    )
    failure = LaunchFailure(
        replica=replica.id, service=service, gpu_index=0, detail="out of memory"
    )
    report(fleet, gpu.node, failure, count)
    return gpu.id


def report(fleet: Fleet, node: str, failure: LaunchFailure, count: int) -> None:
    observation = Observation(
        node=node,
        boot="failing",
        sequence=len(fleet.store.plans) + 1,
        window_start_s=fleet.clock.now().timestamp() - 1.0,
        window_s=1.0,
        generation=fleet.generation,
        failures=(failure,) * count,
    )
    asyncio.run(fleet.store.ingest((observation,), fleet.clock.now()))


def said(fleet: Fleet) -> str:
    """Of chat's launches by its condition; nothing where it has none."""
    conditions = service_statuses(snapshot_of(fleet), ["chat"])["chat"].conditions
    return "".join(each.message for each in conditions if each.type == "Launches")


def told(outcome: TickOutcome) -> str:
    """By the plan's report."""
    assert outcome.report is not None
    return " ".join(outcome.report.messages)


def fleet_of(*nodes: str, services: Sequence[str] = ("chat",)) -> Fleet:
    return a_fleet(
        *map(a_service, services),
        solver=Answering(plan=one_gpu_per_service),
        nodes=nodes,
    )


def test_a_service_whose_launches_fail_on_a_gpu_is_placed_on_another() -> None:
    fleet = fleet_of("n1", "n2")
    after(fleet)
    assert report_failures(fleet, count=FAILURES - 1) == "n1/gpu-0"
    after(fleet)
    assert places(fleet) == {"chat": "n1/gpu-0"}
    report_failures(fleet, count=1)
    outcome = after(fleet)
    assert places(fleet) == {"chat": "n2/gpu-0"}
    assert "chat: its launches fail" in told(outcome)
    assert "n1/gpu-0: out of memory; until 20" in said(fleet)
    # It stays there while it is well, and may go back when the time is over.
    fleet.pass_time(FIRST.total_seconds() + 2.0, rates_rps=RATES)
    assert said(fleet) == ""
    fleet.tick()
    assert places(fleet) == {"chat": "n2/gpu-0"}


def test_another_service_takes_the_gpu_where_only_an_exchange_makes_room() -> None:
    fleet = fleet_of("n1", "n2", services=("chat", "photo"))
    rates = {"chat": 20.0, "photo": 20.0}
    after(fleet, rates)
    before = places(fleet)
    report_failures(fleet)
    after(fleet, rates)
    assert places(fleet) == {"chat": before["photo"], "photo": before["chat"]}


def test_where_no_other_place_fits_the_service_stays_and_says_so() -> None:
    fleet = fleet_of("n1")
    after(fleet)
    gpu = report_failures(fleet)
    outcome = after(fleet)
    assert places(fleet) == {"chat": gpu}
    assert outcome.unserved_rps == 0.0
    assert "too little room without them" in told(outcome)
    assert "it is still planned on n1/gpu-0" in said(fleet)
    # A node that is added is the place that it lacked.
    fleet.store.put_node(*a_node("n2"), at=fleet.clock.now())
    after(fleet)
    assert places(fleet) == {"chat": "n2/gpu-0"}


def test_a_service_without_another_place_does_not_keep_others_where_they_fail() -> None:
    fleet = fleet_of("n2", services=("chat", "photo"))
    fleet.store.put_node(*a_node("n1", gpus=2), at=fleet.clock.now())
    rates = {"chat": 20.0, "photo": 20.0}
    after(fleet, rates)
    assert places(fleet) == {"chat": "n1/gpu-0", "photo": "n1/gpu-1"}
    nowhere = [("photo", gpu) for gpu in ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0")]
    snapshot = snapshot_of(fleet)
    outcome = asyncio.run(
        decide_with_fallbacks(
            fleet.loop.solver,
            replace(snapshot, avoided=avoiding(("chat", "n1/gpu-0"), *nowhere)),
            make_demands(snapshot),
            points=snapshot.points,
            promises_may_break=False,
        )
    )
    bound = outcome.decision.bound
    assert bound is not None
    assert places_of(bound) == {"chat": "n2/gpu-0", "photo": "n1/gpu-1"}
    words = " ".join(outcome.decision.report.messages)
    assert "chat: its launches fail; it avoids n1/gpu-0" in words
    assert "photo: its launches fail; it may still start on n1/gpu-0, n1/gpu-1" in words


def test_a_service_that_fails_wherever_it_is_tried_is_moved_no_further() -> None:
    fleet = fleet_of("n1", "n2", "n3", "n4")
    after(fleet)
    tried = []
    for _ in range(3):
        tried.append(report_failures(fleet))
        after(fleet)
    assert len(set(tried)) == 3
    last = places(fleet)
    assert last["chat"] == tried[-1]
    assert "fails on 3 nodes" in said(fleet)
    report_failures(fleet)
    after(fleet)
    assert places(fleet) == last


def failing(*pairs: tuple[str, str]) -> Snapshot:
    """Services that avoid GPUs of a fleet with n1 and n2, each with three."""
    nodes = [a_node(name, gpus=3) for name in ("n1", "n2")]
    names = sorted({service for service, _ in pairs})
    state = a_state(
        services=[a_service(name) for name in names],
        gpus=[gpu for _, gpus in nodes for gpu in gpus],
    )
    return replace(a_snapshot(state=state), avoided=avoiding(*pairs))


def avoiding(*pairs: tuple[str, str]) -> tuple[AvoidedGpu, ...]:
    """Services that avoid GPUs."""
    return tuple(
        AvoidedGpu(
            service=service,
            gpu=GpuId(gpu),
            until=NOW + timedelta(minutes=1),
            detail="no",
        )
        for service, gpu in pairs
    )


@pytest.mark.parametrize(("gpus", "count"), [(1, 1), (2, 3)])
def test_from_two_gpus_of_a_node_on_nothing_starts_on_the_whole_node(
    gpus: int, count: int
) -> None:
    snapshot = failing(*(("chat", f"n1/gpu-{index}") for index in range(gpus)))
    avoided = avoided_gpus(snapshot)
    assert avoided.failing["chat"] == {f"n1/gpu-{index}" for index in range(gpus)}
    assert avoided.closed["chat"] == {f"n1/gpu-{index}" for index in range(count)}


def test_replicas_that_serve_on_a_node_where_others_fail_stay() -> None:
    target = a_bound_plan(*([a_replica(f"r{number}")] for number in range(3)))
    on_n1 = replace(
        target,
        gpus=tuple(
            replace(gpu, id=GpuId(f"n1/gpu-{index}"), node=NodeId("n1"))
            for index, gpu in enumerate(target.gpus)
        ),
    )
    avoided = avoided_gpus(failing(("chat", "n1/gpu-0"), ("chat", "n1/gpu-1")))
    kept = without_avoided(on_n1, avoided)
    assert kept is not None
    assert [gpu.id for gpu in kept.gpus] == ["n1/gpu-2"]


def with_task(*nodes: str) -> Fleet:
    """Services that leave a half of every GPU, and a task that takes one of them."""
    fleet = a_fleet(
        *(a_service(f"chat-{node}") for node in nodes),
        solver=Answering(plan=half_a_gpu_per_service),
        nodes=nodes,
    )
    fleet.store.put_points([replace(POINTS, network="train")])
    fleet.store.put_tasks([NIGHTLY], at=fleet.clock.now())
    return fleet


def half_a_gpu_per_service(problem: Problem) -> Plan:
    gpus = on_half_gpus(problem).gpus
    alone = (replace(gpu, replicas=(each,)) for gpu in gpus for each in gpu.replicas)
    return Plan(policy="test", gpus=tuple(alone))


def tick_on(fleet: Fleet) -> TickOutcome:
    nodes = [node.id for node in snapshot_of(fleet).state.nodes]
    return after(fleet, {f"chat-{node}": 20.0 for node in nodes})


def place_of_task(fleet: Fleet) -> GpuId:
    return task_places(fleet.store.pushed[-1][1])["nightly"][0]


def fail_task(fleet: Fleet, count: int = FAILURES) -> GpuId:
    """The node of the task says that it does not start; on which GPU."""
    gpu = place_of_task(fleet)
    failure = LaunchFailure(replica="nightly", gpu_index=0, detail="no data set")
    report(fleet, gpu.partition("/")[0], failure, count)
    return gpu


def test_a_task_whose_launches_fail_on_a_gpu_is_placed_on_another() -> None:
    fleet = with_task("n1", "n2", "n3")
    tick_on(fleet)
    first = fail_task(fleet, FAILURES - 1)
    tick_on(fleet)
    assert place_of_task(fleet) == first
    fail_task(fleet, 1)
    outcome = tick_on(fleet)
    second = place_of_task(fleet)
    assert second != first
    assert f"task nightly: its launches fail; it avoids {first}" in told(outcome)
    # It stays there when the time is over.
    fleet.pass_time(FIRST.total_seconds(), heard=("n1", "n2", "n3"))
    tick_on(fleet)
    assert place_of_task(fleet) == second


def test_a_task_that_fails_on_every_gpu_or_on_three_nodes_stays_where_it_is() -> None:
    for nodes, moves in (
        (("n1",), 0),
        (("n1", "n2"), 1),
        (("n1", "n2", "n3", "n4"), 2),
    ):
        fleet = with_task(*nodes)
        tick_on(fleet)
        tried = [place_of_task(fleet)]
        for _ in range(4):
            fail_task(fleet)
            tick_on(fleet)
            tried.append(place_of_task(fleet))
        assert len(set(tried)) == 1 + moves
        assert len(set(tried[moves:])) == 1


@pytest.mark.parametrize(
    ("place", "is_left"), [("n1/gpu-2", False), ("n1/gpu-0", True)]
)
def test_a_task_that_runs_on_a_node_on_which_it_failed_elsewhere_stays(
    place: str, is_left: bool
) -> None:
    bound = BoundTask(
        name="nightly",
        kind="training",
        network="train",
        batch=1,
        sm_percent=50.0,
        memory_mib=1000.0,
        iterations=10,
    )
    (gpu,) = a_bound_plan([a_replica("r1")]).gpus
    target = replace(
        a_bound_plan(),
        gpus=(replace(gpu, id=GpuId(place), replicas=(), tasks=(bound,)),),
    )
    key = task_key("nightly")
    snapshot = failing((key, "n1/gpu-0"), (key, "n1/gpu-1"))
    state = replace(snapshot.state, services=(), tasks=(NIGHTLY,))
    (task,) = usable_state(replace(snapshot, state=state, target=target)).tasks
    assert (GpuId(place) in task.avoided_gpus) == is_left
    assert {"n1/gpu-0", "n1/gpu-1"} <= task.avoided_gpus


def test_on_a_fleet_of_one_node_a_task_avoids_no_more_than_where_it_failed() -> None:
    key = task_key("nightly")
    snapshot = failing((key, "n1/gpu-0"), (key, "n1/gpu-1"))
    state = replace(
        snapshot.state,
        services=(),
        tasks=(NIGHTLY,),
        gpus=tuple(gpu for gpu in snapshot.state.gpus if gpu.node == "n1"),
    )
    (task,) = usable_state(replace(snapshot, state=state)).tasks
    assert task.avoided_gpus == {"n1/gpu-0", "n1/gpu-1"}


def test_a_task_that_avoids_a_gpu_waits_while_no_other_one_has_room() -> None:
    fleet = with_task("n1")
    fleet.store.put_node(*a_node("n2"), at=fleet.clock.now())
    tick_on(fleet)
    assert fail_task(fleet) == "n1/gpu-0"
    # Nothing serves on n2, so that the task would have to wait for ten minutes before it is paid for.
    tick_on(fleet)
    assert task_places(fleet.store.pushed[-1][1]) == {}


def test_a_service_and_a_task_of_one_name_do_not_avoid_each_others_gpus() -> None:
    fleet = fleet_of("n1", "n2")
    task = Task(
        name="chat", kind="training", network="train", batch=1, iterations=10**6
    )
    fleet.store.put_tasks([task], at=fleet.clock.now())
    snapshot = replace(snapshot_of(fleet), avoided=avoiding(("chat", "n1/gpu-0")))
    assert usable_state(snapshot).tasks == (task,)
    other = replace(snapshot, avoided=avoiding((task_key("chat"), "n1/gpu-0")))
    assert avoided_gpus(other) == AvoidedGpus()
    (avoiding_task,) = usable_state(other).tasks
    assert avoiding_task.avoided_gpus == {"n1/gpu-0"}


def test_a_gpu_on_which_two_services_fail_starts_nothing_of_anybody() -> None:
    snapshot = failing(
        ("chat", "n1/gpu-0"), ("photo", "n1/gpu-0"), ("photo", "n2/gpu-1")
    )
    state = with_shared_cordons(snapshot.state, avoided_gpus(snapshot))
    assert [gpu.id for gpu in state.gpus if gpu.cordoned] == ["n1/gpu-0"]
    # What was said of services and GPUs that are gone changes nothing.
    left = failing(("chat", "n1/gpu-0"), ("chat", "n9/gpu-0"))
    gone = replace(left, state=replace(left.state, services=()))
    assert avoided_gpus(left).closed == {"chat": {"n1/gpu-0"}}
    assert avoided_gpus(gone) == AvoidedGpus()
