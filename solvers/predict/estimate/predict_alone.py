"""Predict alone: latencies of one network on one GPU type without neighbours, estimated where it was never measured.

In this order: its own fit; its fit on another GPU type, moved; its layers and the fits of other networks.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import scipy

from solvers.predict.data.fit import Fits, TooFewSamples
from solvers.predict.data.sampled_range import widening
from solvers.predict.data.samples import Group, LayerCounts, Queries, Reals
from solvers.predict.data.techniques import predict_fit, ratio_quantile
from solvers.predict.estimate.cold_start import (
    ColdStartEstimate,
    estimate_from_layers,
    estimate_on_gpu_type,
)

GPU_TYPE_RATIO = "gpu_type_ratio"
LAYER_COUNTS = "layer_counts"
ESTIMATES = (GPU_TYPE_RATIO, LAYER_COUNTS)
"""Techniques of latencies that were not fitted to measurements of the network on the GPU type itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AloneLatency:
    """Latencies of N queries of one group, and where their interval ends."""

    latency_ms: Reals
    """(N,) > 0."""
    low_ratio: Reals
    high_ratio: Reals
    """(N,) ends of the interval, over latency_ms, as they are inside what was sampled."""
    widening: Reals
    """(N,) factor >= 1 on the logarithms of the interval's ends outside; estimates have theirs in the ends."""
    technique: str


def predict_alone(
    fits: Fits,
    queries: Queries,
    *,
    layers: Mapping[str, LayerCounts],
    levels: tuple[float, float],
) -> AloneLatency:
    """Latencies of queries of one group, neighbours not looked at, with the interval between two levels.

    `layers` by network. Raises TooFewSamples where the group has no fit and nothing to estimate it from.
    """
    group = Group(queries.network[0], queries.gpu_type[0])
    fit = fits.find("latency_ms", group)
    if fit is None:
        return _estimated(fits, group, queries, layers, levels)
    low_ratio, high_ratio = (
        np.full(len(queries), ratio_quantile(fit.quality, level)) for level in levels
    )
    # A fit's error outside its samples is not known, so its interval is widened there.
    return AloneLatency(
        latency_ms=predict_fit(fit, queries),
        low_ratio=low_ratio,
        high_ratio=high_ratio,
        widening=widening(fit.sampled, queries),
        technique=fit.technique,
    )


def _estimated(
    fits: Fits,
    group: Group,
    queries: Queries,
    layers: Mapping[str, LayerCounts],
    levels: tuple[float, float],
) -> AloneLatency:
    # Its own curve from another GPU type comes first: in shape it is nearer than any relative's.
    estimate = _moved(fits, group, queries)
    technique = GPU_TYPE_RATIO
    if estimate is None:
        own_layers = layers.get(group.network)
        if own_layers is None:
            raise TooFewSamples(
                f"{group.network} was not measured anywhere, and its layers are not known"
            )
        estimate = estimate_from_layers(
            fits, tuple(layers.values()), own_layers, queries
        )
        technique = LAYER_COUNTS
    low_ratio, high_ratio = (
        np.exp(estimate.sigma * scipy.special.ndtri(level)) for level in levels
    )
    return AloneLatency(
        latency_ms=estimate.latency_ms,
        low_ratio=low_ratio,
        high_ratio=high_ratio,
        widening=np.ones(len(queries)),
        technique=technique,
    )


def _moved(fits: Fits, group: Group, queries: Queries) -> ColdStartEstimate | None:
    """From the GPU type from which the estimate is the surest; None where the network is known on no useful one."""
    estimates = []
    for fit in fits.of("latency_ms"):
        if fit.group.network == group.network:
            # A type without any network in common gives no ratio, and no published speeds are known here.
            with suppress(TooFewSamples):
                known_on = fit.group.gpu_type
                estimates.append(estimate_on_gpu_type(fits, queries, known_on=known_on))
    return min(estimates, key=lambda one: float(one.sigma.mean()), default=None)
