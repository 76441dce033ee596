"""What sharing can win, by hand: two batches of one network."""

import pytest

from bench.papers.morak_sharing import (
    SharedBatch,
    gain_percent,
    longest_ms,
    shared_batches,
    sharing_table,
)

pytestmark = pytest.mark.thorough

# Alone 100 rps in 10 ms, or 200 rps in 20 ms. Replicas do at most 2.5 or 1.2 times as much.
SMALL = SharedBatch(batch=1, alone_ms=10.0, gain=2.5)
LARGE = SharedBatch(batch=4, alone_ms=20.0, gain=1.2)


@pytest.mark.parametrize(
    ("limit_ms", "rps"),
    [
        (9.0, 0.0),  # not even one replica keeps it
        (10.0, 200.0),  # two do not hold each other up
        (11.9, 200.0),  # three would take 3 / 2.5 * 10 = 12 ms
        (12.0, 250.0),
    ],
)
def test_replicas_are_added_while_their_batches_keep_the_limit(
    limit_ms: float, rps: float
) -> None:
    assert SMALL.shared_rps(limit_ms) == pytest.approx(rps)


def test_the_gain_is_over_the_best_batch_alone() -> None:
    assert gain_percent([SMALL, LARGE], 9.0) is None
    # At 12 ms 250 over 100; at 20 ms 250 over 200; at 34 ms two large ones do 240, and small ones still 250.
    assert gain_percent([SMALL, LARGE], 12.0) == pytest.approx(150.0)
    assert gain_percent([SMALL, LARGE], 20.0) == pytest.approx(25.0)
    assert gain_percent([SMALL, LARGE], 34.0) == pytest.approx(25.0)
    # From 12 ms on three small ones fit; at 20 ms the large batch ends it.
    assert longest_ms([SMALL, LARGE]) == 19.5


def test_sharing_wins_much_at_tight_limits_only() -> None:
    rows = {row.figure: row.mean for row in sharing_table().rows}
    for network in shared_batches():
        assert rows[f"{network}: gain at 100 ms, %"] < 20.0
        assert rows[f"{network}: longest limit with 67.7 % (0 = none), ms"] < 25.0
