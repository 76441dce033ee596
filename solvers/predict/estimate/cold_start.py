"""Cold start: first latencies of a network, or of a network on a GPU type, that was not measured yet.

Two sources, both with an uncertainty that is itself measured, by leaving known networks out:

* *Layer counts*: networks that consist of like layers take like times. A Gaussian process over the logarithms of the
  layer counts, of parameters and multiply-accumulates weighs the known networks; the same weights then mix their ln
  latencies at every condition, so that the estimate inherits the knees and floors of similar ones. On 63 torchvision
  networks on a V100 it is off by 18 % in the mean (`python -m bench.predict`).
* *GPU-type ratios*: a network keeps the shape of its curve when it moves; its level moves as that of the networks
  that are known on both types, or by a published ratio of speeds.

An estimate is for planning carefully until something was measured, not for promising: planning with it takes a
quantile far from the middle, as `sigma` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solvers.predict.data.fit import NORMAL_95, Fits, TooFewSamples
from solvers.predict.data.sampled_range import widening
from solvers.predict.data.samples import Group, LayerCounts, Queries, Reals
from solvers.predict.data.techniques import predict_fit, ratio_quantile

MIN_PROFILED_NETWORKS = 5
"""Known networks without which layer counts tell nothing."""
RATIO_SIGMA = 0.25
"""Standard deviation of ln latency when a curve is moved by a published ratio of speeds: the shipped catalogue's own
error, see `python -m bench catalogue_error`."""

_LENGTH = 3.0
_LINEAR = 0.3
_LEVEL = 10.0
_NOISE = 0.2
"""The process over standardised features: length scale, weights of the linear and constant parts, own deviation of a
network. The error on 63 networks changes by less than a tenth when any of them is halved or doubled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColdStartEstimate:
    """Latencies that were not learned from the network's own measurements."""

    latency_ms: Reals
    """(N,)"""
    sigma: Reals
    """(N,) standard deviation of ln(true / estimated)."""
    source: str
    """In words, for a profile's provenance."""


def estimate_from_layers(
    fits: Fits, known: Sequence[LayerCounts], layers: LayerCounts, queries: Queries
) -> ColdStartEstimate:
    """Latencies of a network of which only the layers are known, for queries alone on one GPU type.

    `known`: layers of other networks; those that have a fit on the queries' GPU type count. Raises TooFewSamples when
    there are less than MIN_PROFILED_NETWORKS. Time: O(networks³ + networks · N).
    """
    gpu_type = queries.gpu_type[0] if len(queries) else ""
    profiled = _profiled_networks(fits, known, layers.network, gpu_type)
    log_latency = np.array(
        [_log_latency(fits, entry.network, queries) for entry in profiled]
    )
    covariance = _covariance(_features([*profiled, layers]))
    inverse = np.linalg.inv(covariance[:-1, :-1] + _NOISE**2 * np.eye(len(profiled)))
    mean = log_latency.mean(axis=0)
    deviation = inverse @ (log_latency - mean)
    # What each network would have been off by without its own measurements, in closed form (Rasmussen & Williams,
    # "Gaussian Processes for Machine Learning", eq. 5.12).
    left_out = deviation / np.diag(inverse)[:, None]
    # Over the variance that the process gives it: so a network unlike all others is less sure than one of a family.
    scale = np.mean(left_out**2 * np.diag(inverse)[:, None], axis=0)
    own = covariance[-1, :-1]
    variance = covariance[-1, -1] + _NOISE**2 - own @ inverse @ own
    return ColdStartEstimate(
        latency_ms=np.exp(mean + own @ deviation),
        sigma=np.sqrt(scale * variance),
        source=f"estimated from the layers of {len(profiled)} networks on {gpu_type}",
    )


def _profiled_networks(
    fits: Fits, known: Sequence[LayerCounts], network: str, gpu_type: str
) -> list[LayerCounts]:
    """The other networks with known layers that have a fit on the GPU type, by name; raises TooFewSamples."""
    profiled = [
        entry
        for entry in sorted(known, key=lambda entry: entry.network)
        if entry.network != network
        and fits.find("latency_ms", Group(entry.network, gpu_type)) is not None
    ]
    if len(profiled) < MIN_PROFILED_NETWORKS:
        raise TooFewSamples(
            f"{len(profiled)} networks with known layers have a fit on {gpu_type}; an estimate from layer counts "
            f"needs {MIN_PROFILED_NETWORKS}: measure {network} itself, or more networks"
        )
    return profiled


