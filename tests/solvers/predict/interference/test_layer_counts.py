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


def test_a_network_without_layer_counts_is_the_mean_of_those_sampled() -> None:
    fit = layer_counts.fit(*learned("n5", "n20", "n80"), LAYERS)
    *known, unknown = layer_counts.predict(
        fit,
        colocated([next_to("n5"), next_to("n80"), next_to("who", own="what")]),
        np.full(3, 10.0),
    )
    assert known[0] < unknown < known[1]


def test_neighbours_without_any_layer_counts_are_too_few() -> None:
    with pytest.raises(TooFewSamples):
        layer_counts.fit(*learned("n5", "n20"))
