import random

import numpy as np
import pytest

from solvers.joint.kernels.types import Reals
from solvers.joint.relaxation import cuts
from tests.examples import seeds


def _random_potential(rng: np.random.Generator) -> Reals:
    return (
        np.cumsum(
            rng.choice((0.0, 0.0, 1.0), cuts.PARTS + 2) * rng.random(cuts.PARTS + 2)
        )
        + np.eye(cuts.PARTS + 2)[-1]
    )


def _min_cover(steps: Reals) -> float:
    """The least sum of coefficients over sets of replicas that serve the rate, by dynamic programming over parts."""
    least = np.full(cuts.PARTS + 2, np.inf)
    least[0] = 0.0
    for parts in range(1, cuts.PARTS + 2):
        least[parts] = min(
            steps[own - 1] + least[max(0, parts - own)]
            for own in range(1, cuts.PARTS + 2)
        )
    return float(least[-1])


@pytest.mark.parametrize("seed", seeds(10))
def test_every_potential_makes_a_cut_that_holds_for_all_sets_of_replicas_that_serve_the_rate(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    steps = cuts.steps(_random_potential(rng))
    assert _min_cover(steps) >= 1.0 - 1e-12
    assert (np.diff(steps) >= 0.0).all()
    assert steps[-1] == pytest.approx(1.0)


def test_cuts_hold_for_capacities_that_just_serve_the_rate() -> None:
    draw, rng = random.Random(5), np.random.default_rng(5)
    potentials = [cuts.rounding(multiple) for multiple in range(1, 7)] + [
        _random_potential(rng) for _ in range(6)
    ]
    staircases = [cuts.steps(potential) for potential in potentials]
    served = 0
    for _ in range(2000):
        parts = [
            draw.choice((draw.random(), 1 / 2, 1 / 3, 2 / 3, 3 / 5, 1.0, 1.4))
            for _ in range(draw.randint(1, 7))
        ]
        rate = draw.uniform(0.1, 1000.0)
        if sum(min(part, 1.0) for part in parts) >= 1.0 - 1e-6:
            levels = cuts.levels(rate * np.array(parts), np.full(len(parts), rate))
            assert all(steps[levels].sum() >= 1.0 - 1e-9 for steps in staircases), (
                parts,
                rate,
            )
            served += 1
    assert served > 500


def test_the_first_rounding_cut_counts_halves() -> None:
    steps = cuts.steps(cuts.rounding(1))
    assert steps[:-1] == pytest.approx(0.5)
    assert steps[-1] == 1.0


def test_replicas_in_fractions_are_cut_off() -> None:
    # 1.25 replicas that each carry four fifths of the rate; in whole numbers two are needed.
    level = int(cuts.levels(np.array([0.8]), np.ones(1))[0])
    replicas = np.zeros(cuts.PARTS + 1)
    replicas[level] = 1.25
    potential = cuts.separate(replicas)
    assert potential is not None
    assert replicas @ cuts.steps(potential) == pytest.approx(1.25 / 2.0)


def test_mixtures_of_sets_that_serve_the_rate_are_not_cut_off() -> None:
    # Halves of: one replica that carries all; two that carry 0.7 and 0.4.
    levels = cuts.levels(np.array([1.0, 0.7, 0.4]), np.ones(3))
    assert cuts.separate(np.bincount(levels, np.full(3, 0.5), cuts.PARTS + 1)) is None


def test_whole_replicas_are_not_looked_at() -> None:
    replicas = np.zeros(cuts.PARTS + 1)
    replicas[3] = 1.0
    assert cuts.separate(replicas) is None
