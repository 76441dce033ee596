"""Hierarchical kriging: every network's launch and run surfaces, with the population of networks as their prior.

    z_n ~ N(m, K)            latent surfaces of network n (`launch_and_run`), alike for all networks and GPU types
    ln latency = softmax of the two surfaces + Student noise σ
    m, K, σ                  learned from all networks: EM, K shrunk towards what is supposed of any network

E-step: each network's most probable z_n with Laplace's covariance. M-step, M networks, prior of ν networks' weight:

    m = mean of z_n,   K = (Σ (z_n - m)(z_n - m)ᵀ + cov z_n + ν·K_supposed) / (M + ν),   σ² = mean expected residual²

A network with few samples is often compatible with several quite different surfaces (were all samples host-bound, so
that little is known of the GPU's part?). Its prior is then a sum of Gaussians, one around every well-measured network,
and so is its posterior; the best few of them are kept, and the prediction is the weighted mean of their ln latencies.

Sources: EM for a population of Gaussian processes: Yu, Tresp, Schwaighofer 2005, "Learning Gaussian processes from
multiple tasks", §3 (normal-inverse-Wishart hyperprior); Gaussian sums: Alspach, Sorenson 1972. Ours: the maximum of two
surfaces, and the Laplace step that it asks for. Wins where several networks were measured alike, above all for one of
which there are 2 to 50 samples, where latencies have a host's floor, and with time quotas. Limits: a network unlike all
others with few samples gets their shape; the noise is one for all; beyond the conditions of all each surface grows as
`clip_to_measured` has it: run with batch, share and clock, launch with the quota.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Group, Queries, Reals, Samples
from solvers.predict.latency.conditions import (
    BATCH,
    CLOCK_MHZ,
    SM_PERCENT,
    TIME_QUOTA_PERCENT,
    MeasuredRange,
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
)
from solvers.predict.latency.launch_and_run import (
    Gaussian,
    Nodes,
    SurfaceReadings,
    grown_log_latency,
    log_latency,
    make_gaussian,
    make_readings,
    make_surface_nodes,
    run_weight,
    suppose,
    touch_from_below,
)
from solvers.predict.latency.surface_posterior import Posterior, find_posterior
from solvers.predict.regression.posterior_mode import weigh

_MIN_CONDITIONS = 2
_ROUNDS = 3  # Of EM; the held-out error does not fall further after two.
_SUPPOSED_WEIGHT = 10.0  # ν; 5 to 60 make no difference with 60 networks, and three alone must not decide K.
_FIRST_NOISE = 0.04
_MIN_NOISE = 0.005  # A mean of thousands of batches repeats no better.
_NOISE_WEIGHT = 20.0  # Samples' worth of the first noise: with few samples the surfaces would explain all of it away.
_FEW = 40
"""Samples up to which the prior is a sum of Gaussians; from there on both are equally good, and one is less to keep."""
_WIDTH = 0.6
"""Width of the Gaussian around a well-measured network, in the population's standard deviations."""
_MISFIT = 2.0  # Of the noise: a network has something of its own that no other's surfaces explain.
_SUM_STEPS = 3  # Two are too few for the maximum; five to twelve do not lower the held-out error.
_KEPT = 6
"""Gaussians kept of a sum."""
_DIGITS = 7  # Decimals of a kept logarithm: rounding moves no latency by more than a ten-millionth.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """One group's samples as the surfaces see them."""

    readings: SurfaceReadings
    log_latency: Reals

    def posterior(
        self, prior: Gaussian, *, start: Reals, noise: float, is_near: bool
    ) -> Posterior:
        """What the samples make of a prior; the arguments are those of `find_posterior`."""
        return find_posterior(
            self.readings,
            self.log_latency,
            prior,
            start=start,
            noise=noise,
            is_near=is_near,
        )


