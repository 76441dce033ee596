"""Interference from layer counts: the factor of neighbours that were never measured, from what they are made of.

    ln factor = a + own[i] + Σ_j other[j] + u · x + v · ψ − w · ψ · ln share_i        v, w ≥ 0
    ψ = ln(1 + layers of one kind, summed over all neighbours), for every kind, and the same of 10⁶ parameters
    x = log2 batch_i and ln share_i, of either sign; log2 of the neighbours' summed batch and their summed share, ≥ 0

a Bayesian ridge over standardised features with bounds; own[i] is an offset of the network that is slowed down,
other[j] of a neighbour, both 0 for networks that were never sampled: what counts cannot explain of a sampled neighbour
is its own and does not teach the counts.

Source: Mudi, "predicting interference using underlying network architectures": layers, which and how many, cumulated
over the neighbours, with batch and share, predict the slopes and the breakpoint of a two-segment latency curve. Here
they predict the factor instead, at every share: the stretched curve is the solo curve times it, so that the breakpoint
stays the solo curve's and both slopes are multiplied by the factor at their share (w lets it grow as the share
shrinks). That needs no co-located curve over all shares per neighbour, which was never measured. More layers never
make a neighbour milder: the bounds keep a few networks from teaching the opposite.

Wins for neighbours without any sample, once several unlike networks were sampled as neighbours. Limits: three networks
teach it little, and on measured sets it is then no better than the pooled mean of `pressure`; it does not convert to
the contract's rows. A network without layer counts is taken as the mean of those that were sampled, and a neighbour
with more or fewer layers of a kind than any that was sampled as if it had their maximum or minimum.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.interference_factor import (
    clip_factors,
    known_rows,
    neighbour_counts,
    networks_in,
    pairs_of,
    positions,
)
from solvers.predict.data.samples import LayerCounts, Queries, Reals, Samples

NO_LAYERS: Mapping[str, LayerCounts] = {}

_MIN_SAMPLES = 8
_EXPLAINED_SPREAD = 0.05
"""Prior standard deviation, in log factor, of what all features together explain: as much as own or other may."""
_OFFSET_SPREAD = 0.05
"""Prior standard deviation of own[i] and other[j]."""
_NOISE = 0.03
"""Standard deviation of what layer counts cannot explain, in log factor."""
_SAME = 1e-9
"""A feature that varies less is constant but for rounding and gets no weight."""
_PARAMETERS = "parameters_millions"
_FREE = 2
"""The first features, own batch and share, may have either sign."""


def fit(
    samples: Samples, alone_ms: Reals, layers: Mapping[str, LayerCounts] = NO_LAYERS
) -> Coefficients:
    """Coefficients, which hold the layer counts too; `layers` by network, also of such as were never sampled.

    Raises TooFewSamples below _MIN_SAMPLES samples, or where no neighbour among them has layer counts.
    """
    rows = known_rows(samples, alone_ms)
    at = samples.at.take(rows)
    own = networks_in(at.network)
    other = networks_in(pairs_of(at).network)
    if len(rows) < _MIN_SAMPLES or not any(network in layers for network in other):
        raise TooFewSamples(
            f"{len(rows)} samples with neighbours, {_MIN_SAMPLES} with layer counts are needed"
        )
    table = _with_box(_layer_table(layers, other), at)
    offsets = np.hstack((_indicators(at, own), _neighbour_indicators(at, other)))
    targets = np.log(samples.latency_ms[rows] / alone_ms[rows])
    learned = _regress(_features(table, at), offsets, targets)
    return Coefficients(
        arrays={
            **table.arrays,
            "weights": learned.weights,
            "own_offset": learned.offsets[: len(own)],
            "other_offset": learned.offsets[len(own) :],
            "intercept": np.array(learned.intercept),
        },
        labels={**table.labels, "own": own, "other": other},
    )


def predict(coefficients: Coefficients, queries: Queries, alone_ms: Reals) -> Reals:  # noqa: ARG001  a ratio
    """(N,) factors, the same for any latency alone."""
    arrays = coefficients.arrays
    labels = coefficients.labels
    logs = arrays["intercept"] + _features(coefficients, queries) @ arrays["weights"]
    logs += _indicators(queries, labels["own"]) @ arrays["own_offset"]
    logs += _neighbour_indicators(queries, labels["other"]) @ arrays["other_offset"]
    # Unlike measured factors, a predicted one below 1 can only be an error of the regression.
    return clip_factors(queries, np.maximum(np.exp(logs), 1.0))


def _indicators(queries: Queries, networks: tuple[str, ...]) -> Reals:
    """(N, M) 1 where the row is of that network; nowhere for an unknown one."""
    return _one_hot(queries.network, networks)


def _neighbour_indicators(queries: Queries, networks: tuple[str, ...]) -> Reals:
    """(N, M) how many of the row's neighbours are of that network."""
    pairs = pairs_of(queries)
    return pairs.sum_per_row(_one_hot(pairs.network, networks))


