"""Roofline: watts = base + dynamic watts under three ceilings: the SM share, the batch's parallelism, the power limit.

    dynamic(b, p, f) = (f / f_ref)^γ · softmin_n( C · p / 100,  S · b^β )
    power_w(b, p, f) = softmin_m( base + dynamic,  limit )

b requests per batch, p SM percent, f clock. C = watts of all SMs kept busy, S · b^β = watts of as many SMs as a batch
of b can occupy, softmin as in soft_minimum.py. base, C, γ, n, m and the limit belong to the GPU type and are learned
from all its networks together; S and β are the network's. A `power_limit_w` in a row takes the learned limit's place; a
row without a clock runs at f_ref, the highest clock among the samples. Rises, or stays, in b, p, f and the limit.

The latencies among the samples help, since *a batch costs the same dynamic energy at every SM share*: 1/latency and
dynamic watts grow alike over p (igniter_v100: energy is constant within 8 % while the latency changes tenfold). So a
network of which no watts were measured is predicted too, if its latency was, at two SM shares of one batch or more.

Source: the knobs are those of Morak §3 (figures 1-3); the form is ours, after the roofline bound of throughput and the
power law of the clock (γ of 34 fitted curves in PctoDL: median 1.2, at most 1.9, above a static part that rises too).
Wins on inference, on any knobs. Limits: it cannot fall with the batch, as average watts of training do, which wait for
their data (see duty_cycle.py). Neighbours and the time quota are not looked at: watts while the replica's kernels run.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.interference_factor import neighbour_counts
from solvers.predict.data.samples import Group, Indices, Queries, Reals, Samples
from solvers.predict.regression.posterior_mode import (
    Priors,
    posterior_mode,
    slope_along,
)
from solvers.predict.regression.soft_minimum import soft_minimum

MIN_CONDITIONS = 4
"""Different conditions with measured watts of which a GPU type needs to be learned."""
POWER_SIGMA = 0.03
"""Standard deviation of ln watts: what repeated measurements and the form itself are off."""
ENERGY_SIGMA = 0.1
"""Standard deviation of ln dynamic energy of a batch over SM shares: what its being constant is off."""

# Priors as median and standard deviation of the logarithm. Watts are relative to the samples' lowest or highest.
_BASE_OF_LEAST = (0.7, 0.5)
_FULL_SHARE_OF_GREATEST = (1.2, 0.5)
_LIMIT_OF_GREATEST = (1.5, 0.5)
_KNEE_SHARPNESS = (1.5, 0.4)
_LIMIT_SHARPNESS = (8.0, 0.5)
_CLOCK_EXPONENT = (1.5, 0.4)
_PARALLEL_OF_GREATEST = (0.5, 1.5)
_BATCH_EXPONENT = (0.7, 0.4)
_SATURATED = 1.0
"""Limit over greatest watts from which a second search starts: it may be that the limit was already reached."""

_BOARD, _NETWORK = 6, 2
"""Number of the parameters of a GPU type, and of each network."""
_LIMIT = 2
"""Position of the power limit among the parameters of a GPU type."""
_MAX_LOG_WATTS = 25.0
"""Bound of ln(S · b^β), beyond which it is no ceiling to any board."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Board:
    """What the networks of a GPU type have in common."""

    log: Reals
    """(_BOARD,) logarithms of base, C, limit, n, m, γ."""
    reference_mhz: float
    """f_ref; NaN where no sample names a clock."""


def fit_groups(samples: Samples) -> Mapping[Group, Coefficients]:
    """Coefficients of every group with measured watts, or with latencies at two SM shares of one batch.

    Rows with neighbours are not looked at. Raises TooFewSamples where no GPU type has enough watts.
    """
    alone = samples.take(np.flatnonzero(neighbour_counts(samples.at) == 0))
    learned: dict[Group, Coefficients] = {}
    for gpu_type in sorted(set(alone.at.gpu_type)):
        of_type = alone.take(np.flatnonzero(np.array(alone.at.gpu_type) == gpu_type))
        # Repetitions of a few conditions would leave the parameters of the GPU type to their priors.
        if _count_conditions(of_type.take(_with_watts(of_type))) >= MIN_CONDITIONS:
            learned |= _fit_gpu_type(of_type)
    if not learned:
        raise TooFewSamples(
            f"roofline needs watts under {MIN_CONDITIONS} different conditions on a GPU type; "
            f"{len(_with_watts(alone))} of {len(samples)} samples have power_w and no neighbours"
        )
    return learned


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) watts of the GPU, base included; never above the row's power limit."""
    arrays = coefficients.arrays
    reference_mhz = float(arrays["reference_mhz"])
    board = _Board(log=arrays["board_log"], reference_mhz=reference_mhz)
    return _watts(board, arrays["network_log"][np.newaxis, :], queries)