def fit_groups(samples: Samples) -> Mapping[Group, Coefficients]:
    """Coefficients of every group measured under two conditions or more. Raises TooFewSamples when there is none.

    63 networks × 600 samples take some seconds, 63 × 60 less than one.
    """
    parts = {
        group: sorted_samples(samples.take(rows))
        for group, rows in samples.at.groups().items()
    }
    clocks = {group: highest_clock_mhz(part.at) for group, part in parts.items()}
    logs = {}
    for group, part in parts.items():
        rows = log_conditions(part.at, highest_clock_mhz=clocks[group])
        if len(np.unique(rows, axis=0)) >= _MIN_CONDITIONS:
            logs[group] = rows
    if not logs:
        raise TooFewSamples(
            f"no network was measured under {_MIN_CONDITIONS} conditions on a GPU type; measure one so"
        )
    # One mesh for all groups: a population needs surfaces that are kept at the same nodes.
    every_row = np.concatenate(list(logs.values()))
    measured = measured_range(every_row)
    nodes = make_surface_nodes(every_row)
    groups = [
        _Measured(
            readings=make_readings(nodes, rows),
            log_latency=np.log(parts[group].latency_ms),
        )
        for group, rows in logs.items()
    ]
    population, noise, found = _learn_population(nodes, groups)
    sums = _with_sums(groups, found, population, noise)
    return {
        group: _coefficients(nodes, measured, clocks[group], weights, surfaces)
        for group, (weights, surfaces) in zip(logs, sums, strict=True)
    }


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms."""
    arrays = coefficients.arrays
    nodes = Nodes(
        batch=arrays["log_batch"],
        sm_percent=arrays["log_sm_percent"],
        time_quota_percent=arrays["log_time_quota_percent"],
    )
    measured = MeasuredRange(*arrays["measured_range"])
    logs = log_conditions(queries, highest_clock_mhz=float(arrays["highest_clock_mhz"]))
    # Each part grows with its own conditions: what the GPU does with batch, share and clock, the host with the quota.
    inside, run_growth = clip_to_measured(
        logs, measured, columns=(BATCH, SM_PERCENT, CLOCK_MHZ)
    )
    inside, launch_growth = clip_to_measured(
        inside, measured, columns=(TIME_QUOTA_PERCENT,)
    )
    surfaces = grown_log_latency(
        make_readings(nodes, inside),
        arrays["surfaces"].T,
        run=np.log(run_growth),
        launch=np.log(launch_growth),
    )
    return np.asarray(np.exp(surfaces @ arrays["weights"]))


def _learn_population(
    nodes: Nodes, groups: list[_Measured]
) -> tuple[Gaussian, float, list[Posterior]]:
    """What is common to all groups, the noise, and every group's surfaces given both."""
    supposed = suppose(nodes)
    population = supposed
    noise = _FIRST_NOISE
    found: list[Posterior] = []
    for group in groups:
        start = touch_from_below(nodes, group.readings, group.log_latency, supposed)
        own = supposed._replace(mean=start)
        found.append(group.posterior(own, start=start, noise=noise, is_near=False))
    for _ in range(_ROUNDS):
        population, noise = _describe(found, groups, supposed)
        found = [
            # Started at its earlier solution: the population has moved only a little since.
            group.posterior(population, start=before.mode, noise=noise, is_near=True)
            for group, before in zip(groups, found, strict=True)
        ]
    return population, noise, found


def _describe(
    found: list[Posterior], groups: list[_Measured], supposed: Gaussian
) -> tuple[Gaussian, float]:
    """The M-step."""
    modes = np.array([posterior.mode for posterior in found])
    mean = modes.mean(axis=0)
    deviations = modes - mean
    unknown = sum(posterior.covariance for posterior in found)
    spread = deviations.T @ deviations + unknown
    weight = len(found) + _SUPPOSED_WEIGHT
    covariance = (spread + _SUPPOSED_WEIGHT * supposed.covariance) / weight
    from_samples = sum(posterior.squared_noise for posterior in found)
    squared = from_samples + _NOISE_WEIGHT * _FIRST_NOISE**2
    count = sum(len(group.log_latency) for group in groups) + _NOISE_WEIGHT
    noise = max(float(np.sqrt(squared / count)), _MIN_NOISE)
    return make_gaussian(mean, covariance), noise


