"""Duty cycle: average watts = idle watts + busy share × (watts while busy − idle watts); watts while busy are limited.

    busy_w(b, limit)  = softmin_n( D(b),  a · limit )
    power_w(b, limit) = idle + u(b) · max(0, busy_w − idle)

b requests (of training: examples) per batch; ln D(b), the watts that an unlimited board would draw, and logit u(b),
the share of time in which it computes rather than waits for data, are parabolas in ln b; a ≈ 1 says how well the board
keeps its limit; n how sharp the corner is. Rises, or stays, in the limit; free in b. A row without a limit has the
highest limit among the samples.

Source: the shape of Zeus (You et al., NSDI 2023, figures of power over power limit and batch); the formula is ours.
Wins on the average watts of training under power limits: they grow slower than the limit where the job waits, and may
fall with the batch. Limits: one SM share and clock (or unlocked clocks) per group; these are not looked at. A board
cannot keep a limit below what its lowest clock draws (+20 % at 100 W on an A40); nothing here knows that clock.
"""

from collections.abc import Mapping

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples
from solvers.predict.regression.posterior_mode import Priors, posterior_mode
from solvers.predict.regression.soft_minimum import soft_minimum

MIN_SAMPLES = 4
POWER_SIGMA = 0.02
"""Standard deviation of ln watts: what an epoch's average and the form itself are off."""

# Priors (median, standard deviation) of what the parameters are the logarithm of; watts relative to the samples' own.
_SIGMA_DEMAND = (0.5, 0.2, 0.1)
_SIGMA_BUSY_LOGIT = (2.0, 0.7, 0.4)
_BUSY_LOGIT = 3.0
"""A training job computes nearly always: 95 %."""
_KEEPING = (0.97, 0.05)
_SHARPNESS = (8.0, 0.5)
_IDLE_OF_LOWEST = (0.5, 0.3)
_MIN_SPREAD = 0.5
"""Spread of ln batch, so that parabolas through nearly equal batches do not bend sharply."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from the samples of one group that have watts and a power limit, at two limits or more."""
    measured = _measured(samples)
    log_batch = np.log(measured.at.batch)
    known_facts = {
        "log_batch_scaling": np.array(
            [log_batch.mean(), max(float(log_batch.std()), _MIN_SPREAD)]
        ),
        "highest_limit_w": measured.at.power_limit_w.max(),
    }

    def residuals(parameters: Reals) -> Reals:
        watts = _watts({"parameters": parameters, **known_facts}, measured.at)
        return np.asarray(np.log(watts / measured.power_w) / POWER_SIGMA)

    parameters = posterior_mode(residuals, _priors(measured.power_w))
    return Coefficients(arrays={"parameters": parameters, **known_facts})


def _measured(samples: Samples) -> Samples:
    """Those with watts and a power limit."""
    has_limit = np.isfinite(samples.at.power_limit_w)
    measured = samples.take(np.flatnonzero(np.isfinite(samples.power_w) & has_limit))
    # At one limit the busy share and the keeping of the limit cannot be told apart.
    limits = len(set(measured.at.power_limit_w.tolist()))
    if len(measured) < MIN_SAMPLES or limits < 2:
        raise TooFewSamples(
            f"duty_cycle needs {MIN_SAMPLES} samples with power_w and power_limit_w at two limits or more; "
            f"{len(measured)} of {len(samples)} have both, at {limits}"
        )
    return measured


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) average watts of the GPU, idle watts included."""
    return _watts(coefficients.arrays, queries)


def _watts(arrays: Mapping[str, Reals], queries: Queries) -> Reals:
    """(N,) watts; parameters (9,) = 3 of ln D, 3 of logit u, ln a, ln n, ln idle."""
    parameters = arrays["parameters"]
    keeping, sharpness, idle = np.exp(parameters[6:])
    centre, spread = arrays["log_batch_scaling"]
    scaled = (np.log(queries.batch) - centre) / spread
    powers = np.column_stack((np.ones(len(queries)), scaled, scaled**2))
    busy = 1.0 / (1.0 + np.exp(-(powers @ parameters[3:6])))
    limit = queries.power_limit_or(arrays["highest_limit_w"])
    demand = np.exp(powers @ parameters[:3])
    busy_watts = soft_minimum(demand, keeping * limit, sharpness=sharpness)
    watts: Reals = idle + busy * np.maximum(0.0, busy_watts - idle)
    return watts


def _priors(power_w: Reals) -> Priors:
    logs = np.log(
        [_KEEPING[0], _SHARPNESS[0], _IDLE_OF_LOWEST[0] * float(power_w.min())]
    )
    means = (np.log(power_w.max()), 0.0, 0.0, _BUSY_LOGIT, 0.0, 0.0, *logs)
    own_sigmas = (_KEEPING[1], _SHARPNESS[1], _IDLE_OF_LOWEST[1])
    sigmas = (*_SIGMA_DEMAND, *_SIGMA_BUSY_LOGIT, *own_sigmas)
    return Priors(mean=np.array(means), sigma=np.array(sigmas))
