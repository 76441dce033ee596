"""The bill of a simulated run, by hand: two GPU types, two targets, half an hour each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from app.simulate.run.accounting import make_bill, sum_bills, within
from solvers.types.plan import BoundGpu, BoundPlan, BoundReplica, BoundTask
from solvers.types.state import GpuId, GpuType, NodeId, ReplicaId

START = datetime(2026, 1, 1, tzinfo=UTC)


def gpu_type(name: str, price: float) -> GpuType:
    return GpuType(
        name=name,
        price_usd_per_hour=price,
        memory_mib=16_000.0,
        sm_percent_step=10.0,
        idle_w=20.0,
        power_cap_w=70.0,
        clocks_mhz=(1000.0,),
    )


TYPES = (gpu_type("small", 0.5), gpu_type("big", 3.0))


def target(
    generation: int, *gpus: tuple[str, str, tuple[tuple[str, float, float], ...]]
) -> BoundPlan:
    """(GPU id, GPU type, replicas of (service, SM percent, MiB))."""
    return BoundPlan(
        generation=generation,
        parent=generation - 1,
        policy="test",
        gpus=tuple(
            BoundGpu(
                id=GpuId(name),
                node=NodeId("n"),
                gpu_type=kind,
                clock_mhz=1000.0,
                power_cap_w=70.0,
                replicas=tuple(
                    BoundReplica(
                        id=ReplicaId(f"{service}-{name}"),
                        service=service,
                        network="net",
                        sm_percent=share,
                        batch=1,
                        arrival_rate_rps=1.0,
                        memory_mib=memory,
                    )
                    for service, share, memory in replicas
                ),
            )
            for name, kind, replicas in gpus
        ),
    )


def test_a_gpu_is_paid_by_its_services_in_proportion_to_sm_percent() -> None:
    # One hour of a 3 USD GPU, 60 % and 20 % given: 3 · 60/80 = 2.25 and 3 · 20/80 = 0.75.
    plan = target(1, ("g", "big", (("a", 60.0, 4000.0), ("b", 20.0, 2000.0))))
    bill = make_bill([(START, plan)], TYPES, START + timedelta(hours=1))
    assert bill.whole_gpu_usd == pytest.approx({"a": 2.25, "b": 0.75})
    # By memory: 3 · 4000/16000 = 0.75 and 3 · 2000/16000 = 0.375.
    assert bill.memory_usd == pytest.approx({"a": 0.75, "b": 0.375})


def test_each_target_counts_until_the_next_one() -> None:
    # 30 min on the big GPU (1.5 USD), then 15 min on two small ones (2 · 0.5 · 0.25 = 0.25 USD).
    first = target(1, ("g", "big", (("a", 100.0, 8000.0),)))
    second = target(
        2,
        ("s0", "small", (("a", 50.0, 8000.0),)),
        ("s1", "small", (("a", 50.0, 8000.0),)),
    )
    pushed = [(START, first), (START + timedelta(minutes=30), second)]
    bill = make_bill(pushed, TYPES, START + timedelta(minutes=45))
    assert bill.total_usd == pytest.approx(1.75)
    assert bill.gpu_hours == pytest.approx({"big": 0.5, "small": 0.5})


@pytest.mark.parametrize(
    ("from_min", "until_min", "expected"),
    [
        (0, 15, [(5, 1), (10, 2)]),
        (7, 9, [(7, 1)]),
        (10, 25, [(10, 2), (20, 3)]),
        (30, 40, [(30, 3)]),
        (0, 5, []),
    ],
)
def test_the_targets_of_a_stretch_begin_with_the_one_in_force(
    from_min: int, until_min: int, expected: list[tuple[int, int]]
) -> None:
    def at(minute: int) -> datetime:
        return START + timedelta(minutes=minute)

    pushed = [(at(5), target(1)), (at(10), target(2)), (at(20), target(3))]
    found = within(pushed, at(from_min), at(until_min))
    assert [(moment, plan.generation) for moment, plan in found] == [
        (at(minute), each) for minute, each in expected
    ]


def test_bills_of_stretches_add_up_to_the_bill_of_the_whole() -> None:
    first = target(1, ("g", "big", (("a", 100.0, 8000.0),)))
    second = target(2, ("s", "small", (("a", 40.0, 500.0), ("b", 10.0, 600.0))))
    pushed = [(START, first), (START + timedelta(minutes=30), second)]
    ends = [START + timedelta(minutes=minute) for minute in (0, 20, 40, 60)]
    whole = make_bill(pushed, TYPES, ends[-1])
    added = sum_bills(
        [make_bill(within(pushed, *each), TYPES, each[1]) for each in pairwise(ends)]
    )
    for name in ("whole_gpu_usd", "memory_usd", "gpu_hours"):
        assert getattr(added, name) == pytest.approx(getattr(whole, name))


def test_a_gpu_with_nothing_but_tasks_is_paid_by_them_and_one_with_replicas_is_not() -> (
    None
):
    # One hour of two GPUs at 3 USD: a's own, and one that tasks share 30 to 60.
    plan = target(1, ("g", "big", (("a", 50.0, 100.0),)), ("h", "big", ()))

    def task(name: str, share: float) -> BoundTask:
        return BoundTask(
            name=name,
            kind="training",
            network="net",
            batch=1,
            sm_percent=share,
            memory_mib=1.0,
            iterations=1,
        )

    first, second = plan.gpus
    gpus = (
        replace(first, tasks=(task("x", 40.0),)),
        replace(second, tasks=(task("y", 30.0), task("z", 60.0))),
    )
    bill = make_bill(
        [(START, replace(plan, gpus=gpus))], TYPES, START + timedelta(hours=1)
    )
    assert (bill.whole_gpu_usd, bill.tasks_usd) == (
        pytest.approx({"a": 3.0}),
        pytest.approx({"y": 1.0, "z": 2.0}),
    )
    assert bill.total_usd == sum_bills([bill]).total_usd == pytest.approx(6.0)
