"""Throttling: execution time under a power limit = time at free clocks × (waiting part + computing part, slowed down).

    latency_ms(b, limit) = T(b) · ( 1 − u(b) + u(b) · slowdown^(1/γ) )
    slowdown(b, limit) = softmax_8( 1, (D(b) − idle) / (limit − idle) )

b requests (of training: examples) per batch; ln T(b) is a cubic in ln b; ln D(b) of the watts that the network would
draw, and the logit of u(b), the share of time in which it computes, are straight in ln b. Below D a board lowers its
clock until its dynamic watts fit, and these grow with clock^γ. Rises, or stays, as the limit falls. A row without a
limit has the highest limit among the samples. The watts need not be measured.

Source: the shape of Zeus (You et al., NSDI 2023); the formula is ours, with the power law of roofline.py. Wins on time
per iteration or epoch of training under power limits. Limits: one SM share and clock (or unlocked clocks) per group;
these are not looked at; beyond twice the batches of the samples, where a cubic means nothing, the time grows in
proportion to the batch, and below half of the least it stays; a limit near what the lowest clock
draws (100 W on an A40) slows down more than it says.
"""

import numpy as np

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples
from solvers.predict.regression.posterior_mode import Priors, posterior_mode
from solvers.predict.regression.soft_minimum import soft_minimum

MIN_SAMPLES = 6
LATENCY_SIGMA = 0.03
"""Standard deviation of ln latency: what an epoch's time and the form itself are off."""
SHARPNESS = 8.0

# Normal priors (mean, standard deviation), in the order of the parameters; the first mean is the samples' own.
_LOG_TIME = ((0.0, 2.0), (0.0, 1.0), (0.0, 0.2), (0.0, 0.03))
_LOG_DEMAND_OF_HIGHEST_LIMIT = ((float(np.log(0.9)), 0.4), (0.0, 0.1))
_BUSY_LOGIT = ((1.0, 1.5), (0.0, 0.5))
_IDLE_OF_LEAST_LIMIT_LOGIT = (0.85, 0.7)
_LOG_CLOCK_EXPONENT = (float(np.log(2.0)), 0.4)
_PRIORS = (
    *_LOG_TIME,
    *_LOG_DEMAND_OF_HIGHEST_LIMIT,
    *_BUSY_LOGIT,
    _IDLE_OF_LEAST_LIMIT_LOGIT,
    _LOG_CLOCK_EXPONENT,
)
_MIN_DYNAMIC_W = 1e-3
_MAX_LOG_SLOWDOWN = 50.0
"""Keeps the search finite where it tries absurd exponents."""
_TRUSTED = float(np.log(2.0))
"""How far beyond the batches of the samples, in logarithms, the curves over the batch are followed."""


def fit(samples: Samples) -> Coefficients:
    """Coefficients from the samples of one group that name a power limit, at two limits or more."""
    timed = _limited(samples)
    limits = timed.at.power_limit_w
    log_batch = np.log(timed.at.batch)
    known = {
        "mean_log_batch": np.array(log_batch.mean()),
        "trusted_log_batch": np.array(
            [log_batch.min() - _TRUSTED, log_batch.max() + _TRUSTED]
        ),
        "least_limit_w": np.array(limits.min()),
        "highest_limit_w": np.array(limits.max()),
    }
    log_latency = np.log(timed.latency_ms)

    def residuals(parameters: Reals) -> Reals:
        coefficients = Coefficients(arrays={"parameters": parameters, **known})
        return (_log_latency(coefficients, timed.at) - log_latency) / LATENCY_SIGMA

    mean, sigma = np.array(_PRIORS).T
    # The level has no usual value; all other priors hold in any unit.
    mean[0] = log_latency.mean()
    parameters = posterior_mode(residuals, Priors(mean=mean, sigma=sigma))
    return Coefficients(arrays={"parameters": parameters, **known})


def _limited(samples: Samples) -> Samples:
    """Those that name a power limit."""
    limited = samples.take(np.flatnonzero(np.isfinite(samples.at.power_limit_w)))
    distinct = len(set(limited.at.power_limit_w.tolist()))
    if len(limited) < MIN_SAMPLES or distinct < 2:
        raise TooFewSamples(
            f"throttling needs {MIN_SAMPLES} samples with power_limit_w at two limits or more; "
            f"{len(limited)} of {len(samples)} have one, at {distinct}"
        )
    return limited


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) execution times in ms; limits at or below the idle watts count as just above them."""
    latency: Reals = np.exp(_log_latency(coefficients, queries))
    return latency


def _log_latency(coefficients: Coefficients, queries: Queries) -> Reals:
    arrays = coefficients.arrays
    parameters = arrays["parameters"]
    log_batch = np.log(queries.batch)
    inside = np.clip(log_batch, *arrays["trusted_log_batch"])
    powers = (inside - arrays["mean_log_batch"])[:, np.newaxis] ** np.arange(4)
    log_time = powers @ parameters[:4] + np.maximum(log_batch - inside, 0.0)
    demand = arrays["highest_limit_w"] * np.exp(powers[:, :2] @ parameters[4:6])
    busy = _share(powers[:, :2] @ parameters[6:8])
    idle = arrays["least_limit_w"] * _share(parameters[8])
    limit = queries.power_limit_or(arrays["highest_limit_w"])
    # The search may try idle watts above a limit or a demand.
    allowed_w, demanded_w = (
        np.maximum(watts - idle, _MIN_DYNAMIC_W) for watts in (limit, demand)
    )
    kept = soft_minimum(1.0, allowed_w / demanded_w, sharpness=SHARPNESS)
    log_slowdown = -np.log(kept) * np.exp(-parameters[9])
    slowdown = np.exp(np.minimum(log_slowdown, _MAX_LOG_SLOWDOWN))
    log_latency: Reals = log_time + np.log(1.0 - busy + busy * slowdown)
    return log_latency


def _share(logit: Reals) -> Reals:
    share: Reals = 1.0 / (1.0 + np.exp(-logit))
    return share
