"""Linear-fractional latency: affine in the batch, over the SM share plus an offset, plus a floor.

    gpu_ms(b, p, f, q)  = [(work + work_per_request · b) / (p + offset) · (f_max / f)^clock_exponent
                           + fixed + fixed_per_request · b] · (100 / q)^quota_exponent
    host_ms(q)          = interpolated, in logarithms, between one value per measured time quota; falls with q
    latency_ms          = (gpu_ms^6 + host_ms(q)^6)^(1/6)

The last line is a rounded maximum: small networks take as long as the host needs to launch them, whatever the share.
All coefficients are >= 0, so that the latency is positive, falls along share, clock and quota and rises along the batch
everywhere. They are the minimum of Σ ρ(ln predicted - ln measured), ρ the soft absolute error (relative errors; an
outlier counts by its size, not by its square), from the best of a few offsets, whose linear part is solved exactly.

Source: iGniter, execution time k(b) / (r + k4) + k5 with quadratic k; we take an affine k, whose square term is not
worth its variance, a floor that grows with the batch, and add the host's floor, clock and quota. Wins with few or
scattered samples, and where latencies are smooth in the share. Limits: no steps, such as whole waves of thread blocks.
Clock and quota count only where the samples have several; otherwise, and beyond the measured ones: `clip_to_measured`.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from solvers.predict.data.fit import Coefficients, TooFewSamples
from solvers.predict.data.samples import Queries, Reals, Samples, even_choice
from solvers.predict.latency.conditions import (
    BATCH,
    CLOCK_MHZ,
    SM_PERCENT,
    TIME_QUOTA_PERCENT,
    Flags,
    MeasuredRange,
    clip_to_measured,
    highest_clock_mhz,
    log_conditions,
    measured_range,
    sorted_samples,
    varies,
)
from solvers.predict.regression.bounded_search import BoundedSearch

_SHARPNESS = 6.0
"""Sharpness of the rounded maximum: 12 % above either where both are equal, 0.3 % where one is twice the other."""
_OFFSETS = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0)
"""First guesses, in SM percent."""
_MAX_QUOTAS = 10
"""Time quotas that get a host floor of their own; of more an even choice does."""
_MIN_CONDITIONS = 4
_OUTLIER = 0.05
"""Relative error from which on an error counts by its size: twice the noise of repeated measurements."""
_RIDGE = 1e-3
"""Weight of a coefficient in its own unit against relative errors: it decides only what the samples leave open."""
# Twice the means about halve a time at most; the rest is room for noise.
_MAX_EXPONENT = 1.5
_FIRST_CLOCK_EXPONENT = 0.7
_HOST_START = 0.9  # Of the least measured latency at a quota.
_MIN_START = 1e-3  # In a parameter's unit: the search starts off its bounds.
_TINY = 1e-9  # Of the median latency; keeps logarithms finite where a part is 0.
_EQUAL = 1e-9  # Of a misfit: nearer ones are equal, and the first guess counts.

(
    _WORK,
    _WORK_PER_REQUEST,
    _FIXED,
    _FIXED_PER_REQUEST,
    _OFFSET,
    _CLOCK_EXPONENT,
    _QUOTA_EXPONENT,
) = range(7)
_LINEAR = [_WORK, _WORK_PER_REQUEST, _FIXED, _FIXED_PER_REQUEST]
_EXPONENTS = [_CLOCK_EXPONENT, _QUOTA_EXPONENT]
_HOST = 7
"""Positions in the parameters; from the last on, the host's floor: at the highest quota, then what each lower adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What the formula reads of N queries, (N,) each; logarithms relative to the highest clock and to 100 %."""

    batch: Reals
    sm_percent: Reals
    log_clock: Reals
    log_quota: Reals