def estimate_on_gpu_type(
    fits: Fits, queries: Queries, *, known_on: str, speed_ratio: float | None = None
) -> ColdStartEstimate:
    """Latencies of one network on the queries' GPU type, from its fit on the type `known_on`, alone on the GPU.

    The level moves by the median ratio of the networks that have fits on both types; where there is none, by
    `speed_ratio`, the published speed of the queries' type over that of `known_on`. A clock or power limit of the new
    type says nothing on the old one and is ignored there. Raises TooFewSamples when neither is known.
    """
    (target,) = queries.groups()
    unset = np.full(len(queries), np.nan)
    moved = replace(
        queries,
        gpu_type=(known_on,) * len(queries),
        clock_mhz=unset,
        power_limit_w=unset,
    )
    base = fits.find("latency_ms", Group(target.network, known_on))
    if base is None:
        raise TooFewSamples(
            f"{target.network} has no fit on {known_on}, so it cannot be moved to {target.gpu_type}"
        )
    shift = _shift(fits, queries, moved, speed_ratio)
    low, high = (ratio_quantile(base.quality, level) for level in (0.05, 0.95))
    own = widening(base.sampled, moved) * np.log(high / low) / (2.0 * NORMAL_95)
    return ColdStartEstimate(
        latency_ms=np.exp(_log_latency(fits, target.network, moved) + shift.level),
        # Two independent errors: that of the network's own curve, and that of the ratio between the GPU types.
        sigma=np.sqrt(shift.spread**2 + own**2),
        source=f"moved from {known_on} by {shift.source}",
    )


class _Shift(NamedTuple):
    """How far ln latencies (N,) move from one GPU type to another, with their standard deviation."""

    level: Reals
    spread: Reals
    source: str


def _shift(
    fits: Fits, queries: Queries, moved: Queries, speed_ratio: float | None
) -> _Shift:
    ratios = _log_ratios(fits, queries, moved)
    if len(ratios):
        level = np.median(ratios, axis=0)
        # Few networks may agree by chance, so the variance of a published ratio is added, over their number.
        variance = np.mean((ratios - level) ** 2, axis=0) + RATIO_SIGMA**2 / len(ratios)
        source = f"the ratio of {len(ratios)} networks known on both"
        return _Shift(level, np.sqrt(variance), source)
    if speed_ratio is None:
        raise TooFewSamples(
            f"no network is known on both {moved.gpu_type[0]} and {queries.gpu_type[0]}, and no ratio of speeds"
        )
    level = np.full(len(queries), -np.log(speed_ratio))
    spread = np.full(len(queries), RATIO_SIGMA)
    return _Shift(level, spread, "a published ratio of speeds")


def _log_ratios(fits: Fits, queries: Queries, moved: Queries) -> Reals:
    """(R, N) ln of the latency on the queries' type over that on the other, of every network known on both."""
    on_new, on_old = (
        {
            fit.group.network
            for fit in fits.of("latency_ms")
            if fit.group.gpu_type == at.gpu_type[0]
        }
        for at in (queries, moved)
    )
    rows = [
        _log_latency(fits, name, queries) - _log_latency(fits, name, moved)
        for name in sorted(on_new & on_old)
    ]
    return np.array(rows).reshape(len(rows), len(queries))


def _log_latency(fits: Fits, network: str, queries: Queries) -> Reals:
    """(N,) ln latency that the network's fit has at the queries' conditions."""
    group = Group(network, queries.gpu_type[0])
    fit = fits.find("latency_ms", group)
    assert fit is not None, f"{group} was looked up before"
    renamed = replace(queries, network=(network,) * len(queries)).alone()
    return np.asarray(np.log(predict_fit(fit, renamed)))


def _features(entries: Sequence[LayerCounts]) -> Reals:
    """(R + 1, F) standardised logarithms: layers in all, layers of each kind, parameters, multiply-accumulates."""
    logs = np.log1p(np.array(_columns(entries)).T)
    spread = logs.std(axis=0)
    # A kind that all have equally often has no spread to be divided by.
    return np.asarray((logs - logs.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0))


def _covariance(features: Reals) -> Reals:
    distance = ((features[:, None, :] - features[None, :, :]) ** 2).sum(axis=2)
    linear = features @ features.T / features.shape[1]
    near = np.exp(-distance / (2.0 * _LENGTH**2))
    return np.asarray(near + _LINEAR * linear + _LEVEL)


def _columns(entries: Sequence[LayerCounts]) -> list[list[float]]:
    kinds = sorted({kind for entry in entries for kind in entry.counts})
    columns = [[float(sum(entry.counts.values())) for entry in entries]]
    columns += [
        [float(entry.counts.get(kind, 0)) for entry in entries] for kind in kinds
    ]
    columns.append([entry.parameters_millions for entry in entries])
    known = [entry.gmacs for entry in entries if entry.gmacs is not None]
    if len(known) == len(entries):
        # Twice, for they follow the time best.
        columns += [known, known]
    return columns
