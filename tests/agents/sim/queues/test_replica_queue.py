"""The compiled queue against the definition, against closed forms, and against itself cut differently."""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.base.latency_buckets import BUCKET_COUNT, bucket_end_ms, bucket_of
from agents.sim.pace import draw_noise
from agents.sim.queues.replica_queue import (
    ExecutionPace,
    ReplicaQueue,
    fine_bucket_of_s,
)
from agents.sim.queues.tally import FINE_COUNT, PARTS, Floats, ServiceTally
from solvers.laws.bulk_queue import miss_probability, refused_share
from solvers.laws.capacity_law import max_utilisation
from tests.examples import examples

NO_NOISE = np.ones(1)


def a_pace(
    batch: int = 4,
    *,
    execution_s: float = 1.0,
    slo_s: float = 2.0,
    per_item_s: float = 0.0,
    sheds_late: bool = False,
    timeout_s: float = 0.0,
) -> ExecutionPace:
    sizes = np.arange(batch + 1, dtype=np.float64)
    times = execution_s + per_item_s * sizes
    return ExecutionPace(
        batch=batch,
        batch_s=times,
        batch_w=10.0 * sizes,
        slo_s=slo_s,
        sheds_late=sheds_late,
        timeout_s=timeout_s,
    )


@dataclass
class Run:
    queue: ReplicaQueue
    tally: ServiceTally


def run(
    arrivals: Floats,
    pace: ExecutionPace,
    cuts: list[float],
    *,
    capacity: int = 10_000,
    noise: Floats = NO_NOISE,
) -> Run:
    """A queue that is advanced from cut to cut, every request reaching it at once."""
    result = Run(ReplicaQueue(capacity=capacity, noise=noise), ServiceTally())
    for start_s, end_s in pairwise([0.0, *cuts]):
        here = arrivals[(arrivals >= start_s) & (arrivals < end_s)]
        result.queue.advance((start_s, end_s), (here, here), pace, result.tally)
    return result


def latencies_by_definition(arrivals: list[float], pace: ExecutionPace) -> list[float]:
    """The bulk queue as written down: a free server takes whatever waits, at most a batch, as soon as it is free.

    With a timeout it takes them when they are a whole batch, or when the oldest has waited that long.
    """
    waiting, latencies, now = deque(arrivals), [], 0.0
    while waiting:
        full = waiting[pace.batch - 1] if len(waiting) >= pace.batch else math.inf
        now = max(now, min(full, waiting[0] + pace.timeout_s))
        batch = [
            waiting.popleft()
            for _ in range(pace.batch)
            if waiting and waiting[0] <= now
        ]
        now += pace.batch_s[len(batch)]
        latencies += [now - arrived for arrived in batch]
    return latencies


def test_a_hand_made_queue_gives_the_latencies_worked_out_by_hand() -> None:
    # Batch 2, 1 s. 0.0 runs alone until 1.0; 0.2 and 0.4 run until 2.0; 0.6 until 3.0. Latencies 1.0, 1.8, 1.6, 2.4.
    ran = run(np.array([0.0, 0.2, 0.4, 0.6]), a_pace(2, slo_s=1.7), [10.0])
    tally, queue = ran.tally, ran.queue
    assert (tally.served, tally.in_slo, queue.in_flight) == (4, 2, 0)
    expected = [bucket_of(each) for each in (1000.0, 1600.0, 1800.0, 2400.0)]
    assert [i for i, count in enumerate(tally.buckets) if count] == sorted(expected)
    assert (queue.batches, queue.requests) == (3, 4)
    assert (queue.execution_s, queue.busy_s) == (3.0, 3.0)
    assert queue.energy_j == pytest.approx(10.0 + 20.0 + 10.0)


def test_a_full_queue_rejects() -> None:
    ran = run(np.array([0.0, 0.1, 0.2, 0.3, 0.4]), a_pace(1), [0.5], capacity=3)
    assert (ran.tally.rejected, ran.queue.in_flight) == (2, 3)
    assert ran.queue.drop() == 3
    assert ran.queue.in_flight == 0


