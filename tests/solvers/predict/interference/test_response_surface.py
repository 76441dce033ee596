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


def test_a_pair_that_was_never_sampled_is_foretold_from_its_networks() -> None:
    samples, alone_ms = learned(300, seed=1)
    is_pair = np.array(
        [
            network == "a" and neighbours[0].network == "c"
            for network, neighbours in zip(
                samples.at.network, samples.at.neighbours, strict=True
            )
        ]
    )
    train, test = np.flatnonzero(~is_pair), np.flatnonzero(is_pair)
    fit = response_surface.fit(samples.take(train), alone_ms[train])
    predicted = response_surface.predict(fit, samples.at.take(test), alone_ms[test])
    assert mean_error(predicted, samples.take(test), alone_ms[test]) < 0.01


def test_unknown_networks_get_the_pooled_part() -> None:
    samples, alone_ms = learned(150, seed=1)
    fit = response_surface.fit(samples, alone_ms)
    queries = colocated([("new", 8.0, 20.0, [Neighbour("newer", 4.0, 30.0)])])
    known = colocated(
        [
            (own, 8.0, 20.0, [Neighbour(other, 4.0, 30.0)])
            for own in NETWORKS
            for other in NETWORKS
        ]
    )
    factors = response_surface.predict(fit, known, np.full(9, 9.0))
    assert (
        factors.min()
        < response_surface.predict(fit, queries, np.array([9.0]))[0]
        < factors.max()
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


def test_the_order_of_neighbours_and_of_samples_changes_nothing() -> None:
    samples, alone_ms = learned(60, seed=1, max_neighbours=3)
    fit = response_surface.fit(samples, alone_ms)
    order = np.random.default_rng(4).permutation(60)
    shuffled = response_surface.fit(samples.take(order), alone_ms[order])
    turned = replace(
        samples.at,
        neighbours=tuple(neighbours[::-1] for neighbours in samples.at.neighbours),
    )
    expected = response_surface.predict(fit, samples.at, alone_ms)
    assert response_surface.predict(fit, turned, alone_ms) == pytest.approx(
        expected, rel=1e-12
    )
    assert response_surface.predict(shuffled, samples.at, alone_ms) == pytest.approx(
        expected, rel=1e-5
    )


def test_thousands_of_samples_are_thinned_out_evenly() -> None:
    samples, alone_ms = learned(150, seed=1)
    many = np.resize(np.arange(150), 3000)
    fit = response_surface.fit(samples.take(many), alone_ms[many])
    assert (
        mean_error(
            response_surface.predict(fit, samples.at, alone_ms), samples, alone_ms
        )
        < 0.004
    )


def test_a_few_wild_samples_hardly_matter() -> None:
    samples, alone_ms = learned(150, seed=1)
    wild = samples.latency_ms.copy()
    wild[::30] *= 4.0
    fit = response_surface.fit(replace(samples, latency_ms=wild), alone_ms)
    unseen, unseen_ms = learned(100, seed=2)
    assert (
        mean_error(
            response_surface.predict(fit, unseen.at, unseen_ms), unseen, unseen_ms
        )
        < 0.015
    )


def test_alone_the_factor_is_one() -> None:
    fit = response_surface.fit(*learned(20, seed=1))
    assert response_surface.predict(
        fit, colocated([("a", 4.0, 20.0, [])]), np.array([5.0])
    ).tolist() == [1.0]


@pytest.mark.parametrize("rows", [1, 7])
def test_seven_samples_are_too_few(rows: int) -> None:
    with pytest.raises(TooFewSamples):
        response_surface.fit(*learned(rows, seed=1))


@pytest.mark.skipif(
    not MEASURED.exists(), reason="needs the shared folder beside the repository"
)
def test_measured_pairs_are_foretold_within_one_percent() -> None:
    samples, alone_ms = measured_pairs()
    held = np.arange(len(samples)) // 2 % 4 == 0
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    fit = response_surface.fit(samples.take(train), alone_ms[train])
    predicted = response_surface.predict(fit, samples.at.take(test), alone_ms[test])
    assert mean_error(predicted, samples.take(test), alone_ms[test]) < 0.01
