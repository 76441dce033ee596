"""Transitions: capacity is added before it is taken away, and what cannot be helped is told in rps."""

from dataclasses import replace

from solvers.tick.transition import RateLoss, TransitionStep, transition
from solvers.types.plan import BoundGpu, BoundReplica
from solvers.types.state import GpuId, NodeId, ReplicaId
from tests.solvers.small_plans import example

BIG_MIB = 40000.0
"""Memory of the example's `big` GPU, which two replicas may share."""


def a_replica(
    name: str, *, rate_rps: float = 10.0, batch: int = 1, memory_mib: float = 1000.0
) -> BoundReplica:
    """The replica `name`, of the service that the part before the dash names."""
    return BoundReplica(
        id=ReplicaId(name),
        service=name.split("-")[0],
        network="net",
        sm_percent=50.0,
        batch=batch,
        arrival_rate_rps=rate_rps,
        memory_mib=memory_mib,
    )


def a_gpu(
    name: str,
    *replicas: BoundReplica,
    clock_mhz: float = 1000.0,
    power_cap_w: float = 300.0,
) -> BoundGpu:
    return BoundGpu(
        id=GpuId(name),
        node=NodeId("node"),
        gpu_type="big",
        clock_mhz=clock_mhz,
        power_cap_w=power_cap_w,
        replicas=replicas,
    )


def steps(
    before: list[BoundGpu], after: list[BoundGpu], *, max_replicas_per_gpu: int = 2
) -> tuple[TransitionStep, ...]:
    problem = replace(example()[0], max_replicas_per_gpu=max_replicas_per_gpu)
    return transition(problem, before, after)


def acts(
    taken: tuple[TransitionStep, ...],
) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(step.gpu, step.mode, step.start, step.stop) for step in taken]


def losses(taken: tuple[TransitionStep, ...]) -> dict[str, float]:
    """The deepest loss of each service."""
    deepest: dict[str, float] = {}
    for step in taken:
        for loss in step.losses:
            deepest[loss.service] = max(loss.rate_rps, deepest.get(loss.service, 0.0))
    return deepest


def test_nothing_to_do_is_no_step() -> None:
    gpus = [a_gpu("g0", a_replica("a-1")), a_gpu("g1", a_replica("a-2"))]
    assert steps(gpus, gpus) == ()
    assert steps([], []) == ()


def test_a_replica_is_replaced_by_its_shadow_where_both_fit() -> None:
    taken = steps([a_gpu("g", a_replica("a-1"))], [a_gpu("g", a_replica("a-2"))])
    assert acts(taken) == [("g", "shadow", ("a-2",), ()), ("g", "shadow", (), ("a-1",))]
    assert [step.keep for step in taken] == [("a-1",), ("a-2",)]
    assert losses(taken) == {}


def test_memory_exactly_full_allows_the_shadow_and_one_mib_less_does_not() -> None:
    old, new = (
        a_replica("a-1", memory_mib=BIG_MIB / 2),
        a_replica("a-2", memory_mib=BIG_MIB / 2),
    )
    assert [step.mode for step in steps([a_gpu("g", old)], [a_gpu("g", new)])] == [
        "shadow",
        "shadow",
    ]
    taken = steps(
        [a_gpu("g", old)], [a_gpu("g", replace(new, memory_mib=BIG_MIB / 2 + 1))]
    )
    assert acts(taken) == [("g", "drain_first", ("a-2",), ("a-1",))]
    assert taken[0].losses == (RateLoss(service="a", rate_rps=10.0),)


def test_a_kept_replica_counts_the_larger_of_its_memories_while_others_switch() -> None:
    before = [
        a_gpu(
            "g",
            a_replica("k-1", memory_mib=30000.0),
            a_replica("a-1", memory_mib=6000.0),
        )
    ]
    after = [
        a_gpu(
            "g",
            a_replica("k-1", memory_mib=10000.0, batch=4),
            a_replica("a-2", memory_mib=6000.0),
        )
    ]
    assert [step.mode for step in steps(before, after, max_replicas_per_gpu=3)] == [
        "drain_first"
    ]


def test_the_replica_limit_stops_a_shadow() -> None:
    before = [a_gpu("g", a_replica("a-1"), a_replica("b-1"))]
    after = [a_gpu("g", a_replica("a-2"), a_replica("b-1"))]
    (step,) = steps(before, after)
    assert (step.mode, step.start, step.stop, step.keep) == (
        "drain_first",
        ("a-2",),
        ("a-1",),
        ("b-1",),
    )
    assert [each.mode for each in steps(before, after, max_replicas_per_gpu=3)] == [
        "shadow",
        "shadow",
    ]


