"""Pressure and sensitivity: InSS's interference law, which is also the contract's.

    latency_i = transfer_i + launch_i · (1 + launch_per_neighbour · n + launch_base) + run_i · (1 + s_i · Σ_j π_j)
    π_j(batch, share) = w_j · (c0 + c1 · share / 100 + c2 · log2(batch) / 5 + c3 · L2_j(batch, share))

n replicas on the GPU, j over the n − 1 neighbours; s_i the sensitivity of the network that is slowed down, π_j the
pressure of a neighbour. The latency alone is split into transfer, launch and run by `latency.decomposition`.

Source: InSS, section 4.1 (launch delay linear in the number of replicas; run time × (1 + α · Σ L2 utilisation); L2
utilisation linear in the share). Ours: the pressure also grows with the batch (measured on V100 pairs: the error falls
from 1.8 to 1.6 %); its shape is shared by all networks and only its height w_j is a network's own; where hardware
counters were sampled they enter as L2_j, per network a line in share and log batch, and where they were not the fitted
shape stands in (InSS's missing counters). All coefficients are ≥ 0, so that another neighbour, or a larger one, never
makes a replica faster. s and w are regularised to 1 in logarithms, c to values of a V100: few samples are enough, and
an unknown network is the pooled mean. Least squares on log factors, with a soft L1 loss against outliers.

Rows whose alone latency is not known count relative to each other: rows of one network at one batch and share next to
different neighbours must differ by the ratio of their factors.

Wins when operating points are made (it is the only technique that converts to the contract's rows), for unseen
combinations and numbers of neighbours, and with few samples. Limits: sensitivity does not depend on the replica's own
batch and share, so that with dense pair samples `response_surface` is three times more accurate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy

from solvers.predict.data.fit import Coefficients
from solvers.predict.data.interference_factor import (
    Pairs,
    clip_factors,
    colocated_rows,
    neighbour_counts,
    networks_in,
    pairs_of,
    positions,
)
from solvers.predict.data.samples import Indices, Queries, Reals, Samples
from solvers.predict.interference import pressure_least_squares
from solvers.predict.interference.pressure_least_squares import (
    KNOWN,
    SHAPE_CENTRE,
    PressureProgram,
)
from solvers.predict.latency.decomposition import (
    NO_FACTS,
    TYPICAL_LINK,
    TYPICAL_NETWORK,
    LatencyParts,
    LinkFacts,
    NetworkFacts,
    split,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDelay:
    """By how much replicas on one GPU delay each other's kernel launches, relative to the launch time alone."""

    per_neighbour: float
    base: float


def fit(
    samples: Samples,
    alone_ms: Reals,
    facts: Mapping[str, NetworkFacts] = NO_FACTS,
    link: LinkFacts = TYPICAL_LINK,
) -> Coefficients:
    """The law's coefficients from samples of one GPU type; raises TooFewSamples where nothing is co-located."""
    rows = colocated_rows(samples)
    at = samples.at.take(rows)
    measured_ms = samples.latency_ms[rows]
    known_ms = alone_ms[rows]
    # Networks with facts alone get rows, too, so that the law knows their transfer and launch.
    networks = networks_in(at.network, pairs_of(at).network, facts)
    start = _start(networks, facts, link, _l2_lines(samples, networks))
    is_known = np.isfinite(known_ms) & (known_ms > 0.0)
    log_factors = np.log(measured_ms / np.where(is_known, known_ms, 1.0))
    # Unknown latencies alone only serve to split the time; the measured one is near enough for that.
    formulation = _formulate(start, at, np.where(is_known, known_ms, measured_ms))
    conditions = np.where(is_known, KNOWN, _conditions(at))
    unknowns = pressure_least_squares.solve(formulation, log_factors, conditions)
    learned = {
        "launch": unknowns.launch,
        # The last row is that of unknown networks: the pooled mean.
        "sensitivity": np.append(unknowns.sensitivity, 1.0),
        "weight": np.append(unknowns.weight, 1.0),
        "shape": unknowns.shape,
    }
    return Coefficients(arrays={**start.arrays, **learned}, labels=start.labels)


def prior(
    networks: tuple[str, ...] = (),
    facts: Mapping[str, NetworkFacts] = NO_FACTS,
    link: LinkFacts = TYPICAL_LINK,
) -> Coefficients:
    """The law before anything was measured: every network is the pooled mean of a V100."""
    known = networks_in(networks, facts)
    return _start(known, facts, link, np.full((len(known), 3), np.nan))


def predict(coefficients: Coefficients, queries: Queries, alone_ms: Reals) -> Reals:
    """(N,) factors by the law."""
    parts = times(coefficients, queries, alone_ms)
    delay = launch_delay(coefficients)
    replicas = neighbour_counts(queries) + 1
    # InSS's line starts at two replicas; a single one is not delayed, whatever the base is.
    delayed = 1.0 + delay.per_neighbour * replicas + delay.base
    launch_ms = parts.launch_ms * np.where(replicas > 1, delayed, 1.0)
    sensitivities = _sensitivities(coefficients, queries.network)
    run_factor = 1.0 + sensitivities * total_pressure(coefficients, queries)
    latency_ms = parts.transfer_ms + launch_ms + parts.run_ms * run_factor
    return clip_factors(queries, latency_ms / alone_ms)