def _fit_gpu_type(samples: Samples) -> dict[Group, Coefficients]:
    measured = samples.take(_with_watts(samples))
    reference_mhz = _highest_clock_mhz(samples)
    board, networks = _fit_board(measured, reference_mhz=reference_mhz)
    # The board is held from here on, so that a network's few samples cannot move what all others share.
    learned = {}
    for group, rows in samples.at.groups().items():
        own = samples.take(rows)
        if len(_with_watts(own)) or _share_pairs(own):
            network = _fit_network(own, board, typical=networks.mean(axis=0))
            arrays = {
                "board_log": board.log,
                "network_log": network,
                "reference_mhz": np.array(board.reference_mhz),
            }
            learned[group] = Coefficients(arrays=arrays)
    return learned


def _highest_clock_mhz(samples: Samples) -> float:
    """NaN where no sample names its clock."""
    clocks = samples.at.clock_mhz[np.isfinite(samples.at.clock_mhz)]
    return float(clocks.max()) if len(clocks) else np.nan


def _fit_board(measured: Samples, *, reference_mhz: float) -> tuple[_Board, Reals]:
    """What the networks have in common, and (K, 2) ln S and ln β of each as far as their watts alone tell."""
    groups = measured.at.groups()
    network_of_row = np.empty(len(measured), dtype=np.intp)
    for number, rows in enumerate(groups.values()):
        network_of_row[rows] = number

    def split(parameters: Reals) -> tuple[_Board, Reals]:
        board = _Board(log=parameters[:_BOARD], reference_mhz=reference_mhz)
        return board, parameters[_BOARD:].reshape(-1, _NETWORK)

    def residuals(parameters: Reals) -> Reals:
        board, networks = split(parameters)
        watts = _watts(board, networks[network_of_row], measured.at)
        return np.asarray(np.log(watts / measured.power_w) / POWER_SIGMA)

    def slopes(parameters: Reals) -> Reals:
        return _board_slopes(residuals, parameters, network_of_row)

    priors = _board_priors(measured.power_w, len(groups))
    saturated = priors.mean.copy()
    saturated[_LIMIT] = np.log(_SATURATED * measured.power_w.max())
    best = posterior_mode(residuals, priors, starts=(saturated,), slopes=slopes)
    limits = measured.at.power_limit_w
    if np.isfinite(limits).all():
        # The board was always limited, so its own limit was not seen: the highest one that was set stands for it.
        best[_LIMIT] = np.log(limits.max())
    return split(best)


def _board_priors(power_w: Reals, networks: int) -> Priors:
    lowest = power_w.min()
    highest = power_w.max()
    of_board = (_BASE_OF_LEAST, _FULL_SHARE_OF_GREATEST, _LIMIT_OF_GREATEST)
    of_shape = (_KNEE_SHARPNESS, _LIMIT_SHARPNESS, _CLOCK_EXPONENT)
    of_networks = (_PARALLEL_OF_GREATEST, _BATCH_EXPONENT) * networks
    scales = (lowest, highest, highest, 1.0, 1.0, 1.0, *(highest, 1.0) * networks)
    medians, sigmas = np.array((*of_board, *of_shape, *of_networks)).T
    return Priors(mean=np.log(medians * np.array(scales)), sigma=sigmas)