def test_capacity_is_added_before_it_is_taken_away() -> None:
    full = BIG_MIB
    before = [
        a_gpu("g0", a_replica("a-1")),
        a_gpu("g1", a_replica("b-1", memory_mib=full)),
        a_gpu("g2", a_replica("c-1")),
    ]
    after = [
        a_gpu("g1", a_replica("a-2", memory_mib=full)),
        a_gpu("g2", a_replica("d-1")),
        a_gpu("g3", a_replica("b-2"), a_replica("c-2")),
    ]
    taken = steps(before, after)
    assert acts(taken) == [
        ("g3", "shadow", ("b-2", "c-2"), ()),
        ("g2", "shadow", ("d-1",), ()),
        ("g1", "drain_first", ("a-2",), ("b-1",)),
        ("g2", "shadow", (), ("c-1",)),
        ("g0", "shadow", (), ("a-1",)),
    ]
    assert losses(taken) == {}


def test_two_full_gpus_that_swap_lose_one_service_after_the_other() -> None:
    def full(name: str, rate_rps: float) -> BoundReplica:
        return a_replica(name, rate_rps=rate_rps, memory_mib=BIG_MIB)

    taken = steps(
        [a_gpu("g0", full("a-1", 10.0)), a_gpu("g1", full("b-1", 4.0))],
        [a_gpu("g0", full("b-2", 4.0)), a_gpu("g1", full("a-2", 10.0))],
    )
    # g1 gains 6 rps, so it goes first: b is gone until g0 brings it back, while a runs twice for a moment.
    assert acts(taken) == [
        ("g1", "drain_first", ("a-2",), ("b-1",)),
        ("g0", "drain_first", ("b-2",), ("a-1",)),
    ]
    assert losses(taken) == {"b": 4.0}


def test_a_service_that_shrinks_loses_only_what_it_still_needs() -> None:
    before = [
        a_gpu("g0", a_replica("a-1", rate_rps=30.0)),
        a_gpu("g1", a_replica("a-2", rate_rps=30.0)),
    ]
    assert losses(steps(before, before[:1])) == {}
    shrunk = [a_gpu("g0", a_replica("a-3", rate_rps=40.0, memory_mib=BIG_MIB))]
    # 60 rps before, 40 after; while g0 drains, a-2's 30 remain: 10 short.
    assert losses(steps(before, shrunk)) == {"a": 10.0}


def test_a_stop_waits_for_the_neighbour_that_takes_its_rate_over() -> None:
    before = [
        a_gpu("g0", a_replica("a-1", rate_rps=10.0)),
        a_gpu("g1", a_replica("a-2", rate_rps=10.0)),
    ]
    after = [a_gpu("g1", a_replica("a-2", rate_rps=20.0, batch=4))]
    taken = steps(before, after)
    assert [(step.gpu, step.change, step.stop) for step in taken] == [
        ("g1", ("a-2",), ()),
        ("g0", (), ("a-1",)),
    ]
    assert losses(taken) == {}


def test_replicas_that_only_change_rates_carry_the_larger_one_throughout() -> None:
    def shared(name: str, s_rps: float, t_rps: float) -> BoundGpu:
        return a_gpu(
            name,
            a_replica(f"s-{name}", rate_rps=s_rps),
            a_replica(f"t-{name}", rate_rps=t_rps),
        )

    before, after = (
        [shared("g0", 100, 50), shared("g1", 50, 100)],
        [shared("g0", 50, 100), shared("g1", 100, 50)],
    )
    assert losses(steps(before, after)) == {}
    # Next to two replicas that swap 100 and 50 rps, 60 drain: 210 are needed, 2 · 100 are left.
    drained = a_replica("s-old", rate_rps=60.0, memory_mib=BIG_MIB)
    before = [shared("g0", 100, 0), shared("g1", 50, 0), a_gpu("g2", drained)]
    after = [
        shared("g0", 50, 0),
        shared("g1", 100, 0),
        a_gpu("g2", replace(drained, id=ReplicaId("s-new"))),
    ]
    assert losses(steps(before, after)) == {"s": 10.0}


def test_a_batch_change_carries_the_new_rate_only_after_its_step() -> None:
    before = [
        a_gpu("g0", a_replica("a-1", rate_rps=20.0)),
        a_gpu("g1", a_replica("a-2", rate_rps=5.0)),
    ]
    after = [
        a_gpu("g0", a_replica("a-1", rate_rps=5.0, batch=4)),
        a_gpu("g1", a_replica("a-3", rate_rps=20.0, memory_mib=BIG_MIB)),
    ]
    # 25 before and after; while g1 drains, only a-1's old 20 are carried.
    assert losses(steps(before, after)) == {"a": 5.0}


def test_clock_and_power_cap_change_every_replica_of_the_gpu() -> None:
    before = [a_gpu("g", a_replica("a-1"), a_replica("b-1"))]
    for after in (
        replace(before[0], clock_mhz=1400.0),
        replace(before[0], power_cap_w=250.0),
    ):
        (step,) = steps(before, [after])
        assert (step.change, step.keep, step.start, step.stop) == (
            ("a-1", "b-1"),
            (),
            (),
            (),
        )
