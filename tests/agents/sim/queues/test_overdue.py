"""Overdue requests of one replica, by hand. Whole runs are in test_run.py."""

import numpy as np
import pytest

from agents.sim.queues.replica_queue import ExecutionPace, ReplicaQueue
from agents.sim.queues.tally import ServiceTally


@pytest.mark.parametrize(
    ("before_s", "older"), [(4.0, 0), (4.5, 1), (5.5, 2), (100.0, 4)]
)
def test_only_those_that_are_still_there_count_also_where_the_ring_has_turned(
    before_s: float, older: int
) -> None:
    # One request at a time takes 1.5 s: of those that arrive at 0, 1, ... 7 s four are done by 7.4 s. Those of 4 to 7 s
    # are still there; in a ring of six places those of 6 and 7 s are at its beginning.
    pace = ExecutionPace(
        batch=1,
        batch_s=np.array([0.0, 1.5]),
        batch_w=np.zeros(2),
        slo_s=2.0,
        sheds_late=False,
    )
    queue, arrived = ReplicaQueue(capacity=6, noise=np.ones(1)), np.arange(8.0)
    queue.advance((0.0, 7.4), (arrived, arrived), pace, ServiceTally())
    assert queue.count_older(before_s) == older