def _one_hot(names: tuple[str, ...], networks: tuple[str, ...]) -> Reals:
    # One row more than columns: that of unknown networks is 0.
    return np.eye(len(networks) + 1, len(networks))[positions(names, networks)]


def _layer_table(
    layers: Mapping[str, LayerCounts], seen: tuple[str, ...]
) -> Coefficients:
    """Counts (M + 1, C) of every network by kind; the last row is the mean of the networks that were sampled."""
    kinds = networks_in(*(entry.counts for entry in layers.values()))
    counts = {
        network: _counts_of(entry, kinds) for network, entry in sorted(layers.items())
    }
    # The mean of the sampled networks only, from which the weights are learned.
    mean = np.mean([row for network, row in counts.items() if network in seen], axis=0)
    return Coefficients(
        arrays={"counts": np.array([*counts.values(), mean])},
        labels={"networks": tuple(counts), "kinds": (*kinds, _PARAMETERS)},
    )


def _counts_of(entry: LayerCounts, kinds: tuple[str, ...]) -> list[float]:
    by_kind = (float(entry.counts.get(kind, 0)) for kind in kinds)
    return [*by_kind, entry.parameters_millions]


def _with_box(table: Coefficients, at: Queries) -> Coefficients:
    """The table with (2, C) the smallest and the largest ψ of a single neighbour, averaged over each row's
    neighbours."""
    psi, log_count = _psi(table, at)
    single = psi - log_count
    box = np.stack((single.min(axis=0), single.max(axis=0)))
    return replace(table, arrays={**table.arrays, "box": box})


def _psi(table: Coefficients, queries: Queries) -> tuple[Reals, Reals]:
    """(N, C) ψ as counted, and (N, 1) what it owes to the number of neighbours: its logarithm."""
    pairs = pairs_of(queries)
    counts = table.arrays["counts"][positions(pairs.network, table.labels["networks"])]
    neighbours = np.maximum(neighbour_counts(queries), 1)
    return np.log1p(pairs.sum_per_row(counts)), np.log(neighbours)[:, None]


def _features(table: Coefficients, queries: Queries) -> Reals:
    """(N, 4 + 2C): own log batch and −log share, the neighbours' batch and share, ψ, and ψ times −log share."""
    pairs = pairs_of(queries)
    counted, log_count = _psi(table, queries)
    # Clipped per neighbour, so that three usual ones are not taken for one unusual network.
    psi = np.clip(counted - log_count, *table.arrays["box"]) + log_count
    narrowness = -np.log(queries.sm_percent / 100.0)
    plain = np.column_stack(
        (
            np.log2(queries.batch),
            narrowness,
            np.log2(1.0 + pairs.sum_per_row(pairs.batch)),
            pairs.sum_per_row(pairs.sm_percent) / 100.0,
        )
    )
    return np.hstack((plain, psi, psi * narrowness[:, None]))


class _Regression(NamedTuple):
    """A linear function of features, with offsets."""

    intercept: float
    weights: Reals
    offsets: Reals


def _regress(features: Reals, offsets: Reals, targets: Reals) -> _Regression:
    """What explains targets (N,) by features (N, F) in their own units and offsets (N, O)."""
    centre = features.mean(axis=0)
    scale = features.std(axis=0)
    scale = np.where(scale > _SAME, scale, np.inf)
    mean = targets.mean()
    solved = _bounded_ridge((features - centre) / scale, offsets, targets - mean)
    split = features.shape[1]
    weights = solved[:split] / scale
    return _Regression(mean - weights @ centre, weights, solved[split:])


def _bounded_ridge(features: Reals, offsets: Reals, targets: Reals) -> Reals:
    """(F + O,) weights of standardised features and of offsets that explain targets (N,) and stay near 0."""
    count = features.shape[1]
    spreads = _EXPLAINED_SPREAD / np.sqrt(count), _OFFSET_SPREAD
    spread = np.repeat(spreads, [count, offsets.shape[1]])
    # The priors are rows of their own, each of which states that a weight is 0.
    design = np.vstack((np.hstack((features, offsets)) / _NOISE, np.diag(1.0 / spread)))
    observed = np.concatenate((targets / _NOISE, np.zeros(len(spread))))
    lowest = np.full(len(spread), -np.inf)
    lowest[_FREE:count] = 0.0
    return np.asarray(
        scipy.optimize.lsq_linear(design, observed, bounds=(lowest, np.inf)).x
    )
