"""Samples of made-up networks whose curves are known, for tests of fits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solvers.predict.data.samples import (
    Neighbour,
    NeighbourSet,
    Queries,
    Reals,
    Samples,
    make_queries,
    make_samples,
)

BATCHES = (1.0, 2.0, 4.0, 8.0)
SHARES = tuple(float(share) for share in range(10, 101, 10))


def known_latency_ms(batch: Reals, sm_percent: Reals, *, scale: float = 1.0) -> Reals:
    """A curve of the form that MPS measurements have: work over the share plus a floor, both growing with the batch."""
    return scale * ((40.0 + 60.0 * batch) / (sm_percent + 4.0) + 0.5 + 0.1 * batch)


def grid_samples(
    networks: Sequence[str] = ("a",),
    *,
    gpu_type: str = "V100-16GB",
    noise: float = 0.0,
    seed: int = 0,
    scales: Sequence[float] | None = None,
    neighbours: NeighbourSet = (),
) -> Samples:
    """Every network at every batch and share; log-normal noise of that standard deviation."""
    batch, share = (
        axis.ravel() for axis in np.meshgrid(BATCHES, SHARES, indexing="ij")
    )
    size = len(batch)
    scale = np.repeat(
        np.ones(len(networks)) if scales is None else np.asarray(scales), size
    )
    at = make_queries(
        [name for name in networks for _ in range(size)],
        [gpu_type] * (size * len(networks)),
        batch=np.tile(batch, len(networks)),
        sm_percent=np.tile(share, len(networks)),
        neighbours=[neighbours] * (size * len(networks)),
    )
    random = (
        np.random.default_rng(seed).normal(0.0, noise, len(at))
        if noise
        else np.zeros(len(at))
    )
    return make_samples(
        at, scale * known_latency_ms(at.batch, at.sm_percent) * np.exp(random)
    )


def samples_at(
    batch: Sequence[float],
    sm_percent: Sequence[float],
    latency_ms: Sequence[float],
    *,
    network: str = "a",
) -> Samples:
    """Samples of one network at these conditions."""
    return make_samples(queries_at(batch, sm_percent, network=network), latency_ms)


def joined(*parts: Samples) -> Samples:
    """All samples, one part after the other."""
    ats = [part.at for part in parts]
    return Samples(
        at=make_queries(
            sum((at.network for at in ats), ()),
            sum((at.gpu_type for at in ats), ()),
            batch=np.concatenate([at.batch for at in ats]),
            sm_percent=np.concatenate([at.sm_percent for at in ats]),
            clock_mhz=np.concatenate([at.clock_mhz for at in ats]),
            time_quota_percent=np.concatenate([at.time_quota_percent for at in ats]),
            power_limit_w=np.concatenate([at.power_limit_w for at in ats]),
            neighbours=sum((at.neighbours for at in ats), ()),
        ),
        latency_ms=np.concatenate([part.latency_ms for part in parts]),
        power_w=np.concatenate([part.power_w for part in parts]),
        memory_mib=np.concatenate([part.memory_mib for part in parts]),
        l2_util_percent=np.concatenate([part.l2_util_percent for part in parts]),
    )


def shuffled(samples: Samples, *, seed: int = 0) -> Samples:
    """The same samples in another order."""
    return samples.take(np.random.default_rng(seed).permutation(len(samples)))


def beside(
    network: str, neighbour: str, *, factor: float, gpu_type: str = "V100-16GB"
) -> Samples:
    """The grid of a network next to a neighbour that stretches every latency by the factor."""
    neighbours = (Neighbour(neighbour, 4.0, 50.0),)
    samples = grid_samples((network,), gpu_type=gpu_type, neighbours=neighbours)
    return replace(samples, latency_ms=factor * samples.latency_ms)


def queries_at(
    batch: Sequence[float] | Reals,
    sm_percent: Sequence[float] | Reals,
    *,
    network: str = "a",
    gpu_type: str = "V100-16GB",
    **conditions: Any,
) -> Queries:
    """Queries of one network on one GPU type."""
    size = len(batch)
    return make_queries(
        [network] * size,
        [gpu_type] * size,
        batch=batch,
        sm_percent=sm_percent,
        **conditions,
    )
