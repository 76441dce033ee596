"""Binding: fewest replicas started, stable ids, cordons and losses, whatever the order of the input."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from solvers.tick.bind import Bound, bind
from solvers.types.errors import InvalidInput
from solvers.types.plan import (
    BoundPlan,
    BoundTask,
    GpuPlan,
    Plan,
    ReplicaPlan,
    anonymous,
)
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import Gpu, GpuId, GpuType, Node, NodeId
from tests.examples import seeds
from tests.solvers.instances import gpu_plan, replica_on, with_services

SERVICES = ("a", "b", "c", "d")
SM_PERCENTS = (25.0, 50.0, 75.0, 100.0)


def a_problem() -> Problem:
    """Two GPU types of 10 GiB with 4 services; a replica takes 1 GiB + 0.5 GiB per batch item."""
    rows = tuple(
        OperatingPoint(
            sm_percent, batch, clock, 0.0, 0.0, 1.0, 1024.0 + 512.0 * batch, 1.0, 0.0
        )
        for sm_percent, batch, clock in itertools.product(
            SM_PERCENTS, (1, 4), (1000.0, 1500.0)
        )
    )
    types = tuple(
        GpuType(
            name=name,
            price_usd_per_hour=1.0,
            memory_mib=10240.0,
            sm_percent_step=25.0,
            idle_w=10.0,
            power_cap_w=cap,
            clocks_mhz=(1000.0, 1500.0),
        )
        for name, cap in (("big", 300.0), ("small", 70.0))
    )
    return Problem(
        max_replicas_per_gpu=8,
        capacity_law=CapacityLaw(
            percentiles=(0.95,),
            batches=(1, 4),
            slo_ratios=(1.0, 2.0),
            max_utilisation=(((0.0, 1.0), (0.0, 1.0)),),
        ),
        gpu_types=types,
        services=tuple(
            ServiceDemand(
                name=name,
                network="net",
                slo_ms=100.0,
                percentile=0.95,
                arrival_rate_rps=1.0,
            )
            for name in SERVICES
        ),
        points=tuple(
            OperatingPoints(
                network="net", gpu_type=each.name, sensitivity=0.0, rows=rows
            )
            for each in types
        ),
    )


PROBLEM = a_problem()


def replica(
    service: str, sm_percent: float = 25.0, batch: int = 1, rate_rps: float = 10.0
) -> ReplicaPlan:
    return replica_on(service, sm_percent, rate_rps, batch=batch)


def on_gpu(
    *replicas: ReplicaPlan | str,
    count: int = 1,
    gpu_type: str = "big",
    clock_mhz: float = 1000.0,
) -> GpuPlan:
    each = tuple(replica(item) if isinstance(item, str) else item for item in replicas)
    return gpu_plan(*each, gpu_type=gpu_type, count=count, clock_mhz=clock_mhz)


def a_plan(*gpus: GpuPlan) -> Plan:
    return Plan(policy="test", gpus=gpus)


def fleet(count: int, *, gpu_type: str = "big", **flags: bool) -> list[Gpu]:
    return [
        Gpu(
            id=GpuId(f"{gpu_type}-{i}"),
            node=NodeId(f"n{i % 2}"),
            gpu_type=gpu_type,
            index=i // 2,
            **flags,
        )
        for i in range(count)
    ]


NODES = [Node(id=NodeId("n0")), Node(id=NodeId("n1"))]


def bound(
    plan: Plan,
    gpus: Sequence[Gpu],
    running: BoundPlan | None = None,
    nodes: Sequence[Node] = NODES,
) -> Bound:
    generation = running.generation + 1 if running else 1
    return bind(PROBLEM, plan, gpus, nodes, running=running, generation=generation)


def where(target: BoundPlan) -> dict[str, list[str]]:
    """Services by GPU id."""
    return {gpu.id: [each.service for each in gpu.replicas] for gpu in target.gpus}


def ids(target: BoundPlan) -> dict[str, list[str]]:
    return {gpu.id: [each.id for each in gpu.replicas] for gpu in target.gpus}


def started(result: Bound) -> int:
    return sum(len(step.start) for step in result.steps)


def test_a_first_plan_takes_the_lowest_ids_and_names_its_replicas() -> None:
    result = bound(a_plan(on_gpu("a", "b", count=2)), fleet(4))
    assert result.plan.generation == 1 and result.plan.parent == 0
    assert ids(result.plan) == {
        "big-0": ["a-g1-1", "b-g1-2"],
        "big-1": ["a-g1-3", "b-g1-4"],
    }
    assert [(step.gpu, step.mode, step.start, step.stop) for step in result.steps] == [
        ("big-0", "shadow", ("a-g1-1", "b-g1-2"), ()),
        ("big-1", "shadow", ("a-g1-3", "b-g1-4"), ()),
    ]


def test_everything_that_an_agent_needs_is_bound() -> None:
    (gpu,) = bound(
        a_plan(on_gpu(replica("a", 50.0, 4, 7.0), gpu_type="small", clock_mhz=1500.0)),
        fleet(1, gpu_type="small"),
    ).plan.gpus
    assert (gpu.id, gpu.node, gpu.gpu_type, gpu.clock_mhz, gpu.power_cap_w) == (
        "small-0",
        "n0",
        "small",
        1500.0,
        70.0,
    )
    (only,) = gpu.replicas
    assert (only.service, only.network, only.sm_percent, only.batch) == (
        "a",
        "net",
        50.0,
        4,
    )
    assert (only.arrival_rate_rps, only.memory_mib) == (7.0, 1024.0 + 4 * 512.0)


def test_the_same_plan_again_changes_nothing_but_the_generation() -> None:
    plan = a_plan(
        on_gpu("a", "b", count=2),
        on_gpu(replica("c", 100.0)),
        on_gpu("d", gpu_type="small"),
    )
    gpus = [*fleet(5), *fleet(2, gpu_type="small")]
    first = bound(plan, gpus).plan
    again = bound(plan, gpus, first)
    assert again.steps == ()
    assert again.plan == replace(first, generation=2, parent=1)


def test_batch_rate_and_clock_change_in_place() -> None:
    gpus = fleet(3)
    first = bound(a_plan(on_gpu(replica("a", 50.0, 4, 30.0)), on_gpu("b")), gpus).plan
    second = bound(
        a_plan(on_gpu("b"), on_gpu(replica("a", 50.0, 1, 10.0), clock_mhz=1500.0)),
        gpus,
        first,
    )
    assert ids(second.plan) == ids(first)
    assert {gpu.clock_mhz for gpu in second.plan.gpus} == {1000.0, 1500.0}


def test_a_smaller_batch_keeps_the_memory_that_was_reserved() -> None:
    gpus = fleet(1)
    first = bound(
        a_plan(on_gpu(replica("a", 50.0, 4))), gpus
    ).plan  # 1024 + 4 · 512 MiB
    second = bound(a_plan(on_gpu(replica("a", 50.0, 1))), gpus, first).plan
    assert [each.memory_mib for each in second.gpus[0].replicas] == [3072.0]
    assert (
        bound(a_plan(on_gpu(replica("a", 50.0, 4))), gpus, second).plan.gpus
        == first.gpus
    )


def test_a_larger_batch_than_the_memory_was_reserved_for_is_another_replica() -> None:
    gpus = fleet(1)
    first = bound(a_plan(on_gpu(replica("a", 50.0, 1), "b")), gpus).plan
    second = bound(a_plan(on_gpu(replica("a", 50.0, 4), "b")), gpus, first).plan
    assert ids(second) == {"big-0": ["a-g2-1", "b-g1-2"]}


def test_a_reservation_is_given_up_where_the_memory_is_needed() -> None:
    # Two replicas at batch 4 reserve 2 · 3072 MiB of 10240. At batch 1 they need 2 · 1536, and two new ones at batch 4
    # need 2 · 3072 more: 6144 + 3072 fits, 6144 + 6144 does not, 6144 + 1536 + 3072 (10752) does not either.
    gpus = fleet(1)
    first = bound(
        a_plan(on_gpu(replica("a", batch=4), replica("b", batch=4))), gpus
    ).plan
    wanted = on_gpu(*(replica(name, batch=1 if name in "ab" else 4) for name in "abcd"))
    second = bound(a_plan(wanted), gpus, first).plan
    assert sum(each.memory_mib for each in second.gpus[0].replicas) <= 10240.0
    assert ids(second) == {"big-0": ["a-g2-1", "b-g2-2", "c-g2-3", "d-g2-4"]}


def test_another_sm_percent_or_network_is_another_replica() -> None:
    gpus = fleet(1)
    first = bound(a_plan(on_gpu("a")), gpus).plan
    wider = bound(a_plan(on_gpu(replica("a", 50.0))), gpus, first)
    assert ids(wider.plan) == {"big-0": ["a-g2-1"]}
    renamed = replace(
        with_services(PROBLEM, network="net2"),
        points=tuple(replace(each, network="net2") for each in PROBLEM.points),
    )
    retrained = bind(
        renamed, a_plan(on_gpu("a")), gpus, NODES, running=first, generation=2
    )
    assert ids(retrained.plan) == {"big-0": ["a-g2-1"]}


def test_a_batch_change_is_avoided_where_another_gpu_needs_none() -> None:
    gpus = fleet(2)
    first = bound(a_plan(on_gpu(replica("a", batch=4))), gpus).plan
    second = bound(
        a_plan(on_gpu(replica("a", batch=4)), on_gpu(replica("a", batch=1))),
        gpus,
        first,
    ).plan
    assert [gpu.replicas[0].batch for gpu in second.gpus] == [4, 1]
    assert (
        bound(
            a_plan(on_gpu(replica("a", batch=1)), on_gpu(replica("a", batch=4))),
            gpus,
            second,
        ).steps
        == ()
    )


def test_a_clock_change_is_avoided_where_another_gpu_needs_none() -> None:
    gpus = fleet(2)
    first = bound(a_plan(on_gpu("a", clock_mhz=1500.0)), gpus).plan
    second = bound(
        a_plan(on_gpu("a", clock_mhz=1500.0), on_gpu("a", clock_mhz=1000.0)),
        gpus,
        first,
    ).plan
    assert [gpu.clock_mhz for gpu in second.gpus] == [1500.0, 1000.0]
    assert (
        bound(
            a_plan(on_gpu("a", clock_mhz=1000.0), on_gpu("a", clock_mhz=1500.0)),
            gpus,
            second,
        ).steps
        == ()
    )


def test_a_gpu_that_carries_nothing_is_better_than_one_that_must_drain_first() -> None:
    # A replica of batch 4 takes 3 GiB, so four of them do not fit into 10 GiB side by side.
    first = bound(
        a_plan(on_gpu(replica("a", batch=4), replica("b", batch=4))), fleet(2)
    ).plan
    result = bound(
        a_plan(on_gpu(replica("c", batch=4), replica("d", batch=4))), fleet(2), first
    )
    assert where(result.plan) == {"big-1": ["c", "d"]}
    crowded = bound(
        a_plan(on_gpu(replica("c", batch=4), replica("d", batch=4))), fleet(1), first
    )
    assert [step.mode for step in crowded.steps] == ["drain_first"]


def test_gpus_are_matched_within_their_type_only() -> None:
    gpus = [*fleet(1), *fleet(1, gpu_type="small")]
    first = bound(a_plan(on_gpu("a", gpu_type="small")), gpus).plan
    moved = bound(a_plan(on_gpu("a", gpu_type="big")), gpus, first)
    assert where(moved.plan) == {"big-0": ["a"]}
    assert started(moved) == 1


def drawn_plan(draw: random.Random) -> Plan:
    """1 to 4 GPUs with 1 to 3 replicas each."""
    return a_plan(
        *(
            on_gpu(
                *(
                    replica(name, draw.choice((25.0, 50.0)))
                    for name in draw.sample(SERVICES, draw.randint(1, 3))
                ),
                clock_mhz=draw.choice((1000.0, 1500.0)),
            )
            for _ in range(draw.randint(1, 4))
        )
    )


@pytest.mark.parametrize("seed", seeds(16))
def test_no_assignment_of_gpus_starts_fewer_replicas(seed: int) -> None:
    draw, gpus = random.Random(seed), fleet(4)
    first, wanted = bound(drawn_plan(draw), gpus).plan, drawn_plan(draw)
    result = bound(wanted, gpus, first)
    held = {
        gpu.id: Counter((each.service, each.sm_percent) for each in gpu.replicas)
        for gpu in first.gpus
    }
    patterns = [
        Counter((each.service, each.sm_percent) for each in gpu.replicas)
        for gpu in wanted.gpus
    ]
    least = min(
        sum(
            (pattern - held.get(gpu.id, Counter())).total()
            for pattern, gpu in zip(patterns, chosen, strict=True)
        )
        for chosen in itertools.permutations(gpus, len(patterns))
    )
    assert started(result) == least
    assert _content(anonymous(result.plan)) == _content(wanted)


def _content(plan: Plan) -> Counter[GpuPlan]:
    return Counter(
        replace(
            gpu,
            count=1,
            replicas=tuple(sorted(gpu.replicas, key=lambda each: each.service)),
        )
        for gpu in plan.gpus
        for _ in range(gpu.count)
    )


def test_gpus_that_carry_nothing_are_filled_by_id_in_the_order_of_content() -> None:
    for seed in range(100):
        draw, gpus = random.Random(seed), fleet(8)
        first = bound(drawn_plan(draw), gpus).plan
        taken = [
            gpu
            for gpu in bound(drawn_plan(draw), gpus, first).plan.gpus
            if gpu.id not in where(first)
        ]
        assert [gpu.id for gpu in taken] == [
            gpu.id for gpu in gpus if gpu.id not in where(first)
        ][: len(taken)], seed
        contents = [
            (gpu.clock_mhz, [(each.service, each.sm_percent) for each in gpu.replicas])
            for gpu in taken
        ]
        assert contents == sorted(contents), seed


@pytest.mark.parametrize("seed", seeds(8))
def test_the_order_of_the_input_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)
    gpus, nodes = fleet(6), list(NODES)
    first = bound(
        a_plan(on_gpu("a", "b", count=2), on_gpu("c"), on_gpu("d", "a")), gpus
    ).plan
    patterns = [
        on_gpu("a", "b"),
        on_gpu("a", "c", count=2),
        on_gpu(replica("d", 50.0)),
        on_gpu("b", clock_mhz=1500.0),
    ]
    expected = bound(a_plan(*patterns), gpus, first)
    shuffled = [
        replace(each, replicas=tuple(draw.sample(each.replicas, len(each.replicas))))
        for each in patterns
    ]
    for items in (shuffled, gpus, nodes):
        draw.shuffle(items)
    turned = replace(first, gpus=tuple(draw.sample(first.gpus, len(first.gpus))))
    assert bound(a_plan(*shuffled), gpus, turned, nodes) == expected


def test_a_cordoned_gpu_keeps_what_runs_and_starts_nothing() -> None:
    plan = a_plan(on_gpu("a", "b"), on_gpu("c", "d"))
    first = bound(plan, fleet(2)).plan
    cordoned = [replace(gpu, cordoned=gpu.id == "big-1") for gpu in fleet(4)]
    assert bound(plan, cordoned, first).steps == ()
    less = bound(a_plan(on_gpu("a", "b"), on_gpu("c")), cordoned, first)
    assert where(less.plan) == {"big-0": ["a", "b"], "big-1": ["c"]}
    more = bound(a_plan(on_gpu("a", "b"), on_gpu("b", "c", "d")), cordoned, first)
    assert where(more.plan) == {"big-0": ["a", "b"], "big-2": ["b", "c", "d"]}
    assert [step.stop for step in more.steps if step.gpu == "big-1"] == [
        ("c-g1-3", "d-g1-4")
    ]
    no_room = bound(
        a_plan(on_gpu("a", "b"), on_gpu("b", "c", "d")), cordoned[:2], first
    )
    assert no_room.unplaced == (on_gpu("b", "c", "d"),)


def test_a_cordoned_node_cordons_its_gpus() -> None:
    nodes = [Node(id=NodeId("n0"), cordoned=True), Node(id=NodeId("n1"))]
    assert where(bound(a_plan(on_gpu("a")), fleet(4), nodes=nodes).plan) == {
        "big-1": ["a"]
    }


def test_an_unhealthy_gpu_is_emptied_and_takes_nothing() -> None:
    plan = a_plan(on_gpu("a"))
    first = bound(plan, fleet(2)).plan
    gpus = [replace(gpu, healthy=gpu.id != "big-0") for gpu in fleet(2)]
    result = bound(plan, gpus, first)
    assert where(result.plan) == {"big-1": ["a"]}
    assert [(step.gpu, step.start, step.stop) for step in result.steps] == [
        ("big-1", ("a-g2-1",), ()),
        ("big-0", (), ("a-g1-1",)),
    ]


def test_a_lost_gpu_needs_no_step() -> None:
    plan = a_plan(on_gpu("a", count=2))
    first = bound(plan, fleet(2)).plan
    result = bound(plan, [gpu for gpu in fleet(3) if gpu.id != "big-0"], first)
    assert ids(result.plan) == {"big-1": ["a-g1-2"], "big-2": ["a-g2-1"]}
    assert [step.gpu for step in result.steps] == ["big-2"]


def test_gpus_of_the_plan_without_a_place_are_returned() -> None:
    plan = a_plan(on_gpu("a", count=3), on_gpu("b", gpu_type="small", count=2))
    first = bound(a_plan(on_gpu("a")), fleet(2)).plan
    result = bound(plan, fleet(2), first)
    assert where(result.plan) == {"big-0": ["a"], "big-1": ["a"]}
    assert result.unplaced == (
        on_gpu("a"),
        on_gpu("b", gpu_type="small"),
        on_gpu("b", gpu_type="small"),
    )
    assert ids(result.plan)["big-0"] == ids(first)["big-0"]


def test_ids_are_never_used_twice() -> None:
    gpus, running, seen = fleet(3), None, set[str]()
    draw = random.Random(7)
    for _ in range(30):
        plan = a_plan(
            *(
                on_gpu(*draw.sample(SERVICES, draw.randint(1, 3)))
                for _ in range(draw.randint(0, 3))
            )
        )
        result = bound(plan, gpus, running)
        fresh = [each for step in result.steps for each in step.start]
        assert len(set(fresh)) == len(fresh) and seen.isdisjoint(fresh)
        seen.update(fresh)
        running = result.plan


@pytest.mark.parametrize("generation", [0, 1])
def test_a_generation_that_is_not_newer_is_refused(generation: int) -> None:
    first = bound(a_plan(on_gpu("a")), fleet(1)).plan
    with pytest.raises(InvalidInput, match="generation"):
        bind(PROBLEM, a_plan(), fleet(1), NODES, running=first, generation=generation)


def test_a_gpu_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'n1' of GPU 'big-1'"):
        bound(a_plan(on_gpu("a")), fleet(2), nodes=NODES[:1])


def test_gpus_on_which_only_tasks_run_are_taken_last() -> None:
    gpus = fleet(3)
    task = BoundTask(
        name="nightly",
        kind="training",
        network="t",
        batch=1,
        sm_percent=100.0,
        memory_mib=1.0,
        iterations=9,
    )
    before = bound(a_plan(on_gpu("a")), gpus).plan
    busy = replace(
        before.gpus[0], id=GpuId("big-1"), node=NodeId("n1"), replicas=(), tasks=(task,)
    )
    running = replace(before, gpus=(*before.gpus, busy))
    assert set(where(bound(a_plan(on_gpu("a"), on_gpu("b")), gpus, running).plan)) == {
        "big-0",
        "big-2",
    }
    wide = bound(a_plan(on_gpu("a"), on_gpu("b", count=2)), gpus, running)
    assert set(where(wide.plan)) == {"big-0", "big-1", "big-2"}
    cordoned = [replace(gpu, cordoned=gpu.id == "big-1") for gpu in gpus]
    assert (
        len(
            bound(a_plan(on_gpu("a"), on_gpu("b", count=2)), cordoned, running).unplaced
        )
        == 1
    )
