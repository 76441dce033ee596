"""Interference from layer counts: never-seen neighbours ranked by what they are made of."""

import numpy as np
import pytest

from solvers.predict.data.fit import TooFewSamples
from solvers.predict.data.samples import LayerCounts, Neighbour, Reals, Samples
from solvers.predict.interference import constant, layer_counts
from tests.solvers.predict.neighbour_sets import (
    Law,
    colocated,
    random_neighbours,
    samples_by,
)

CONVOLUTIONS = {"n5": 5, "n10": 10, "n20": 20, "n40": 40, "n60": 60, "n80": 80}
LAYERS = {
    network: LayerCounts(
        network=network,
        counts={"convolution": count, "linear": 1},
        parameters_millions=float(count),
    )
    for network, count in CONVOLUTIONS.items()
}
TRUTH = Law(
    sensitivity=dict.fromkeys(CONVOLUTIONS, 1.0),
    weight={
        network: float(np.log1p(count)) / 2.0 for network, count in CONVOLUTIONS.items()
    },
)


def learned(*networks: str, seed: int = 1) -> tuple[Samples, Reals]:
    queries = random_neighbours(networks, rows=200, max_neighbours=1, seed=seed)
    return samples_by(TRUTH, queries, np.full(200, 10.0)), np.full(200, 10.0)


def next_to(
    network: str, *, neighbours: int = 1, own: str = "n5"
) -> tuple[str, float, float, list[Neighbour]]:
    return own, 4.0, 20.0, [Neighbour(network, 4.0, 20.0)] * neighbours


def test_a_never_seen_neighbour_is_foretold_better_than_by_a_constant() -> None:
    samples, alone_ms = learned("n5", "n20", "n40", "n80")
    unseen = colocated([next_to("n10"), next_to("n60")])
    truth = np.array(
        [TRUTH.factor("n5", neighbours) for neighbours in unseen.neighbours]
    )
    by_layers = layer_counts.predict(
        layer_counts.fit(samples, alone_ms, LAYERS), unseen, np.full(2, 10.0)
    )
    by_constant = constant.predict(
        constant.fit(samples, alone_ms), unseen, np.full(2, 10.0)
    )
    assert by_layers[0] < by_layers[1]
    assert (
        np.abs(by_layers / truth - 1.0).mean()
        < 0.7 * np.abs(by_constant / truth - 1.0).mean()
    )


def test_more_neighbours_never_help() -> None:
    fit = layer_counts.fit(*learned("n5", "n20", "n80"), LAYERS)
    queries = colocated([next_to("n40", neighbours=count) for count in (0, 1, 2, 3)])
    factors = layer_counts.predict(fit, queries, np.full(4, 10.0))
    assert factors[0] == 1.0 and np.all(np.diff(factors) >= 0.0)


def test_a_larger_neighbour_than_any_that_was_sampled_counts_as_the_largest() -> None:
    giant = LayerCounts(
        network="giant",
        counts={"convolution": 80_000, "linear": 1},
        parameters_millions=80.0,
    )
    fit = layer_counts.fit(*learned("n5", "n20", "n40"), {**LAYERS, "giant": giant})
    factors = layer_counts.predict(
        fit, colocated([next_to("n80"), next_to("giant")]), np.full(2, 10.0)
    )
    assert factors[0] == pytest.approx(factors[1])


def test_a_network_without_layer_counts_is_the_mean_of_those_sampled() -> None:
    fit = layer_counts.fit(*learned("n5", "n20", "n80"), LAYERS)
    *known, unknown = layer_counts.predict(
        fit,
        colocated([next_to("n5"), next_to("n80"), next_to("who", own="what")]),
        np.full(3, 10.0),
    )
    assert known[0] < unknown < known[1]


def test_what_an_unlike_network_did_beyond_its_counts_is_not_blamed_on_them() -> None:
    # Two networks of one size, one four times as heavy: next to a third of that size their mean is the best guess.
    twins = {
        name: LayerCounts(
            network=name, counts={"convolution": 20}, parameters_millions=20.0
        )
        for name in "abc"
    }
    law = Law(sensitivity=dict.fromkeys("abc", 1.0), weight={"a": 0.5, "b": 2.0})
    queries = random_neighbours(("a", "b"), rows=100, max_neighbours=1, seed=3)
    fit = layer_counts.fit(
        samples_by(law, queries, np.full(100, 10.0)), np.full(100, 10.0), twins
    )
    light, middle, heavy = layer_counts.predict(
        fit,
        colocated([next_to(network, own="c") for network in "acb"]),
        np.full(3, 10.0),
    )
    assert light < middle < heavy


def test_neighbours_without_any_layer_counts_are_too_few() -> None:
    with pytest.raises(TooFewSamples):
        layer_counts.fit(*learned("n5", "n20"))


def test_seven_samples_are_too_few() -> None:
    samples, alone_ms = learned("n5", "n20")
    with pytest.raises(TooFewSamples):
        layer_counts.fit(samples.take(np.arange(7)), alone_ms[:7], LAYERS)