def test_only_who_cannot_make_the_slo_is_rejected_on_arrival() -> None:
    # Batch 2, 1 s, SLO 2.5 s. 0.0 runs until 1.0; 0.1 and 0.2 until 2.0; 0.3 and 0.4 would until 3.0: too late.
    ran = run(
        np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.6]),
        a_pace(2, slo_s=2.5, sheds_late=True),
        [10.0],
    )
    assert (ran.tally.rejected, ran.tally.served, ran.tally.in_slo) == (2, 4, 4)


def test_waits_elsewhere_count_from_the_arrival() -> None:
    queue, tally = ReplicaQueue(capacity=8, noise=NO_NOISE), ServiceTally()
    queue.advance((0.0, 5.0), (np.empty(0), np.empty(0)), a_pace(4), tally)
    reached_s, arrived_s = np.array([5.0, 5.0]), np.array([1.0, 4.5])
    queue.advance((5.0, 7.0), (reached_s, arrived_s), a_pace(4), tally)
    expected = [bucket_of(1500.0), bucket_of(5000.0)]
    assert [i for i, count in enumerate(tally.buckets) if count] == expected


@given(latency_ms=st.floats(0.0, 1e6))
def test_the_compiled_bucket_is_the_contracts(latency_ms: float) -> None:
    bucket = math.ceil(fine_bucket_of_s(latency_ms / 1000.0) / PARTS)
    assert abs(bucket - bucket_of(latency_ms)) <= 1  # one rounding apart at an edge
    if bucket != bucket_of(latency_ms):
        ends_ms = map(bucket_end_ms, range(BUCKET_COUNT))
        assert min(abs(latency_ms / end_ms - 1.0) for end_ms in ends_ms) < 1e-9


@settings(max_examples=examples(60))
@given(
    gaps=st.lists(st.floats(0.0, 2.0), max_size=60),
    batch=st.integers(1, 9),
    capacity=st.integers(9, 20),
    cuts=st.lists(st.floats(0.01, 60.0), max_size=6),
)
def test_requests_are_conserved_and_no_cut_of_the_time_changes_anything(
    gaps: list[float], batch: int, capacity: int, cuts: list[float]
) -> None:
    arrivals = np.cumsum(gaps) if gaps else np.empty(0)
    pace = a_pace(batch, execution_s=0.7, per_item_s=0.1)
    noise = draw_noise(np.random.default_rng(3), 0.1)
    whole = run(arrivals, pace, [60.0], capacity=capacity, noise=noise)
    pieces = run(arrivals, pace, sorted({*cuts, 60.0}), capacity=capacity, noise=noise)
    reached = int(np.count_nonzero(arrivals < 60.0))
    for each in (whole, pieces):
        assert each.tally.served + each.tally.rejected + each.queue.in_flight == reached
        assert each.tally.buckets.sum() == each.tally.served >= each.tally.in_slo
    assert (whole.tally.counts == pieces.tally.counts).all()
    assert (whole.tally.fine == pieces.tally.fine).all()
    assert whole.queue.busy_s == pytest.approx(pieces.queue.busy_s)
    assert whole.queue.energy_j == pytest.approx(pieces.queue.energy_j)


def under_load(
    batch: int, utilisation: float, requests: int, pace: ExecutionPace
) -> Run:
    """Poisson arrivals at that share of what full batches of a second can serve, until all are served."""
    arrivals = poisson(batch * utilisation, requests, seed=batch)
    return run(arrivals, pace, [float(arrivals[-1]) + 1000.0])


def poisson(rate_rps: float, requests: int, *, seed: int) -> Floats:
    gaps_s = np.random.default_rng(seed).exponential(1.0 / rate_rps, requests)
    return np.cumsum(gaps_s)


@pytest.mark.parametrize(
    ("batch", "utilisation", "slo_s"),
    [(1, 0.5, 2.0), (4, 0.8, 2.5), (16, 0.7, 2.0), (64, 0.9, 3.0)],
)
def test_every_latency_is_that_of_the_definition(
    batch: int, utilisation: float, slo_s: float
) -> None:
    pace = a_pace(batch, slo_s=slo_s, per_item_s=0.001)
    tally = under_load(batch, utilisation, 20_000, pace).tally
    arrivals = poisson(batch * utilisation, 20_000, seed=batch)
    latencies = latencies_by_definition(list(arrivals), pace)
    assert tally.served == len(latencies)
    assert tally.in_slo == sum(each <= slo_s for each in latencies)
    buckets = [fine_bucket_of_s(each) for each in latencies]
    assert (tally.fine == np.bincount(buckets, minlength=FINE_COUNT)).all()


