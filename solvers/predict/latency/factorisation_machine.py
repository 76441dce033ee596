"""Factorisation machine learned online by FTRL-Proximal: latency and throughput of all networks from one stream.

    ŷ(x) = w₀ + Σ_j w_j x_j + Σ_{j<k} ⟨v_j, v_k⟩ x_j x_k        j, k of different features (OLTunes, equation 2)

Two targets, each with weights and factors of its own (Bi-FM): ln latency, and ln throughput, learned as what it has
beyond ln batch. Logarithms, because on raw scales no second-order machine follows batch / share. The inputs x are those
of Table 3 as `factorisation_features` encodes them; within one feature there are no products, as there are none in a
one-hot encoding.

Every row is seen once, at a cost of O(columns · factors). It first moves its network's own weight and factors
(`RowWeights`: a few rows teach a network); what is left of the residual then moves what all networks share
(`CoordinateWeights`). Residuals far beyond what can be believed of a row are cut off.

Source: OLTunes, section 3.3 and Algorithm 1; Rendle, "Factorization Machines" (ICDM 2010); Ta, "Factorization Machines
with Follow-The-Regularized-Leader" (IEEE Big Data 2015). Ours: the full curvature in a network's own row, shared
factors that start at the family of hinges instead of at random, and λ₁, λ₂ that pull towards the start, not to 0.

Wins where many networks were measured at few points each, and online, where a row must be learned at once. Limits: a
second-order machine knows no third-order effect, such as a knee that is elsewhere on another GPU type; with many rows
per network, techniques that fit each group by itself are nearer. It forgets nothing: in a world that changes, refit it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Group, Indices, Queries, Reals, Samples
from solvers.predict.latency.factorisation_features import (
    ALL,
    OF_QUERIES,
    Encoding,
    ServedConditions,
    encode,
    numbers_of,
    numbers_of_queries,
)
from solvers.predict.latency.factorisation_learner import (
    LATENCY,
    THROUGHPUT,
    FactorisationLearner,
)

MIN_SAMPLES = 8
"""Samples of all groups together."""
_MAX_PASSES = 3
"""Over few samples; the paper's regime, and that of many samples, is one."""
_MAX_UPDATES = 6000
_BLOCK = 1024
"""Rows that are predicted at once: their columns stay in the processor's cache."""


def fit_groups(samples: Samples) -> Mapping[Group, Coefficients]:
    """Coefficients of every group among the samples, learned in one stream in a random order that is always the same.

    Up to three passes while that is at most 6,000 updates, else one. Raises TooFewSamples below eight samples.
    """
    if len(samples) < MIN_SAMPLES:
        raise TooFewSamples(
            f"a factorisation machine needs {MIN_SAMPLES} samples, not {len(samples)}"
        )
    # From their own middle, so that their unit does not matter.
    learner = FactorisationLearner(start_ms=float(np.median(samples.latency_ms)))
    ordered = samples.take(_order(samples))
    for _ in range(max(1, min(_MAX_PASSES, _MAX_UPDATES // len(samples)))):
        learner.forget_networks()
        learn_samples(learner, ordered)
    return {group: learner.group_coefficients(group) for group in ordered.at.groups()}


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms; the queries' neighbours are not looked at."""
    numbers = numbers_of_queries(queries)
    (logarithms,) = _log_outputs(coefficients, (LATENCY,), OF_QUERIES, numbers)
    return np.asarray(np.exp(logarithms))


def predict_targets(
    coefficients: Coefficients, rows: Sequence[ServedConditions]
) -> tuple[Reals, Reals]:
    """(N,) latencies in ms and (N,) throughputs in requests per second, for rows of one group."""
    targets = (LATENCY, THROUGHPUT)
    outputs = _log_outputs(coefficients, targets, ALL, numbers_of(rows))
    # Throughput is learned less ln batch, hence batches per second.
    latency_ms, batches_per_s = np.exp(outputs)
    return latency_ms, batches_per_s * np.array([row.batch for row in rows])


def learn_samples(learner: FactorisationLearner, samples: Samples) -> None:
    """Let the learner see every sample once, in the given order; batches follow each other without a pause."""
    throughput_rps = 1000.0 * samples.at.batch / samples.latency_ms
    measured = zip(samples.latency_ms.tolist(), throughput_rps.tolist(), strict=True)
    for served, (latency_ms, rate_rps) in zip(
        _served(samples.at), measured, strict=True
    ):
        learner.update(served, latency_ms=latency_ms, throughput_rps=rate_rps)


def _served(at: Queries) -> Iterator[ServedConditions]:
    """Each row by itself."""
    # Plain floats, which the learner handles faster one by one than numpy's.
    rows = zip(
        at.network,
        at.gpu_type,
        at.batch.tolist(),
        at.sm_percent.tolist(),
        at.time_quota_percent.tolist(),
        at.clock_mhz.tolist(),
        at.power_limit_w.tolist(),
        strict=True,
    )
    for network, gpu_type, batch, sm_percent, quota_percent, clock_mhz, limit_w in rows:
        yield ServedConditions(
            network,
            gpu_type,
            batch,
            sm_percent,
            time_quota_percent=quota_percent,
            clock_mhz=clock_mhz,
            power_limit_w=limit_w,
        )


def _log_outputs(
    coefficients: Coefficients,
    targets: Sequence[int],
    encoding: Encoding,
    numbers: Reals,
) -> Reals:
    """(targets, N) logarithms for (N, F) numbers."""
    level, weights, factors = (
        coefficients.arrays[name][list(targets)]
        for name in ("level", "weights", "factors")
    )
    weights, factors = weights[:, encoding.columns], factors[:, encoding.columns]
    # Half of the products, since every pair stands in the matrix twice.
    products = np.matmul(factors, factors.transpose(0, 2, 1)) * (
        0.5 * (encoding.field[:, None] != encoding.field)
    )
    outputs = np.empty((len(targets), len(numbers)))
    for first in range(0, len(numbers), _BLOCK):
        columns = encode(encoding, numbers[first : first + _BLOCK])
        for target in range(len(targets)):
            sums = (columns @ products[target] + weights[target]) * columns
            outputs[target, first : first + _BLOCK] = level[target] + sums.sum(axis=1)
    return outputs


def _order(samples: Samples) -> Indices:
    """A shuffle that does not depend on the rows' order."""
    at = samples.at
    keys = (
        samples.latency_ms,
        at.power_limit_w,
        at.clock_mhz,
        at.time_quota_percent,
        at.sm_percent,
        at.batch,
        np.array(at.gpu_type),
        np.array(at.network),
    )
    order: Indices = np.lexsort(keys)
    return order[np.random.default_rng(0).permutation(len(samples))]
