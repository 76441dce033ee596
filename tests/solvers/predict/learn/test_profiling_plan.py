"""The profiling plan: few points, spread where they tell most."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from solvers.predict.data.samples import Queries
from solvers.predict.learn.profiling_plan import (
    MAX_GRID,
    MAX_POINTS,
    make_profiling_plan,
)
from solvers.types.errors import InvalidInput
from tests.solvers.synthetic_samples import queries_at

BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SHARES = tuple(float(share) for share in range(5, 101, 5))


def make_grid(
    batches: tuple[float, ...] = BATCHES,
    shares: tuple[float, ...] = SHARES,
    clocks: tuple[float, ...] = (1530.0,),
) -> Queries:
    batch, share, clock = (
        zip(*product(batches, shares, clocks), strict=True) if batches else ((), (), ())
    )
    return queries_at(batch=batch, sm_percent=share, clock_mhz=clock, gpu_type="V100")


NOTHING = make_grid(batches=())


def conditions(queries: Queries) -> list[tuple[float, float, float]]:
    return list(
        zip(
            queries.batch.tolist(),
            queries.sm_percent.tolist(),
            queries.clock_mhz.tolist(),
            strict=True,
        )
    )


def test_at_most_sixteen_different_points_of_the_grid() -> None:
    plan = conditions(make_profiling_plan(make_grid(), done=NOTHING))
    assert len(plan) == MAX_POINTS
    assert len(set(plan)) == MAX_POINTS
    assert set(plan) <= set(conditions(make_grid()))


def test_the_first_four_points_reach_both_ends_of_batch_and_share() -> None:
    plan = make_profiling_plan(make_grid(), done=NOTHING, count=4)
    assert plan.batch.min() <= 2.0
    assert plan.batch.max() >= 16.0
    assert plan.sm_percent.min() <= 15.0
    assert plan.sm_percent.max() >= 70.0


def test_a_point_measured_already_is_not_asked_for_first() -> None:
    first = make_profiling_plan(make_grid(), done=NOTHING, count=1)
    again = make_profiling_plan(make_grid(), done=first, count=1)
    assert conditions(again) != conditions(first)


def test_a_point_measured_at_no_known_clock_counts_as_measured_at_the_highest() -> None:
    grid = make_grid(clocks=(900.0, 1530.0))
    first = make_profiling_plan(grid, done=NOTHING, count=3)
    at_highest = replace(first, clock_mhz=np.full(3, 1530.0))
    unknown = replace(first, clock_mhz=np.full(3, np.nan))
    expected = conditions(make_profiling_plan(grid, done=at_highest, count=4))
    assert conditions(make_profiling_plan(grid, done=unknown, count=4)) == expected


def test_going_on_after_some_points_is_the_same_plan() -> None:
    whole = conditions(make_profiling_plan(make_grid(), done=NOTHING, count=6))
    begun = make_profiling_plan(make_grid(), done=NOTHING, count=3)
    assert (
        conditions(make_profiling_plan(make_grid(), done=begun, count=3)) == whole[3:]
    )


@pytest.mark.parametrize("count", [-1, MAX_POINTS + 1])
def test_more_points_than_a_network_is_worth_are_refused(count: int) -> None:
    with pytest.raises(InvalidInput, match="count: must be 0 to 16"):
        make_profiling_plan(make_grid(), done=NOTHING, count=count)


def test_a_grid_too_large_for_its_covariance_is_refused() -> None:
    shares = tuple(np.linspace(1.0, 100.0, MAX_GRID // len(BATCHES) + 1).tolist())
    with pytest.raises(InvalidInput, match="thin it"):
        make_profiling_plan(make_grid(shares=shares), done=NOTHING)
