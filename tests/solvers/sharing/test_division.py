"""Dividing a GPU among its replicas: by hand, and against trying everything."""

import itertools
import random

import pytest

from solvers.sharing.division import DividedRow, divide
from tests.examples import seeds

# 10 to 90 percent; the first gains ever less, the second gains nothing below 40.
BENDING = [DividedRow(p, p**0.5, p) for p in (10.0, 50.0, 90.0)]
STEP = [DividedRow(p, 20.0 * (p >= 40.0), p) for p in (10.0, 40.0)]


def places(replicas: list[list[DividedRow]], power_w: float) -> tuple[int, ...] | None:
    found = divide(replicas, power_w=power_w)
    return found and found.places


def worth(replicas: list[list[DividedRow]], rows: tuple[int, ...] | None) -> float:
    assert rows is not None
    return sum(of[row].worth for of, row in zip(replicas, rows, strict=True))


def test_shares_go_where_they_are_worth_most_together() -> None:
    # 50 + 40: √50 + 20. 90 + 10 would be √90 + 0.
    assert divide([BENDING, STEP], power_w=1000.0) == ((1, 1), False)


def test_watts_bind_as_shares_do() -> None:
    # 60 W: the step alone is worth more than what is left of the other beyond 10 percent.
    assert divide([BENDING, STEP], power_w=60.0) == ((0, 1), True)
    assert divide([BENDING, STEP], power_w=45.0) == ((0, 0), True)
    assert divide([BENDING, STEP], power_w=19.0) is None


def test_three_that_do_not_fit_have_no_division_and_none_have_an_empty_one() -> None:
    wide = [DividedRow(40.0, 1.0, 1.0)]
    assert divide([wide, wide, wide], power_w=100.0) is None
    assert divide([wide, []], power_w=100.0) is None
    assert places([], 100.0) == ()


@pytest.mark.parametrize("seed", seeds(20))
def test_no_other_choice_of_rows_is_worth_more(seed: int) -> None:
    draw = random.Random(seed)
    replicas = [
        [
            # Worth and watts of any shape, with ties.
            DividedRow(
                10.0 * draw.randint(1, 8),
                float(draw.randint(0, 9)),
                float(draw.randint(1, 60)),
            )
            for _ in range(draw.randint(1, 6))
        ]
        for _ in range(draw.randint(1, 4))
    ]
    power_w = draw.uniform(20.0, 150.0)
    lawful = [
        choice
        for choice in itertools.product(*(range(len(rows)) for rows in replicas))
        if sum(rows[at].sm_percent for rows, at in zip(replicas, choice, strict=True))
        <= 100.0
        and sum(rows[at].power_w for rows, at in zip(replicas, choice, strict=True))
        <= power_w
    ]
    found = places(replicas, power_w)
    if not lawful:
        assert found is None
    else:
        assert found in lawful
        assert worth(replicas, found) == max(worth(replicas, each) for each in lawful)