def fit(samples: Samples) -> Coefficients:
    """Coefficients from samples of one group.

    Raises TooFewSamples for fewer than four distinct conditions, two batches or two shares.
    """
    ordered = sorted_samples(samples)
    clock_mhz = highest_clock_mhz(ordered.at)
    logs = log_conditions(ordered.at, highest_clock_mhz=clock_mhz)
    measured = measured_range(logs)
    _refuse_too_few(logs, measured)
    terms = _make_terms(logs)
    unit_ms = float(np.median(ordered.latency_ms))
    log_quotas = np.unique(terms.log_quota)
    log_quotas = log_quotas[even_choice(len(log_quotas), max_rows=_MAX_QUOTAS)]
    # In units of the median, so that neither the search nor its tolerances know of milliseconds.
    latency = ordered.latency_ms / unit_ms
    parameters = _solve(terms, latency, log_quotas, is_varied=varies(measured))
    return Coefficients(
        arrays={
            "parameters": parameters,
            "unit_ms": np.array(unit_ms),
            "log_quotas": log_quotas,
            "measured_range": np.stack(measured),
            "highest_clock_mhz": np.array(clock_mhz),
        }
    )


def predict(coefficients: Coefficients, queries: Queries) -> Reals:
    """(N,) latencies in ms."""
    arrays = coefficients.arrays
    logs = log_conditions(queries, highest_clock_mhz=float(arrays["highest_clock_mhz"]))
    # In batch and share the formula itself holds beyond what was measured.
    measured = MeasuredRange(*arrays["measured_range"])
    inside, factor = clip_to_measured(
        logs, measured, columns=(CLOCK_MHZ, TIME_QUOTA_PERCENT)
    )
    # Fits of earlier versions are in milliseconds.
    unit_ms = arrays.get("unit_ms", np.array(1.0))
    terms = _make_terms(inside)
    latency = _latency(arrays["parameters"], terms, arrays["log_quotas"])
    return np.asarray(unit_ms * latency * factor)


def _refuse_too_few(logs: Reals, measured: MeasuredRange) -> None:
    count = len(np.unique(logs, axis=0))
    if count < _MIN_CONDITIONS:
        raise TooFewSamples(
            f"linear-fractional needs {_MIN_CONDITIONS} distinct conditions, not {count}"
        )
    for column, name in ((BATCH, "batch"), (SM_PERCENT, "SM share")):
        if not varies(measured)[column]:
            raise TooFewSamples(
                f"linear-fractional needs samples at more than one {name}"
            )


def _make_terms(logs: Reals) -> _Terms:
    return _Terms(
        batch=np.exp(logs[:, BATCH]),
        sm_percent=np.exp(logs[:, SM_PERCENT]),
        log_clock=logs[:, CLOCK_MHZ],
        log_quota=logs[:, TIME_QUOTA_PERCENT] - np.log(100.0),
    )


def _latency(parameters: Reals, terms: _Terms, log_quotas: Reals) -> Reals:
    """(N,): the module's formula, in units of the median latency."""
    gpu = _basis(parameters[_OFFSET:_HOST], terms) @ parameters[_LINEAR]
    # Falls along the quota by construction: each lower knot adds to the one above it.
    host = np.cumsum(parameters[_HOST:])[::-1]
    log_host = np.interp(terms.log_quota, log_quotas, np.log(host + _TINY))
    log_gpu = np.log(gpu + _TINY)
    latency: Reals = np.exp(
        np.logaddexp(_SHARPNESS * log_gpu, _SHARPNESS * log_host) / _SHARPNESS
    )
    return latency


def _log_slopes(parameters: Reals, terms: _Terms, log_quotas: Reals) -> Reals:
    """(N, P) derivatives of ln latency by the parameters."""
    basis = _basis(parameters[_OFFSET:_HOST], terms)
    linear = parameters[_LINEAR]
    gpu = basis @ linear
    by_share = basis[:, :2] @ linear[:2]
    slopes = np.empty((len(gpu), len(parameters)))
    slopes[:, _LINEAR] = basis
    slopes[:, _OFFSET] = -by_share / (terms.sm_percent + parameters[_OFFSET])
    slopes[:, _CLOCK_EXPONENT] = -by_share * terms.log_clock
    slopes[:, _QUOTA_EXPONENT] = -gpu * terms.log_quota
    gpu_weight = (gpu + _TINY) / _latency(parameters, terms, log_quotas)
    gpu_share = gpu_weight**_SHARPNESS
    slopes[:, :_HOST] *= (gpu_share / (gpu + _TINY))[:, None]
    host = np.cumsum(parameters[_HOST:])[::-1]
    between = np.stack(
        [
            np.interp(terms.log_quota, log_quotas, knot)
            for knot in np.eye(len(log_quotas))
        ],
        axis=1,
    )
    # What one knot adds counts at its own quota and all lower ones.
    by_knot = np.cumsum(between / (host + _TINY), axis=1)[:, ::-1]
    slopes[:, _HOST:] = (1.0 - gpu_share)[:, None] * by_knot
    return slopes


