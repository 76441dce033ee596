"""Latency as the longer of launching and running: two latent surfaces per network, and what is supposed of them.

    ln latency(b, s, f, q) = softmax( run(b, s) - γ·ln(f / f_max),  launch(s, q) + per_batch(b) ),
    softmax(u, v)          = ln(exp(p·u) + exp(p·v)) / p

b batch, s SM share, f clock, q time quota. The GPU's part shrinks with share and clock and knows no quota; the host's
part has no share or clock in it, but the quota stretches it, and the host's speed may jump from one measurement run
(a share) to the next. All that is latent stands in one vector per network, z (D,): run at the nodes of a batch × share
mesh, launch at those of a share × quota mesh, per_batch at those of the batches, and γ. Between nodes: multilinear.

Both surfaces are Gaussian processes, so z ~ N(mean, covariance); `suppose` gives the two before any sample is seen, and
`surface_posterior` finds z from samples. The maximum of what the GPU and what another resource takes: roofline
(Williams, Waterman, Patterson 2009).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.sparse import csr_array

from solvers.predict.data.samples import Reals
from solvers.predict.latency.conditions import (
    BATCH,
    CLOCK_MHZ,
    SM_PERCENT,
    TIME_QUOTA_PERCENT,
)
from solvers.predict.regression.mesh import Corners, find_corners, make_nodes

SHARPNESS = 8.0  # p: 9 % above either where both are equal, 0.5 % where one is 1.5 times the other.
_MAX_BATCHES, _MAX_SHARES, _MAX_QUOTAS = 16, 20, 10
"""Nodes; D is at most 537, and a step costs D³/3 operations: 50 million."""
_LEVEL_QUANTILE = 0.02  # Neither surface lies above the latency: the first guess touches it from below.

# Standard deviations of logarithms, and lengths in logarithms (of shares: in percent), supposed before any sample. They
# were set once, to what the deviations of image networks from each other on a V100 looked like; half or twice any of
# them moves the error on held-out rows by less than a tenth of itself, as the population's own covariance takes over.
# Of either surface: a network takes from 1/50 to 50 times as long as another.
_LEVEL = 2.0
_RUN_BATCH_EXPONENT, _BATCH_EXPONENT_SPREAD = 0.85, 0.1
_SHARE_EXPONENT_SPREAD = 0.1  # Around -1.
_LARGE_SHARE_SPREAD = 0.2  # Per 100 %: networks use the last SMs unequally well.
_RUN_BEND, _BEND_BATCH_LENGTH, _BEND_SHARE_LENGTH = 0.14, 1.5, 0.8
_QUOTA_BEND, _QUOTA_LENGTH = 0.5, 1.0  # Around the quota's inverse.
_JUMP, _JUMP_SHARE_LENGTH = 0.1, 60.0  # The host's speed between measurement runs.
_RUN_TO_RUN = 0.02
_LAUNCH_PER_BATCH, _PER_BATCH_LENGTH = 0.04, 1.0
_GRAIN = 0.01  # Of every node by itself.
_CLOCK_EXPONENT, _CLOCK_EXPONENT_SPREAD = 0.8, 0.2
_ROUNDING = 1e-13  # Of the sum of all variances: more than the root's rounding, and far less than any of them.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Logarithms of the conditions at which the surfaces are kept, ascending."""

    batch: Reals
    sm_percent: Reals
    time_quota_percent: Reals

    @property
    def run_count(self) -> int:
        return len(self.batch) * len(self.sm_percent)

    @property
    def launch_count(self) -> int:
        return len(self.sm_percent) * len(self.time_quota_percent)


class Gaussian(NamedTuple):
    """What is known of z: (D,) mean, (D, D) covariance and its root, a lower triangle."""

    mean: Reals
    covariance: Reals
    root: Reals


class SurfaceReadings(NamedTuple):
    """How N queries read z: run and launch are (N, D) sparse matrices times z."""

    run: csr_array
    launch: csr_array


def make_surface_nodes(logs: Reals) -> Nodes:
    """Nodes at the conditions that occur among (N, 4) logarithms."""
    return Nodes(
        batch=make_nodes(logs[:, BATCH], max_nodes=_MAX_BATCHES),
        sm_percent=make_nodes(logs[:, SM_PERCENT], max_nodes=_MAX_SHARES),
        time_quota_percent=make_nodes(
            logs[:, TIME_QUOTA_PERCENT], max_nodes=_MAX_QUOTAS
        ),
    )


def make_readings(nodes: Nodes, logs: Reals) -> SurfaceReadings:
    """How queries with these (N, 4) logarithms read z."""
    run = find_corners((nodes.batch, nodes.sm_percent), logs[:, [BATCH, SM_PERCENT]])
    launch = find_corners(
        (nodes.sm_percent, nodes.time_quota_percent),
        logs[:, [SM_PERCENT, TIME_QUOTA_PERCENT]],
    )
    per_batch = find_corners((nodes.batch,), logs[:, [BATCH]])
    first_per_batch = nodes.run_count + nodes.launch_count
    clock = Corners(
        np.full((len(logs), 1), first_per_batch + len(nodes.batch)),
        -logs[:, [CLOCK_MHZ]],
    )
    size = first_per_batch + len(nodes.batch) + 1
    return SurfaceReadings(
        run=_sparse([run, clock], [0, 0], size),
        launch=_sparse([launch, per_batch], [nodes.run_count, first_per_batch], size),
    )


def log_latency(readings: SurfaceReadings, z: Reals) -> Reals:
    """(N,) logarithms from z (D,), or (N, C) from the columns of z (D, C)."""
    return longer_of(readings.run @ z, readings.launch @ z, SHARPNESS)