def _board_slopes(
    residuals: Callable[[Reals], Reals], parameters: Reals, network_of_row: Indices
) -> Reals:
    """(N, P) derivatives of the residuals.

    A row depends on its own network only, so that one step moves all networks: 8 evaluations however many there are.
    """
    rows = np.arange(len(network_of_row))
    slopes = np.zeros((len(rows), len(parameters)))
    units = np.eye(len(parameters))
    for column in range(_BOARD):
        slopes[:, column] = slope_along(residuals, parameters, units[column])
    for own in range(_NETWORK):
        direction = np.zeros(len(parameters))
        direction[_BOARD + own :: _NETWORK] = 1.0
        columns = _BOARD + own + _NETWORK * network_of_row
        slopes[rows, columns] = slope_along(residuals, parameters, direction)
    return slopes


def _fit_network(samples: Samples, board: _Board, *, typical: Reals) -> Reals:
    """(2,) ln S and ln β of one network, from its watts and from how its latency falls with the SM share."""
    measured = samples.take(_with_watts(samples))
    pairs = _share_pairs(samples)
    rows = samples.take(np.concatenate([np.empty(0, np.intp), *pairs]))
    batch_of_row = np.repeat(np.arange(len(pairs)), [len(pair) for pair in pairs])
    is_of_batch = np.arange(len(pairs))[:, np.newaxis] == batch_of_row
    weights = is_of_batch / is_of_batch.sum(axis=1, keepdims=True)

    def residuals(parameters: Reals) -> Reals:
        network = parameters[np.newaxis, :]
        errors = np.log(_watts(board, network, measured.at) / measured.power_w)
        energies = np.log(rows.latency_ms * _dynamic_watts(board, network, rows.at))
        # The level of a batch's energy is not known; only that it is the same at every share.
        bends = energies - (weights @ energies)[batch_of_row]
        return np.concatenate((errors / POWER_SIGMA, bends / ENERGY_SIGMA))

    sigma = np.array([_PARALLEL_OF_GREATEST[1], _BATCH_EXPONENT[1]])
    return posterior_mode(residuals, Priors(mean=typical, sigma=sigma))


def _watts(board: _Board, networks: Reals, queries: Queries) -> Reals:
    """(N,) watts; `networks` (N or 1, 2) hold ln S and ln β of each row's network."""
    base, _, own_limit, _, sharpness, _ = np.exp(board.log)
    limit = queries.power_limit_or(own_limit)
    unlimited = base + _dynamic_watts(board, networks, queries)
    return soft_minimum(unlimited, limit, sharpness=sharpness)


def _dynamic_watts(board: _Board, networks: Reals, queries: Queries) -> Reals:
    """(N,) watts above the base that the power limit would allow."""
    _, full_share, _, sharpness, _, clock_exponent = np.exp(board.log)
    log_parallel = networks[:, 0] + np.exp(networks[:, 1]) * np.log(queries.batch)
    parallel = np.exp(np.minimum(log_parallel, _MAX_LOG_WATTS))
    of_share = full_share * queries.sm_percent / 100.0
    ceiling = soft_minimum(of_share, parallel, sharpness=sharpness)
    clock = queries.clock_mhz / board.reference_mhz
    speed: Reals = np.where(np.isnan(clock), 1.0, clock) ** clock_exponent
    return speed * ceiling


def _with_watts(samples: Samples) -> Indices:
    return np.flatnonzero(np.isfinite(samples.power_w))


def _count_conditions(samples: Samples) -> int:
    at = samples.at
    columns = np.column_stack((at.batch, at.sm_percent, at.clock_mhz, at.power_limit_w))
    rows = map(tuple, np.nan_to_num(columns).tolist())
    return len(set(zip(at.network, rows, strict=True)))


def _share_pairs(samples: Samples) -> list[Indices]:
    """Rows with a latency that differ in nothing but the SM share, two shares at least."""
    at = samples.at
    columns = np.column_stack(
        (at.batch, at.clock_mhz, at.time_quota_percent, at.power_limit_w)
    )
    alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(np.isfinite(samples.latency_ms)):
        alike[tuple(np.nan_to_num(columns[row]).tolist())].append(int(row))
    return [
        np.array(rows, np.intp)
        for rows in alike.values()
        if len(set(at.sm_percent[rows].tolist())) > 1
    ]