def _basis(shape: Reals, terms: _Terms) -> Reals:
    """(N, 4): what the coefficients of the affine terms are multiplied with, for (offset, clock and quota exponent)."""
    offset, clock_exponent, quota_exponent = shape
    per_share = np.exp(-clock_exponent * terms.log_clock) / (terms.sm_percent + offset)
    columns = np.stack(
        [per_share, per_share * terms.batch, np.ones_like(terms.batch), terms.batch],
        axis=1,
    )
    basis: Reals = columns * np.exp(-quota_exponent * terms.log_quota)[:, None]
    return basis


def _solve(
    terms: _Terms, latency: Reals, log_quotas: Reals, *, is_varied: Flags
) -> Reals:
    """The parameters for latencies of median 1; each is searched in a unit of its own, in which it is about 1."""
    start = _start(terms, latency, log_quotas)
    units = _units(terms, len(start))
    highest = np.full(len(start), np.inf)
    highest[_EXPONENTS] = _MAX_EXPONENT
    # An exponent of what never varied would take any value at no cost.
    is_free = np.ones(len(start), dtype=bool)
    is_free[_EXPONENTS] = is_varied[[CLOCK_MHZ, TIME_QUOTA_PERCENT]]

    def parameters(searched: Reals) -> Reals:
        full = np.zeros(len(start))
        full[is_free] = searched * units[is_free]
        return full

    def residuals(searched: Reals) -> Reals:
        errors = np.log(_latency(parameters(searched), terms, log_quotas) / latency)
        return np.append(errors, _RIDGE * searched)

    def slopes(searched: Reals) -> Reals:
        by_parameter = _log_slopes(parameters(searched), terms, log_quotas) * units
        by_ridge = _RIDGE * np.eye(len(searched))
        return np.concatenate([by_parameter[:, is_free], by_ridge])

    search = BoundedSearch(
        residuals=residuals, slopes=slopes, highest=highest[is_free], outlier=_OUTLIER
    )
    return parameters(search.find(np.maximum(start / units, _MIN_START)[is_free]))


def _units(terms: _Terms, count: int) -> Reals:
    """(P,) what the parameters are measured in: medians of the samples."""
    share = float(np.median(terms.sm_percent))
    batch = float(np.median(terms.batch))
    units = np.ones(count)
    units[_LINEAR] = np.array([share, share / batch, 1.0, 1.0 / batch])
    units[_OFFSET] = share
    return units


def _start(terms: _Terms, latency: Reals, log_quotas: Reals) -> Reals:
    """Parameters to start from: the exact linear part for the best of a few offsets, the host just below the least."""

    def solve(offset: float) -> tuple[Reals, float]:
        basis = _basis(np.array([offset, _FIRST_CLOCK_EXPONENT, 0.0]), terms)
        return nnls(basis / latency[:, None], np.ones_like(latency))

    misfits = np.array([solve(offset)[1] for offset in _OFFSETS])
    # The first of nearly equal ones: their order must not be left to the rounding of a machine.
    is_best = misfits <= (1.0 + _EQUAL) * misfits.min() + _EQUAL
    offset = _OFFSETS[int(np.argmax(is_best))]
    nearest = np.argmin(np.abs(terms.log_quota[:, None] - log_quotas), axis=1)
    knots = range(len(log_quotas))
    shortest = np.array([latency[nearest == knot].min() for knot in knots])
    host = _HOST_START * np.maximum.accumulate(shortest[::-1])
    shape = (offset, _FIRST_CLOCK_EXPONENT, 0.0)
    return np.concatenate([solve(offset)[0], shape, np.diff(host, prepend=0.0)])
