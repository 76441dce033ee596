"""Pricing of sliced modes against all patterns by trial, with and without a cap on watts that binds."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from solvers.joint.kernels.laws import pattern_worth
from solvers.joint.kernels.types import Effort, PricingTask, Worth
from solvers.joint.patterns.slice_layouts import A100_40GB
from solvers.joint.patterns.slice_tables import SliceOffer, SliceRow, with_slices
from solvers.joint.patterns.tables import Tables, make_tables
from solvers.joint.relaxation.slice_pricing import SliceCells
from tests.solvers.instances import a_problem, a_service, a_type

EFFORT = Effort(steps=2, nodes=0, halvings=0, tolerance=0.0)


def random_tables(
    draw: random.Random, services: int, *, room_w: float, replicas: int = 7
) -> Tables:
    """One sliced mode; each service's rows are on some of the profiles, at several batches."""
    problem = a_problem(
        *(
            a_service(f"s{number}", network=f"net{number}", rate_rps=50.0)
            for number in range(services)
        ),
        types=[a_type(power_cap_w=50.0 + room_w)],
        rows=(),
        max_replicas_per_gpu=replicas,
    )
    names = [profile.name for profile in A100_40GB]
    rows = tuple(
        (
            f"net{number}",
            tuple(
                SliceRow(
                    name,
                    batch,
                    1000.0,
                    draw.uniform(5.0, 40.0),
                    1000.0,
                    draw.uniform(5.0, 60.0),
                )
                for name in draw.sample(names, 3)
                for batch in (1, 4)
            ),
        )
        for number in range(services)
    )
    return with_slices(
        problem,
        make_tables(problem),
        [SliceOffer(gpu_type="gpu", profiles=A100_40GB, rows=rows)],
    )


def a_task(draw: random.Random, tables: Tables, threshold: float = 0.0) -> PricingTask:
    (mode,) = tables.modes
    rps = np.array(
        [draw.choice((0.0, 1.0, 1.0)) * draw.uniform(0.5, 2.0) for _ in tables.rate]
    )
    bonus = np.array([draw.choice((-30.0, 0.0, 0.0, 15.0)) for _ in tables.rate])[
        mode.service
    ]
    return PricingTask(
        mode, tables.law, Worth(tables.rate, rps, bonus), threshold, EFFORT
    )


def cells_of(tables: Tables) -> SliceCells:
    (mode,), (slicing,) = tables.modes, tables.slicing
    assert slicing is not None
    return SliceCells(mode, tables.law, slicing)


def lawful_patterns(tables: Tables) -> Iterator[tuple[int, ...]]:
    (mode,), (slicing,) = tables.modes, tables.slicing
    assert slicing is not None
    possible = set(map(tuple, slicing.layouts.counts.tolist()))
    choices = [
        [None, *np.flatnonzero(mode.service == number).tolist()]
        for number in range(len(tables.rate))
    ]
    for mix in itertools.product(*choices):
        items = tuple(item for item in mix if item is not None)
        counts = np.bincount(slicing.profile[list(items)], minlength=len(A100_40GB))
        if (
            items
            and tuple(counts.tolist()) in possible
            and mode.power[list(items)].sum() <= mode.power_w
        ):
            yield items


def worth_of(task: PricingTask, items: tuple[int, ...]) -> float:
    return pattern_worth(
        task.mode, task.law, task.worth, np.array(items, dtype=np.int32), len(items)
    )


@pytest.mark.parametrize("room_w", [60.0, 100.0, 1000.0])
@pytest.mark.parametrize("seed", range(15))
def test_the_bound_is_the_worth_of_the_best_pattern_which_is_found(
    seed: int, room_w: float
) -> None:
    draw = random.Random(seed)
    tables = random_tables(
        draw,
        services=draw.randint(1, 5),
        room_w=room_w,
        replicas=draw.choice((2, 3, 7)),
    )
    task = a_task(draw, tables)
    best = max([0.0, *(worth_of(task, items) for items in lawful_patterns(tables))])
    priced = cells_of(tables).price(0, task)
    assert priced.bound == pytest.approx(best, abs=1e-9)
    assert (best > 0.0) == bool(priced.patterns)
    if best > 0.0:
        assert worth_of(task, priced.patterns[0].items) == pytest.approx(best)


def test_all_patterns_that_are_found_are_lawful_and_above_the_threshold() -> None:
    checked = 0
    for seed in range(5):
        draw = random.Random(seed)
        tables = random_tables(draw, services=4, room_w=90.0)
        task = a_task(draw, tables, threshold=40.0)
        lawful = set(lawful_patterns(tables))
        for pattern in cells_of(tables).price(0, task).patterns:
            assert pattern.items in lawful
            assert worth_of(task, pattern.items) > 40.0
            checked += 1
    assert checked > 20


def test_nothing_is_worth_anything_where_nothing_is_earned() -> None:
    tables = random_tables(random.Random(1), services=3, room_w=100.0)
    (mode,) = tables.modes
    worth = Worth(tables.rate, np.zeros(3), np.zeros(len(mode.service)))
    priced = cells_of(tables).price(
        0, PricingTask(mode, tables.law, worth, 0.0, EFFORT)
    )
    assert (priced.bound, priced.patterns) == (0.0, ())
