"""What is known of training is worth: who knows factor and stall by task places nearly what can be placed."""

import numpy as np
import pytest

from agents.sim.truth.truth import load_truth
from bench.task_stakes import (
    match,
    task_rows,
)

pytestmark = pytest.mark.thorough


def test_a_matching_takes_the_pairs_with_room_and_the_roomiest_of_equals() -> None:
    assert match(np.array([[2.0, 1.0], [0.9, 0.9]])) == [(0, 0)]
    assert match(np.array([[2.0, 1.0], [1.5, 0.9]])) == [(0, 1), (1, 0)]
    assert match(np.zeros((2, 2))) == []


def test_knowing_factor_and_stall_places_nearly_what_the_oracle_does() -> None:
    rows = {
        (row["task_sm_percent"], row["belief"]): row
        for row in task_rows(load_truth(), 6)
    }
    for share, least in ((100.0, 90.0), (50.0, 97.0)):
        known, by_factor, constant = (
            float(rows[share, belief]["percent_of_oracle"] or 0.0)
            for belief in (
                "factor and stall by task",
                "factor by task",
                "one factor for all",
            )
        )
        assert least <= known <= 100.0
        # Under SM limits kinds of training differ too little to decide much.
        assert known >= by_factor >= constant
        assert share < 100.0 or known > by_factor > constant
        assert rows[share, "oracle"]["broken_services"] == 0.0
        broken = rows[share, "factor and stall by task"]["broken_services"]
        assert isinstance(broken, float) and broken <= 1.5