def grown_log_latency(
    readings: SurfaceReadings, z: Reals, *, run: Reals, launch: Reals
) -> Reals:
    """(N, C) logarithms as of `log_latency`, where either part has grown by these (N,) logarithms."""
    return longer_of(
        readings.run @ z + run[:, None],
        readings.launch @ z + launch[:, None],
        SHARPNESS,
    )


def run_weight(readings: SurfaceReadings, z: Reals) -> Reals:
    """How much of a change of the run surface shows in the latency, 0 to 1; the launch surface has the rest."""
    run = readings.run @ z
    return np.asarray(
        np.exp(SHARPNESS * (run - longer_of(run, readings.launch @ z, SHARPNESS)))
    )


def longer_of(run: Reals, launch: Reals, sharpness: float) -> Reals:
    """The softmax of the module's docstring."""
    return np.asarray(np.logaddexp(sharpness * run, sharpness * launch) / sharpness)


def suppose(nodes: Nodes) -> Gaussian:
    """What holds of every network before any sample: run ∝ batch^0.85 / share, launch ∝ 1 / quota."""
    batch, share = (
        axis.ravel()
        for axis in np.meshgrid(nodes.batch, nodes.sm_percent, indexing="ij")
    )
    launch_mean = np.tile(-nodes.time_quota_percent, len(nodes.sm_percent))
    run_mean = _RUN_BATCH_EXPONENT * batch - share
    per_batch_mean = np.zeros(len(nodes.batch))
    mean = np.concatenate([run_mean, launch_mean, per_batch_mean, [_CLOCK_EXPONENT]])
    alike_batches = _matern(_distances(nodes.batch) / _PER_BATCH_LENGTH)
    per_batch = _LAUNCH_PER_BATCH**2 * alike_batches
    clock = np.array([[_CLOCK_EXPONENT_SPREAD**2]])
    covariance = block_diag(
        _run_covariance(batch, share), _launch_covariance(nodes), per_batch, clock
    )
    # A little on the diagonal, so that equal rows have a root.
    return make_gaussian(mean, covariance + 1e-7 * np.eye(len(mean)))


def make_gaussian(mean: Reals, covariance: Reals) -> Gaussian:
    """The Gaussian with this mean and covariance; O(D³) once, for any number of groups."""
    # However alike its rows are, and however different its networks.
    rounding = _ROUNDING * np.trace(covariance) * np.eye(len(mean))
    root = np.linalg.cholesky(covariance + rounding)
    return Gaussian(mean, covariance, np.asarray(root))


def touch_from_below(
    nodes: Nodes, readings: SurfaceReadings, measured: Reals, prior: Gaussian
) -> Reals:
    """A first guess of z: either surface of the prior mean, moved until it touches the (N,) measured logarithms."""
    z = prior.mean.copy()
    run = slice(0, nodes.run_count)
    launch = slice(nodes.run_count, nodes.run_count + nodes.launch_count)
    z[run] += np.quantile(measured - readings.run @ prior.mean, _LEVEL_QUANTILE)
    z[launch] += np.quantile(measured - readings.launch @ prior.mean, _LEVEL_QUANTILE)
    return z


def _run_covariance(batch: Reals, share: Reals) -> Reals:
    percent = np.exp(share) / 100.0
    bend = _matern(_distances(batch) / _BEND_BATCH_LENGTH) * _matern(
        _distances(share) / _BEND_SHARE_LENGTH
    )
    return (
        _LEVEL**2
        + _BATCH_EXPONENT_SPREAD**2 * _outer(batch - batch.mean())
        + _SHARE_EXPONENT_SPREAD**2 * _outer(share - share.mean())
        + _LARGE_SHARE_SPREAD**2 * _outer(percent - percent.mean())
        + _RUN_BEND**2 * bend
        + _GRAIN**2 * np.eye(len(batch))
    )


def _launch_covariance(nodes: Nodes) -> Reals:
    shares = len(nodes.sm_percent)
    quotas = len(nodes.time_quota_percent)
    between_quotas = _distances(nodes.time_quota_percent) / _QUOTA_LENGTH
    between_shares = _distances(np.exp(nodes.sm_percent)) / _JUMP_SHARE_LENGTH
    run_to_run = _JUMP**2 * np.exp(-between_shares) + _RUN_TO_RUN**2 * np.eye(shares)
    every_share = np.kron(
        np.ones((shares, shares)), _LEVEL**2 + _QUOTA_BEND**2 * _matern(between_quotas)
    )
    return np.asarray(
        every_share
        + np.kron(run_to_run, np.exp(-between_quotas))
        + _GRAIN**2 * np.eye(shares * quotas)
    )


def _sparse(parts: Iterable[Corners], offsets: Iterable[int], size: int) -> csr_array:
    """The (N, size) matrix with these weights at these positions, each part's moved by its offset."""
    pairs = list(zip(parts, offsets, strict=True))
    positions = np.concatenate(
        [part.positions + offset for part, offset in pairs], axis=1
    )
    weights = np.concatenate([part.weights for part, _ in pairs], axis=1)
    starts = np.arange(len(positions) + 1) * positions.shape[1]
    return csr_array(
        (weights.ravel(), positions.ravel(), starts), shape=(len(positions), size)
    )


def _distances(values: Reals) -> Reals:
    return np.asarray(np.abs(values[:, None] - values[None, :]))


def _outer(values: Reals) -> Reals:
    return np.asarray(np.outer(values, values))


def _matern(distances: Reals) -> Reals:
    """Matérn covariance of smoothness 3/2: continuous slopes, no more."""
    scaled = np.sqrt(3.0) * distances
    return np.asarray((1.0 + scaled) * np.exp(-scaled))
