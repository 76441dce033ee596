"""The knapsack of a cell and its multipliers, against all sets of candidates."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from solvers.joint.kernels.knapsack import NONE, fill_table, read_solution, shorten
from solvers.joint.kernels.laws import INVALID, pattern_worth
from solvers.joint.kernels.relaxation import charge, limits_price, value_candidates
from solvers.joint.kernels.types import (
    Effort,
    GpuMode,
    Law,
    Numbers,
    PricingCell,
    PricingTask,
    Reals,
    Scratch,
    Worth,
)
from solvers.joint.relaxation.pricing import make_scratch
from tests.examples import seeds

SERVICES = 5


def random_task(draw: random.Random) -> PricingTask:
    """One mode with few candidates that all meet their SLO, and prices under which all earn."""
    rng = np.random.default_rng(draw.randrange(10**6))
    steps, most = draw.choice((4, 7, 10)), draw.choice((1, 2, 3, 4))
    service = np.sort(rng.integers(0, SERVICES, 12)).astype(np.int32)
    width = rng.integers(1, steps + 1, 12).astype(np.int32)
    order = np.lexsort((width, service))
    mode = GpuMode(
        gpu_type=0,
        clock_mhz=1000.0,
        steps=steps,
        max_replicas=most,
        memory_mib=draw.choice((6.0, 20.0)),
        power_w=draw.choice((6.0, 20.0)),
        price=1.0,
        watt_price=0.01,
        launch_factor=np.array(
            [1.0, 1.0, *(1.0 + 0.1 * count for count in range(2, most + 1))]
        ),
        service=service,
        row=np.arange(12, dtype=np.int32),
        width=width[order],
        batch=np.ones(12),
        memory=rng.uniform(1.0, 5.0, 12),
        power=rng.uniform(1.0, 5.0, 12),
        pressure=rng.uniform(0.0, 1.0, 12),
        alone_ms=rng.uniform(5.0, 10.0, 12),
        launch_ms=rng.uniform(0.0, 1.0, 12),
        growth_ms=rng.uniform(0.0, 4.0, 12),
        overload_ms=rng.uniform(0.0, 4.0, 12),
        room=rng.uniform(0.0, 1.0, 12),
        law=np.zeros(12, np.int32),
        slo_ms=np.full(12, 60.0),
        max_rps=np.full(12, np.inf),
        shares_label=np.zeros((0, 0), np.bool_),
        may_idle=np.zeros(12, np.bool_),
    )
    law = Law(
        ratios=np.array([1.0, 4.0, 10.0]), utilisation=np.array([[0.1, 0.6, 0.9]])
    )
    worth = Worth(
        rate=np.full(SERVICES, 60.0),
        rps=rng.uniform(0.005, 0.05, SERVICES),
        bonus=np.zeros(12),
    )
    return PricingTask(mode, law, worth, 1.0, Effort(0, 0, 0, 0.0))


def sets(mode: GpuMode, replicas: int) -> Iterator[tuple[int, ...]]:
    """All sets of `replicas` candidates of different services within the SM steps."""
    for items in itertools.combinations(range(len(mode.service)), replicas):
        chosen = list(items)
        if (
            len(set(mode.service[chosen])) == replicas
            and mode.width[chosen].sum() <= mode.steps
        ):
            yield items


def solve(
    task: PricingTask, cell: PricingCell, multipliers: Reals
) -> tuple[Scratch, Numbers, float]:
    """(scratch, shortlist, optimum of the knapsack) of a cell with all candidates."""
    scratch = make_scratch(task.mode, SERVICES)
    scratch.ids[:] = np.arange(len(task.mode.service))
    size = value_candidates(task, cell, scratch, len(task.mode.service))
    charge(task, scratch, size, multipliers)
    short = scratch.short[: shorten(task, scratch, size, cell.replicas)]
    return scratch, short, fill_table(task, scratch, short, cell.replicas)


@pytest.mark.parametrize("seed", seeds(16))
def test_the_shortlist_holds_an_optimum_of_all_sets(seed: int) -> None:
    draw = random.Random(seed)
    task = random_task(draw)
    multipliers = np.array(
        [draw.uniform(0.0, 0.3), draw.uniform(0.0, 0.3), draw.uniform(-0.5, 0.5)]
    )
    for replicas in range(1, task.mode.max_replicas + 1):
        cell = PricingCell(replicas, 0.3, 0.8)
        scratch, short, reached = solve(task, cell, multipliers)
        adjusted = dict(
            zip(scratch.ids.tolist(), scratch.adjusted.tolist(), strict=True)
        )
        best = max(
            (
                sum(adjusted[item] for item in items)
                for items in sets(task.mode, replicas)
            ),
            default=NONE,
        )
        assert reached == pytest.approx(best)
        assert len(short) <= replicas * task.mode.steps
        count = read_solution(task, scratch, short, replicas)
        if best > NONE / 2.0:
            found = tuple(sorted(scratch.solution[:count].tolist()))
            assert found in set(sets(task.mode, replicas))
            assert sum(adjusted[item] for item in found) == pytest.approx(best)
        else:
            assert count == 0


@pytest.mark.parametrize("seed", seeds(16))
def test_any_multipliers_bound_every_pattern_of_the_cell(seed: int) -> None:
    draw = random.Random(500 + seed)
    task = random_task(draw)
    low = draw.uniform(0.0, 2.0)
    for replicas in range(1, task.mode.max_replicas + 1):
        cell = PricingCell(replicas, low, low + draw.uniform(0.0, 1.5))
        best = max(
            (
                worth
                for worth, pressure in lawful(task, replicas)
                if cell.low <= pressure <= cell.high
            ),
            default=0.0,
        )
        for _ in range(5):
            pressure = draw.uniform(-1.0, 1.0) if replicas > 1 else 0.0
            multipliers = np.array(
                [
                    draw.choice((0.0, draw.uniform(0.0, 0.5))),
                    draw.uniform(0.0, 0.2),
                    pressure,
                ]
            )
            _, _, reached = solve(task, cell, multipliers)
            assert (
                reached + limits_price(task, cell, multipliers) >= best * (1.0 - 1e-12)
                or best == 0.0
            )


def lawful(task: PricingTask, replicas: int) -> Iterator[tuple[float, float]]:
    """(worth, summed pressure) of all patterns that keep memory and watts."""
    mode = task.mode
    for items in sets(mode, replicas):
        chosen = list(items)
        if (
            mode.memory[chosen].sum() <= mode.memory_mib
            and mode.power[chosen].sum() <= mode.power_w
        ):
            worth = pattern_worth(
                mode, task.law, task.worth, np.array(items, np.int32), replicas
            )
            assert worth > INVALID
            yield worth, float(mode.pressure[chosen].sum())


def test_a_set_of_exactly_so_many_may_not_exist() -> None:
    """All candidates of one service: no two of them together."""
    task = random_task(random.Random(3))
    mode = task.mode._replace(service=np.zeros(12, np.int32), max_replicas=2)
    _, _, reached = solve(
        task._replace(mode=mode), PricingCell(2, 0.0, 1.0), np.zeros(3)
    )
    assert reached == NONE
