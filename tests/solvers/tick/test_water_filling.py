"""Watts by marginal throughput: by hand, against a linear programme, and at the edges."""

import math
import random

import numpy as np
import pytest
from scipy.optimize import linprog

from solvers.tick.water_filling import Taker, fill, throughput_curve
from tests.examples import seeds


def a_taker(
    name: str,
    *points: tuple[float, float],
    node: str = "n1",
    min_w: float | None = None,
    max_w: float = 300.0,
) -> Taker:
    curve = points or ((50.0, 0.0),)
    return Taker(
        id=name,
        node=node,
        min_w=curve[0][0] if min_w is None else min_w,
        max_w=max_w,
        curve=tuple(curve),
    )


STEEP = ((50.0, 0.0), (100.0, 100.0), (200.0, 150.0))
"""2 and then 0.5 per watt."""
FLAT = ((50.0, 0.0), (150.0, 100.0))
"""1 per watt."""


@pytest.mark.parametrize(
    ("budget_w", "steep_w", "flat_w"),
    [
        (100.0, 50.0, 50.0),
        (130.0, 80.0, 50.0),
        (150.0, 100.0, 50.0),
        (200.0, 100.0, 100.0),
        (250.0, 100.0, 150.0),
        (300.0, 150.0, 150.0),
        (350.0, 200.0, 150.0),
        (400.0, 225.0, 175.0),  # what no one can use is head-room, in equal parts
        (math.inf, 300.0, 300.0),
    ],
)
def test_the_steepest_segment_gets_the_next_watt(
    budget_w: float, steep_w: float, flat_w: float
) -> None:
    found = fill((a_taker("a", *STEEP), a_taker("b", *FLAT)), budget_w=budget_w)
    assert found == pytest.approx({"a": steep_w, "b": flat_w})


def test_a_node_that_is_full_leaves_the_rest_to_others() -> None:
    takers = (a_taker("a", *STEEP), a_taker("b", *FLAT, node="n2"))
    assert fill(takers, budget_w=200.0, node_caps_w={"n1": 80.0}) == pytest.approx(
        {"a": 80.0, "b": 120.0}
    )
    assert fill(takers, budget_w=500.0, node_caps_w={"n1": 80.0}) == pytest.approx(
        {"a": 80.0, "b": 300.0}
    )


def test_nobody_gets_more_than_it_may_draw_or_less_than_it_needs() -> None:
    takers = (a_taker("a", *STEEP, min_w=90.0, max_w=120.0), a_taker("b", *FLAT))
    assert fill(takers, budget_w=140.0) == pytest.approx({"a": 90.0, "b": 50.0})
    assert fill(takers, budget_w=1000.0) == pytest.approx({"a": 120.0, "b": 300.0})


@pytest.mark.parametrize(("budget_w", "node_w"), [(99.0, 500.0), (500.0, 99.0)])
def test_too_little_for_what_they_draw_at_least_is_nothing(
    budget_w: float, node_w: float
) -> None:
    takers = (a_taker("a", *STEEP), a_taker("b", *FLAT))
    assert fill(takers, budget_w=budget_w, node_caps_w={"n1": node_w}) is None


def test_one_taker_and_none() -> None:
    assert fill((a_taker("a"),), budget_w=70.0) == {"a": 70.0}
    assert fill((), budget_w=0.0) == {}


def test_the_hull_of_points_is_concave_and_leaves_out_what_brings_less() -> None:
    # At 150 W the line from 100 W to 200 W is at 125, above 110; what draws 250 W brings less than at 200.
    points = ((100, 100), (150, 110), (200, 150), (250, 140), (100, 90))
    assert throughput_curve(points) == ((100.0, 100.0), (200.0, 150.0))
    assert throughput_curve(()) == ()


def a_random_case(seed: int) -> tuple[list[Taker], float, dict[str, float]]:
    draw = random.Random(seed)
    takers = []
    for number in range(draw.randint(1, 6)):
        start_w = draw.uniform(20.0, 60.0)
        points = [(start_w, 0.0)]
        for slope in sorted(
            (draw.uniform(0.1, 3.0) for _ in range(draw.randint(1, 4))), reverse=True
        ):
            length_w = draw.uniform(10.0, 80.0)
            points.append((points[-1][0] + length_w, points[-1][1] + slope * length_w))
        takers.append(
            a_taker(
                f"g{number}",
                *points,
                node=f"n{draw.randint(1, 2)}",
                max_w=draw.uniform(80.0, 250.0),
            )
        )
    min_w = sum(taker.min_w for taker in takers)
    caps_w = {node: min_w * draw.uniform(1.0, 3.0) for node in ("n1", "n2")}
    return takers, min_w * draw.uniform(1.0, 4.0), caps_w


def best_of(takers: list[Taker], budget_w: float, caps_w: dict[str, float]) -> float:
    """By a linear programme: throughput t_i under each segment's line."""
    n = len(takers)
    rows, limits = [], []
    for at, taker in enumerate(takers):
        for (w0, f0), (w1, f1) in zip(taker.curve, taker.curve[1:], strict=False):
            slope = (f1 - f0) / (w1 - w0)
            rows.append(
                [
                    *(-slope if i == at else 0.0 for i in range(n)),
                    *(1.0 if i == at else 0.0 for i in range(n)),
                ]
            )
            limits.append(f0 - slope * w0)
    rows.append([1.0] * n + [0.0] * n)
    limits.append(budget_w)
    for node, cap_w in caps_w.items():
        rows.append([float(taker.node == node) for taker in takers] + [0.0] * n)
        limits.append(cap_w)
    bounds = [(taker.min_w, taker.max_w) for taker in takers] + [
        (None, taker.curve[-1][1]) for taker in takers
    ]
    solved = linprog([0.0] * n + [-1.0] * n, A_ub=rows, b_ub=limits, bounds=bounds)
    assert solved.status == 0
    return -float(solved.fun)


@pytest.mark.parametrize("seed", seeds(20))
def test_it_is_as_good_as_the_linear_programme_keeps_every_limit_and_no_order_matters(
    seed: int,
) -> None:
    takers, budget_w, caps_w = a_random_case(seed)
    found = fill(takers, budget_w=budget_w, node_caps_w=caps_w)
    assert found is not None
    assert sum(found.values()) <= budget_w + 1e-6
    for node, cap_w in caps_w.items():
        assert (
            sum(found[taker.id] for taker in takers if taker.node == node)
            <= cap_w + 1e-6
        )
    for taker in takers:
        assert taker.min_w - 1e-9 <= found[taker.id] <= taker.max_w + 1e-9
    value = sum(
        float(np.interp(found[taker.id], *zip(*taker.curve, strict=True)))
        for taker in takers
    )
    assert value == pytest.approx(best_of(takers, budget_w, caps_w), rel=1e-6)
    assert fill(takers[::-1], budget_w=budget_w, node_caps_w=caps_w) == found