def times(
    coefficients: Coefficients, queries: Queries, alone_ms: Reals
) -> LatencyParts:
    """Transfer, launch and run time (N,) of alone latencies, split by the facts that the fit was made with."""
    arrays = coefficients.arrays
    own = positions(queries.network, coefficients.labels["networks"])
    transferred = arrays["bytes_per_request"][own] * queries.batch
    return split(
        alone_ms,
        transfer_ms=transferred / arrays["pcie_bytes_per_ms"],
        launch_ms=arrays["kernels"][own] * arrays["launch_ms_per_kernel"],
    )


def launch_delay(coefficients: Coefficients) -> LaunchDelay:
    """The contract's `launch_per_neighbour` and `launch_base` of the GPU type."""
    per_neighbour, base = coefficients.arrays["launch"]
    return LaunchDelay(per_neighbour=float(per_neighbour), base=float(base))


def sensitivity(coefficients: Coefficients, network: str) -> float:
    """The contract's `sensitivity` of a network; the pooled mean for one that was never sampled."""
    return float(_sensitivities(coefficients, (network,))[0])


def pressures(
    coefficients: Coefficients, network: str, *, batch: Reals, sm_percent: Reals
) -> Reals:
    """(K,) the contract's `pressure` of a network's rows at these batches and shares."""
    pairs = Pairs(
        row=np.arange(len(batch)),
        network=(network,) * len(batch),
        batch=batch,
        sm_percent=sm_percent,
        rows=len(batch),
    )
    return _pressures(coefficients, pairs)


def total_pressure(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) the contract's Π: the summed pressure of each row's neighbours."""
    pairs = pairs_of(queries)
    return pairs.sum_per_row(_pressures(coefficients, pairs))


def _pressures(coefficients: Coefficients, pairs: Pairs) -> Reals:
    other = positions(pairs.network, coefficients.labels["networks"])
    shape = _shapes(coefficients, pairs, other) @ coefficients.arrays["shape"]
    return np.asarray(coefficients.arrays["weight"][other] * shape)


def _shapes(coefficients: Coefficients, pairs: Pairs, other: Indices) -> Reals:
    """(K, 4) what c0..c3 multiply."""
    plain = _plain_shapes(pairs.batch, pairs.sm_percent)
    l2_util = np.sum(plain * coefficients.arrays["l2_line"][other], axis=1)
    return np.column_stack((plain, np.maximum(l2_util, 0.0)))


def _plain_shapes(batch: Reals, sm_percent: Reals) -> Reals:
    return np.column_stack(
        (np.ones_like(batch), sm_percent / 100.0, np.log2(batch) / 5.0)
    )


def _sensitivities(coefficients: Coefficients, networks: tuple[str, ...]) -> Reals:
    own = positions(networks, coefficients.labels["networks"])
    return coefficients.arrays["sensitivity"][own]


def _start(
    networks: tuple[str, ...],
    facts: Mapping[str, NetworkFacts],
    link: LinkFacts,
    l2_lines: Reals,
) -> Coefficients:
    """The prior; every table (M + 1, ...) ends with the row of unknown networks."""
    known = [facts.get(network, TYPICAL_NETWORK) for network in networks]
    known.append(TYPICAL_NETWORK)
    has_line = np.isfinite(l2_lines[:, 0])
    mean_line = l2_lines[has_line].mean(axis=0) if has_line.any() else np.zeros(3)
    lines = np.where(has_line[:, None], l2_lines, mean_line)
    request_bytes = [fact.input_bytes + fact.output_bytes for fact in known]
    return Coefficients(
        arrays={
            "sensitivity": np.ones(len(known)),
            "weight": np.ones(len(known)),
            "shape": SHAPE_CENTRE.copy(),
            "launch": np.zeros(2),
            "l2_line": np.vstack((lines, mean_line)),
            "kernels": np.array([fact.kernels for fact in known]),
            "bytes_per_request": np.array(request_bytes),
            "pcie_bytes_per_ms": np.array(link.pcie_bytes_per_ms),
            "launch_ms_per_kernel": np.array(link.launch_ms_per_kernel),
        },
        labels={"networks": networks},
    )


def _l2_lines(samples: Samples, networks: tuple[str, ...]) -> Reals:
    """(M, 3) each network's L2 utilisation / 100 over (1, share, log batch), ≥ 0; NaN where none was measured alone."""
    lines = np.full((len(networks), 3), np.nan)
    l2_util = samples.l2_util_percent / 100.0
    # A counter next to neighbours counts theirs as well.
    is_counted = (neighbour_counts(samples.at) == 0) & np.isfinite(l2_util)
    own = positions(samples.at.network, networks)
    shapes = _plain_shapes(samples.at.batch, samples.at.sm_percent)
    for position in range(len(networks)):
        rows = (own == position) & is_counted
        if rows.any():
            lines[position], _ = scipy.optimize.nnls(shapes[rows], l2_util[rows])
    return lines


def _conditions(at: Queries) -> Indices:
    """(N,) rows of one network at one batch, share, clock, quota and power limit have the same number."""
    rows = map(tuple, at.conditions(unknown=-1.0).tolist())
    keys = list(zip(at.network, rows, strict=True))
    index = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([index[key] for key in keys], dtype=np.intp)


def _formulate(start: Coefficients, at: Queries, alone_ms: Reals) -> PressureProgram:
    networks = start.labels["networks"]
    parts = times(start, at, alone_ms)
    pairs = pairs_of(at)
    other = positions(pairs.network, networks)
    return PressureProgram(
        launch_fraction=parts.launch_ms / alone_ms,
        run_fraction=parts.run_ms / alone_ms,
        replicas=(neighbour_counts(at) + 1).astype(np.float64),
        own=positions(at.network, networks),
        pairs=pairs,
        other=other,
        shapes=_shapes(start, pairs, other),
        networks=len(networks),
    )
