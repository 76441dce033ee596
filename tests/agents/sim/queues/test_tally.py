"""Counts of requests: the contract's buckets from fine ones, percentiles inside buckets, differences of copies."""

import numpy as np
import pytest

from agents.base.latency_buckets import BUCKET_COUNT, bucket_of
from agents.sim.queues.replica_queue import fine_bucket_of_s
from agents.sim.queues.tally import FINE_COUNT, ServiceTally


def a_tally(latencies_s: list[float]) -> ServiceTally:
    tally = ServiceTally()
    for latency_s in latencies_s:
        tally.fine[fine_bucket_of_s(latency_s)] += 1
    tally.counts[0] = tally.arrivals = len(latencies_s)
    return tally


def test_the_contracts_buckets_are_sums_of_fine_ones() -> None:
    latencies_s = [0.0, 1e-4, 3e-4, 0.011, 0.0123, 0.5, 1.7, 1e9]
    tally = a_tally(latencies_s)
    expected = np.bincount(
        [bucket_of(1000.0 * each) for each in latencies_s], minlength=BUCKET_COUNT
    )
    assert (tally.buckets == expected).all()
    assert len(tally.fine) == FINE_COUNT


@pytest.mark.parametrize("percentile", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_a_percentile_is_known_to_a_percent(percentile: float) -> None:
    latencies_s = sorted(np.random.default_rng(3).lognormal(-3.0, 0.7, 20_000))
    exact_ms = 1000.0 * latencies_s[round(percentile * len(latencies_s)) - 1]
    assert a_tally(latencies_s).latency_ms(percentile) == pytest.approx(
        exact_ms, rel=0.011
    )


def test_what_came_after_a_copy_is_the_difference() -> None:
    tally = a_tally([0.1, 0.2])
    before = tally.copy()
    tally.add(a_tally([0.4]))
    later = tally.since(before)
    assert (later.served, later.arrivals, int(later.fine.sum())) == (1, 1, 1)
    assert later.latency_ms(0.5) == pytest.approx(400.0, rel=0.011)
    assert before.served == 2
