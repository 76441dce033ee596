"""InSS's batch decision: eq. 2 and the scan by hand."""

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.laws.capacity_law import make_capacity_law
from solvers.laws.colocation import capacity_rps
from solvers.papers.inss.batch_decision import (
    BatchHost,
    BatchTenant,
    decide_batches,
    task_latency_ms,
)
from solvers.types.problem import CapacityLaw, OperatingPoint
from solvers.types.state import GpuType

BATCHES = (1, 2, 4, 8)
CARD = GpuType(
    name="card",
    price_usd_per_hour=1.0,
    memory_mib=4000.0,
    sm_percent_step=5.0,
    idle_w=10.0,
    power_cap_w=200.0,
    clocks_mhz=(1000.0,),
    launch_per_neighbour=1.0,
)


@cache
def law() -> CapacityLaw:
    return make_capacity_law([0.98], BATCHES)


def host(**changes: object) -> BatchHost:
    return replace(BatchHost(gpu_type=CARD, law=law()), **changes)


def row(
    batch: int, run_ms: float, *, memory_mib: float = 1000.0, pressure: float = 0.1
) -> OperatingPoint:
    return OperatingPoint(
        50.0, batch, 1000.0, 0.0, 0.5, run_ms, memory_mib, 20.0, pressure
    )


def tenant(**facts: object) -> BatchTenant:
    """Batches of 1, 2, 4 and 8 that execute in 10.5, 12.5, 16.5 and 24.5 ms alone."""
    rows = tuple(
        row(batch, 8.5 + 2.0 * batch - 0.5, memory_mib=1000.0 + 100.0 * batch)
        for batch in BATCHES
    )
    chosen = BatchTenant(
        rows=rows,
        sensitivity=0.5,
        slo_ms=100.0,
        percentile=0.98,
        arrival_rate_rps=100.0,
    )
    return replace(chosen, **facts)


def test_a_request_that_finds_no_other_waits_for_its_batch_and_the_running() -> None:
    # W = 1 < 4: gathering takes 3 / 100 s = 30 ms, the running batch 20 ms: max(20, 30) + 20 = 50 ms.
    assert task_latency_ms(4, 20.0, arrival_rate_rps=100.0) == pytest.approx(50.0)
    # At 1000 requests per second 3 ms suffice, and the running batch is what lasts: 20 + 20 = 40 ms.
    assert task_latency_ms(4, 20.0, arrival_rate_rps=1000.0) == pytest.approx(40.0)
    # Nothing left of the running batch: 3 + 20 = 23 ms.
    assert task_latency_ms(
        4, 20.0, arrival_rate_rps=1000.0, remainder_ms=0.0
    ) == pytest.approx(23.0)


def test_latency_falls_with_the_batch_while_requests_wait() -> None:
    # W = 10 + 1 = 11. Batch 1 at 10 ms: 10 + 11 · 10 = 120 ms. Batch 4 at 14 ms: 14 + 3 · 14 = 56 ms.
    assert task_latency_ms(
        1, 10.0, arrival_rate_rps=50.0, queued=10.0
    ) == pytest.approx(120.0)
    assert task_latency_ms(
        4, 14.0, arrival_rate_rps=50.0, queued=10.0
    ) == pytest.approx(56.0)
    # W = 41: a batch in the middle may last longer than a larger and a smaller one.
    for batch, expected_ms in ((4, 168.0), (16, 104.0), (24, 102.0)):
        assert task_latency_ms(
            batch, 10.0 + batch, arrival_rate_rps=100.0, queued=40.0
        ) == pytest.approx(expected_ms)


def test_a_batch_that_nobody_fills_never_ends() -> None:
    assert task_latency_ms(2, 10.0, arrival_rate_rps=0.0) == math.inf
    assert task_latency_ms(1, 10.0, arrival_rate_rps=0.0) == pytest.approx(20.0)