def _with_sums(
    groups: list[_Measured], found: list[Posterior], population: Gaussian, noise: float
) -> list[tuple[Reals, Reals]]:
    """Per group (C,) weights and (C, D) surfaces: its own, or of few samples the sum's."""
    is_rich = [len(group.log_latency) > _FEW for group in groups]
    centres = [
        posterior.mode for posterior, rich in zip(found, is_rich, strict=True) if rich
    ]
    return [
        (np.ones(1), posterior.mode[None, :])
        if rich or not centres
        else _sum_of_gaussians(
            group,
            np.array([*centres, population.mean]),
            population.covariance,
            _MISFIT * noise,
        )
        for group, posterior, rich in zip(groups, found, is_rich, strict=True)
    ]


def _sum_of_gaussians(
    group: _Measured, centres: Reals, covariance: Reals, noise: float
) -> tuple[Reals, Reals]:
    """(C,) weights and (C, D) surfaces of the best few posteriors.

    The prior is one narrow Gaussian around each of the centres (G, D), the last of them, the population's mean, with
    its whole covariance. Each posterior follows from iterated linearisation; its weight is the evidence for its centre.
    """
    scales = np.append(np.full(len(centres) - 1, _WIDTH**2), 1.0)
    readings = group.readings
    measured = group.log_latency
    gains = _make_gains(readings, covariance)
    surfaces = centres
    weight = np.ones((len(centres), len(measured)))
    diagonal = np.arange(len(measured))
    for _ in range(_SUM_STEPS):
        share = run_weight(readings, surfaces.T).T  # (G, N)
        spread = scales[:, None, None] * _spread_of_readings(gains, share)
        spread[:, diagonal, diagonal] += noise**2 / weight
        moved = (surfaces - centres).T
        rest = 1.0 - share
        slope = share * (readings.run @ moved).T + rest * (readings.launch @ moved).T
        surprise = measured - log_latency(readings, surfaces.T).T + slope
        solved = np.linalg.solve(spread, surprise[:, :, None])[:, :, 0]
        step = (share * solved) @ gains.run + (rest * solved) @ gains.launch
        surfaces = centres + scales[:, None] * step
        weight = weigh((measured - log_latency(readings, surfaces.T).T) / noise)
    # ln N(surprise; 0, spread), less what all centres have in common.
    misfit = 0.5 * np.sum(surprise * solved, axis=1)
    evidence = -misfit - 0.5 * np.linalg.slogdet(spread)[1]
    best = np.argsort(-evidence, kind="stable")[:_KEPT]
    # Relative to the best one, so that exp does not underflow for all of them.
    weights = np.exp(evidence[best] - evidence[best[0]])
    return weights / weights.sum(), surfaces[best]


class _Gains(NamedTuple):
    """How the readings of a group vary with the surfaces, and with each other, before they are seen."""

    run: Reals
    launch: Reals
    """(N, D) covariance of each reading with z."""
    run_run: Reals
    run_launch: Reals
    launch_launch: Reals
    """(N, N) covariance between the readings."""


def _make_gains(readings: SurfaceReadings, covariance: Reals) -> _Gains:
    run = readings.run @ covariance
    launch = readings.launch @ covariance
    return _Gains(
        run=run,
        launch=launch,
        run_run=(readings.run @ run.T).T,
        run_launch=(readings.launch @ run.T).T,
        launch_launch=(readings.launch @ launch.T).T,
    )


def _spread_of_readings(gains: _Gains, share: Reals) -> Reals:
    """(G, N, N) covariance of ln latencies that feel the run surface by these shares (G, N), and launch by the rest."""
    rest = 1.0 - share
    cross = share[:, :, None] * gains.run_launch * rest[:, None, :]
    own = (
        share[:, :, None] * gains.run_run * share[:, None, :]
        + rest[:, :, None] * gains.launch_launch * rest[:, None, :]
    )
    return np.asarray(own + cross + cross.transpose(0, 2, 1))


def _coefficients(
    nodes: Nodes,
    measured: MeasuredRange,
    highest_clock_mhz: float,
    weights: Reals,
    surfaces: Reals,
) -> Coefficients:
    return Coefficients(
        arrays={
            "log_batch": nodes.batch,
            "log_sm_percent": nodes.sm_percent,
            "log_time_quota_percent": nodes.time_quota_percent,
            "measured_range": np.stack(measured),
            "highest_clock_mhz": np.array(highest_clock_mhz),
            "weights": weights,
            "surfaces": surfaces.round(_DIGITS),
        }
    )
