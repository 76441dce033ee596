"""Response surface: the pressure law, corrected by a quadratic for every pair of networks.

    ln factor = ln pressure law + Σ_j φ(i, j) · W[i, j]         j over the neighbours of replica i
    φ = all products up to second order of (log2 batch_i, log2 batch_j, ln share_i, ln share_j), 15 of them
    W[i, j] = pooled + own[i] + neighbour[j] + pair[i, j]

A ridge regression (equivalently: a Gaussian process with that kernel) in closed form. What a pair of networks was not
sampled for comes from what either does with other neighbours, what neither was sampled for from the pooled part, and
a network that is not known at all is the pooled mean. Batches and shares outside the sampled range count as its edge:
a quadratic must not extrapolate. Residuals of the law beyond four robust standard deviations are cut off there.

Source: second-order response surfaces (Box and Wilson 1951) with partial pooling; no paper of the five does this. Wins
where pairs were sampled densely: on measured V100 pairs 0.5 % against 1.6 % of the law alone and 3.2 % of a constant.
Limits: not monotone by construction; it does not convert to the contract's rows (use `pressure` for these).
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.interference_factor import (
    MAX_FACTOR,
    MIN_FACTOR,
    Pairs,
    clip_factors,
    known_rows,
    networks_in,
    pairs_of,
    positions,
)
from solvers.predict.data.samples import Indices, Queries, Reals, Samples, even_choice
from solvers.predict.interference import pressure
from solvers.predict.latency.decomposition import TYPICAL_LINK, LinkFacts

_MIN_SAMPLES = 8
"""With fewer the law alone says as much."""
_MAX_SAMPLES = 1500
"""From more an even selection is learned: the work grows with their cube."""
_WEIGHT_SPREAD = 0.02
"""Prior standard deviation of every weight, in log factor per standardised feature."""
_NOISE = 0.01
"""Relative standard deviation of a measured factor (median of iGniter's V100 pairs)."""
_CUT = 4.0
_NORMAL_MAD = 1.4826
"""Standard deviation / median absolute deviation of a normal distribution."""
_CENTRE = np.array([3.0, 3.0, np.log(0.5), np.log(0.5)])
_SCALE = np.array([2.0, 2.0, 1.0, 1.0])
"""Features are standardised by these constants: batch 8 and half of the GPU are 0, batch 32 is 1."""


def fit(
    samples: Samples, alone_ms: Reals, *, link: LinkFacts = TYPICAL_LINK
) -> Coefficients:
    """The law and the surfaces; raises TooFewSamples below _MIN_SAMPLES samples with a known latency alone."""
    rows = known_rows(samples, alone_ms)
    if len(rows) < _MIN_SAMPLES:
        raise TooFewSamples(
            f"{len(rows)} samples with neighbours, a response surface needs {_MIN_SAMPLES}"
        )
    # The law learns from all rows; only the surfaces need the selection.
    law = pressure.fit(samples, alone_ms, link=link)
    rows = _even_selection(rows, samples.latency_ms)
    at = samples.at.take(rows)
    known_ms = alone_ms[rows]
    by_law = np.log(pressure.predict(law, at, known_ms))
    residuals = np.log(samples.latency_ms[rows] / known_ms) - by_law
    pairs = pairs_of(at)
    standard = _standardised(at, pairs)
    box = np.stack((standard.min(axis=0), standard.max(axis=0)))
    networks = networks_in(at.network, pairs.network)
    weights = _weights(_cut(residuals), at, pairs, _quadratic(standard), networks)
    return Coefficients(
        arrays={**law.arrays, "surface": weights, "box": box},
        labels={**law.labels, "surface_networks": networks},
    )


def predict(coefficients: Coefficients, queries: Queries, alone_ms: Reals) -> Reals:
    """(N,) factors."""
    law = pressure.predict(coefficients, queries, alone_ms)
    pairs = pairs_of(queries)
    networks = coefficients.labels["surface_networks"]
    own = positions(queries.network, networks)[pairs.row]
    other = positions(pairs.network, networks)
    inside = np.clip(_standardised(queries, pairs), *coefficients.arrays["box"])
    weights = coefficients.arrays["surface"][own, other]
    corrections = np.einsum("kf,kf->k", _quadratic(inside), weights)
    # More than from one end of the factors to the other makes no difference, but could overflow.
    reach = np.log(MAX_FACTOR / MIN_FACTOR)
    correction = np.clip(pairs.sum_per_row(corrections), -reach, reach)
    return clip_factors(queries, law * np.exp(correction))


def _even_selection(rows: Indices, latency_ms: Reals) -> Indices:
    """At most _MAX_SAMPLES of the rows, evenly over the measured latencies, whatever order they came in."""
    if len(rows) <= _MAX_SAMPLES:
        return rows
    ranked = rows[np.argsort(latency_ms[rows], kind="stable")]
    return ranked[even_choice(len(rows), max_rows=_MAX_SAMPLES)]


def _weights(
    residuals: Reals,
    at: Queries,
    pairs: Pairs,
    features: Reals,
    networks: tuple[str, ...],
) -> Reals:
    """(M + 1, M + 1, 15) W by own and neighbour's network; the last of either is an unknown one.

    In the dual: the gram matrix of a block (own, neighbour, pair) is that of its features where both rows belong to it.
    """
    own = positions(at.network, networks)
    other = positions(pairs.network, networks)
    sums = [pairs.sum_per_row(features)]
    for network in range(len(networks)):
        sums.append(pairs.sum_per_row(features * (other == network)[:, None]))
    products = sum((part @ part.T for part in sums), np.zeros((len(at), len(at))))
    # Rows of one network share its own block besides the pooled one.
    same_own = 1.0 + (own[:, None] == own[None, :])
    gram = products * same_own * _WEIGHT_SPREAD**2
    dual = cho_solve(cho_factor(gram + _NOISE**2 * np.eye(len(at))), residuals)
    return _table(sums, dual, own)


def _table(sums: list[Reals], dual: Reals, own: Indices) -> Reals:
    """W from the dual solution (N,): `sums` holds the features (N, 15) over all neighbours, then by network."""
    networks = len(sums) - 1
    table = np.zeros((networks + 1, networks + 1, sums[0].shape[1]))
    for i in range(networks + 1):
        of_own = dual * (1.0 + (own == i))
        table[i] += sums[0].T @ of_own
        for j in range(networks):
            table[i, j] += sums[1 + j].T @ of_own
    return table * _WEIGHT_SPREAD**2


def _standardised(queries: Queries, pairs: Pairs) -> Reals:
    """(K, 4) log2 batches and ln shares of both sides, standardised."""
    columns = (
        np.log2(queries.batch[pairs.row]),
        np.log2(pairs.batch),
        np.log(queries.sm_percent[pairs.row] / 100.0),
        np.log(pairs.sm_percent / 100.0),
    )
    standard: Reals = (np.column_stack(columns) - _CENTRE) / _SCALE
    return standard


def _quadratic(standard: Reals) -> Reals:
    """(K, 15) 1, the four and their products."""
    left, right = np.triu_indices(standard.shape[1])
    products = standard[:, left] * standard[:, right]
    return np.hstack((np.ones((len(standard), 1)), standard, products))


def _cut(residuals: Reals) -> Reals:
    median = np.median(residuals)
    spread = _NORMAL_MAD * np.median(np.abs(residuals - median))
    # Where most residuals are 0 their spread is 0 too: the limit is never below that of the noise.
    limit = _CUT * max(spread, _NOISE)
    return np.clip(residuals, median - limit, median + limit)