def test_the_scan_takes_the_batch_that_carries_most() -> None:
    decided = decide_batches(host(fills_batches=True), [tenant()])
    assert decided is not None
    # Alone; at 100/s gathering 8 takes 70 ms, and 70 + 24.5 is within 100 ms.
    assert decided[0].row.batch == 8
    assert decided[0].carried_rps == pytest.approx(
        capacity_rps(law(), percentile=0.98, batch=8, slo_ms=100.0, execution_ms=24.5)
    )


def test_few_requests_make_small_batches_where_batches_are_filled() -> None:
    # At 30/s gathering 8 takes 233 ms and 4 takes 100 ms, both too long; 2 takes 33 ms.
    decided = decide_batches(host(fills_batches=True), [tenant(arrival_rate_rps=30.0)])
    assert decided is not None
    assert decided[0].row.batch == 2
    # Replicas that take whatever waits need not care.
    decided = decide_batches(host(), [tenant(arrival_rate_rps=30.0)])
    assert decided is not None
    assert decided[0].row.batch == 8


def test_a_queue_makes_batches_large_that_would_be_too_large_to_gather() -> None:
    # W = 13. Batch 1: 10.5 · 14 = 147 ms; 2: 12.5 · 8 = 100 ms; 4: 16.5 · 5 = 82.5 ms; 8: 24.5 · 3 = 73.5 ms.
    waits = tenant(arrival_rate_rps=30.0, queued=12.0)
    for each in (host(), host(fills_batches=True)):
        decided = decide_batches(each, [waits])
        assert decided is not None
        assert decided[0].row.batch == 8


def test_neighbours_slow_each_other_unless_they_are_not_known() -> None:
    # Launch 0.5 · (1 + 1 · 2) = 1.5 ms; run 24 · (1 + 0.5 · 0.1) = 25.2 ms.
    both = decide_batches(host(), [tenant(), tenant()])
    blind = decide_batches(host(knows_neighbours=False), [tenant(), tenant()])
    assert both is not None
    assert blind is not None
    assert both[0].carried_rps == pytest.approx(
        capacity_rps(law(), percentile=0.98, batch=8, slo_ms=100.0, execution_ms=26.7)
    )
    assert blind[0].carried_rps > both[0].carried_rps


def test_memory_goes_to_the_first_when_it_is_short() -> None:
    # 2 · 1100 MiB for batches of 1 leave 700 of 2900 MiB: the first takes 8 (700 more), the second stays at 1.
    small = host(gpu_type=replace(CARD, memory_mib=2900.0))
    decided = decide_batches(small, [tenant(), tenant()])
    assert decided is not None
    assert [each.row.batch for each in decided] == [8, 1]
    too_small = host(gpu_type=replace(CARD, memory_mib=2100.0))
    assert decide_batches(too_small, [tenant(), tenant()]) is None


def test_no_batch_within_the_slo_carries_nothing() -> None:
    decided = decide_batches(host(), [tenant(slo_ms=20.0)])
    assert decided is not None
    assert decided[0].carried_rps == 0.0
    assert decided[0].row.batch == 1


@given(
    rates=st.lists(st.floats(1.0, 500.0), min_size=1, max_size=3),
    slo_ms=st.floats(20.0, 200.0),
    queued=st.floats(0.0, 30.0),
    memory_mib=st.floats(1000.0, 8000.0),
)
def test_decisions_keep_every_limit(
    rates: list[float], slo_ms: float, queued: float, memory_mib: float
) -> None:
    roomy = host(gpu_type=replace(CARD, memory_mib=memory_mib))
    tenants = [
        tenant(arrival_rate_rps=rate, slo_ms=slo_ms, queued=queued) for rate in rates
    ]
    decided = decide_batches(roomy, tenants)
    if decided is None:
        assert 1100.0 * len(rates) > memory_mib
        return
    assert sum(each.row.memory_mib for each in decided) <= memory_mib * (1.0 + 1e-6)
    assert decided == decide_batches(roomy, tenants)
    for one, each in zip(tenants, decided, strict=True):
        assert each.row in one.rows
        assert 0.0 <= each.carried_rps <= 1000.0 * each.row.batch / (each.row.solo_ms)