@pytest.mark.parametrize("timeout_s", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("utilisation", [0.1, 0.5, 0.9])
def test_with_a_timeout_every_latency_is_that_of_the_definition(
    timeout_s: float, utilisation: float
) -> None:
    arrivals = poisson(utilisation * 4, 5_000, seed=7)
    pace = a_pace(4, per_item_s=0.01, timeout_s=timeout_s)
    latencies = latencies_by_definition(list(arrivals), pace)
    for cuts in ([1e9], [*np.arange(0.7, arrivals[-1], 0.7), 1e9]):
        ran = run(arrivals, pace, [float(cut) for cut in cuts])
        assert ran.tally.served == len(latencies)
        assert ran.tally.in_slo == sum(each <= pace.slo_s for each in latencies)
        assert ran.tally.sojourn_s == pytest.approx(sum(latencies))
    assert ran.queue.batches < len(arrivals)


@pytest.mark.parametrize("cut_s", [0.3, 7.0, 5000.0])
def test_littles_law_holds_exactly(cut_s: float) -> None:
    # Requests present, integrated over time = their sojourn times, summed; those still there up to the end.
    arrivals = np.cumsum(np.random.default_rng(2).exponential(0.25, 8_000))
    arrivals = np.append(arrivals[arrivals < 1999.9], 1999.95)
    cuts = [*np.arange(cut_s, 2000.0, cut_s), 2000.0]
    pace = a_pace(4, slo_s=3.0, per_item_s=0.05, sheds_late=True, timeout_s=0.2)
    ran = run(arrivals, pace, [float(cut) for cut in cuts], capacity=20)
    assert ran.tally.rejected > 0 < ran.queue.in_flight
    assert ran.tally.present_s == pytest.approx(
        ran.tally.sojourn_s + ran.queue.age_s(2000.0), rel=1e-9
    )


@pytest.mark.parametrize(
    ("batch", "utilisation"),
    [(1, 0.5), (64, 0.5), pytest.param(8, 0.85, marks=pytest.mark.thorough)],
)
def test_latency_percentiles_are_those_of_the_queues_m_d_1_and_m_d_b_1(
    batch: int, utilisation: float
) -> None:
    """At the percentile's latency the exact law (solvers.laws.bulk_queue) lets that share through, to 2 %."""
    # Long queues forget slowly.
    requests = 5_000_000 if utilisation > 0.8 else 1_000_000
    ran = under_load(batch, utilisation, requests, a_pace(batch))
    for percentile in (0.5, 0.95, 0.98, 0.99):
        latency_s = (ran.tally.latency_ms(percentile) or 0.0) / 1000.0
        short, long = miss_probability(
            batch,
            utilisation=utilisation,
            slo_ratio=[0.98 * latency_s, 1.02 * latency_s],
        )
        assert long <= 1.0 - percentile + 1e-9 <= short + 2e-9


@pytest.mark.parametrize("slo_ratio", [1.5, 2.5, 4.2, 9.0])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_is_late_between_half_and_twice_the_promise_is_the_laws(
    batch: int, slo_ratio: float
) -> None:
    random = np.random.default_rng(batch)
    promised = max_utilisation(batch, percentile=0.98, slo_ratio=slo_ratio)
    pace = a_pace(batch, slo_s=slo_ratio, sheds_late=True)
    found, expected = [], []
    for times in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        load = times * promised
        arrivals = np.cumsum(random.exponential(1.0 / (load * batch), 100_000))
        tally = run(arrivals, pace, [float(arrivals[-1]) + slo_ratio]).tally
        found.append(1.0 - tally.in_slo / len(arrivals))
        expected.append(refused_share(batch, utilisation=load, slo_ratio=slo_ratio))
    # That number of requests says it to half a percent; the queue was empty at first.
    assert found == pytest.approx(expected, abs=0.01)
    assert np.diff(expected).min() >= -1e-12
    # At the promise it is kept with room to spare, since what is refused makes no other late.
    assert expected[2] <= 0.02
