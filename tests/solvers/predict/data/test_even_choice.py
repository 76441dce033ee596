"""A few of many rows: evenly spread, both ends among them, all of few."""

import numpy as np
import pytest

from solvers.predict.data.samples import even_choice


@pytest.mark.parametrize(
    ("count", "most", "positions"),
    [
        (0, 3, []),
        (2, 3, [0, 1]),
        (3, 3, [0, 1, 2]),
        (5, 3, [0, 2, 4]),
        (7, 3, [0, 3, 6]),
    ],
)
def test_positions(count: int, most: int, positions: list[int]) -> None:
    assert even_choice(count, max_rows=most).tolist() == positions


def test_no_row_is_chosen_twice_and_no_gap_is_twice_another() -> None:
    gaps = np.diff(even_choice(1000, max_rows=301))
    assert gaps.min() >= 3 and gaps.max() <= 4
