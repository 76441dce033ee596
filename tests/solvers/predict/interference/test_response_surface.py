"""The response surface: what the law cannot say, partial pooling, and what lies outside the samples."""

from dataclasses import replace

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import Neighbour, Queries, Reals, Samples
from solvers.predict.interference import pressure, response_surface
from tests.solvers.predict.neighbour_sets import (
    MEASURED,
    Law,
    colocated,
    measured_pairs,
    random_neighbours,
    samples_by,
)

NETWORKS = ("a", "b", "c")
TRUTH = Law(
    sensitivity={"a": 0.7, "b": 1.0, "c": 1.4}, weight={"a": 1.3, "b": 1.0, "c": 0.8}
)


def bent(queries: Queries) -> Reals:
    """A part of the factor that no pressure law has: the replica's own batch matters."""
    return 1.0 + 0.03 * np.log2(queries.batch) / 5.0


def learned(rows: int, seed: int, *, max_neighbours: int = 1) -> tuple[Samples, Reals]:
    queries = random_neighbours(
        NETWORKS, rows=rows, max_neighbours=max_neighbours, seed=seed
    )
    alone_ms = np.random.default_rng(seed).uniform(2.0, 50.0, rows)
    samples = samples_by(TRUTH, queries, alone_ms)
    return replace(samples, latency_ms=samples.latency_ms * bent(queries)), alone_ms


def mean_error(predicted: Reals, samples: Samples, alone_ms: Reals) -> float:
    return float(np.mean(np.abs(predicted * alone_ms / samples.latency_ms - 1.0)))


def test_it_learns_what_the_pressure_law_cannot_say() -> None:
    samples, alone_ms = learned(150, seed=1)
    unseen, unseen_ms = learned(100, seed=2)
    of_surface = response_surface.predict(
        response_surface.fit(samples, alone_ms), unseen.at, unseen_ms
    )
    of_law = pressure.predict(pressure.fit(samples, alone_ms), unseen.at, unseen_ms)
    assert mean_error(of_surface, unseen, unseen_ms) < 0.01
    assert mean_error(of_surface, unseen, unseen_ms) < 0.5 * mean_error(
        of_law, unseen, unseen_ms
    )


def test_beyond_the_samples_the_correction_stays_what_it_is_at_their_edge() -> None:
    samples, alone_ms = learned(150, seed=1)
    fit = response_surface.fit(samples, alone_ms)
    rows = colocated(
        [
            ("a", batch, 20.0, [Neighbour("b", 4.0, 30.0)])
            for batch in (32.0, 64.0, 4096.0)
        ]
    )
    ratio = response_surface.predict(fit, rows, np.full(3, 1e6)) / pressure.predict(
        fit, rows, np.full(3, 1e6)
    )
    assert ratio[1:] == pytest.approx(ratio[0], rel=1e-9)


@pytest.mark.parametrize("rows", [1, 7])
def test_seven_samples_are_too_few(rows: int) -> None:
    with pytest.raises(TooFewSamples):
        response_surface.fit(*learned(rows, seed=1))


@pytest.mark.skipif(
    not MEASURED.exists(), reason="needs the shared folder next to the repository"
)
def test_measured_pairs_are_foretold_within_one_percent() -> None:
    samples, alone_ms = measured_pairs()
    held = np.arange(len(samples)) // 2 % 4 == 0
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    fit = response_surface.fit(samples.take(train), alone_ms[train])
    predicted = response_surface.predict(fit, samples.at.take(test), alone_ms[test])
    assert mean_error(predicted, samples.take(test), alone_ms[test]) < 0.01
