"""What the planner believes of training networks: smooth laws through a few noisy readings of the truth.

As somebody would know them who had profiled each network on a V100 at four SM percents, and with others as inference
is (partner_belief.py): a step is a / share + b, a stall a power of the SM percent. Neither is how the truth is made.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.sim.truth.truth import Truth
from bench.catalogue.make_catalogue import (
    LAUNCH_MS_PER_KERNEL,
    SM_PERCENTS,
)
from bench.catalogue.measured import CatalogueType, NetworkFacts
from bench.catalogue.partner_belief import BATCH, PartnerBelief, running
from bench.catalogue.relative_speed import RelativeSpeed
from bench.catalogue.training_shape import normal_draws
from bench.catalogue.watts import (
    CLOCK_EXPONENT,
    V100_IDLE_W,
    V100_LIMIT_W,
    busy_share_w,
)
from solvers.predict.data.samples import Neighbour

PROFILED_SHARES = (10.0, 25.0, 50.0, 100.0)
PROFILED_NEIGHBOURS = (20.0, 50.0, 80.0)
"""SM percents of training next to services that had the rest."""
_MIN_RUN = 0.01
"""Of a step, as for inference."""
STALL_NOISE = 0.1
"""Relative standard deviation of a stall read from 99th percentiles: about 5,000 batches with it and 5,000 alone."""

Points = Mapping[float, float]
"""Truth by SM percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """Step of one batch on a V100: a * 100 / share + b."""

    a_ms: float
    b_ms: float

    def at(self, share: float) -> float:
        """At `share` percent of a V100, which may exceed 100."""
        return self.a_ms * 100.0 / share + self.b_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """at_full * (SM percent / 100) ** exponent."""

    at_full: float
    exponent: float

    def at(self, sm_percent: float) -> float:
        """At that share of the SMs."""
        return float(self.at_full * (sm_percent / 100.0) ** self.exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """All that profiling told of one training network."""

    network: NetworkFacts
    bytes_per_item: float
    memory_mib: Mapping[int, float]
    """By batch."""
    steps: Mapping[int, StepFit]
    """By batch, ascending."""
    work_ms_per_item: float
    busy_w: float
    """Watts above idle of a whole busy V100."""
    stall_ms: PowerLaw
    """What the 99th percentile of inference's batches gains beyond the growth of their mean."""
    levels: Mapping[tuple[str, int], float]
    """Measured step on a whole GPU over its V100's, by GPU type and batch, where that was published."""


def fit_step(points: Points, noise_cv: float, name: str) -> StepFit:
    """Least squares of the relative error over `PROFILED_SHARES`, each read once with its noise; both parts ≥ 0."""
    noise = 1.0 + noise_cv * np.array(normal_draws(name, len(PROFILED_SHARES)))
    readings = np.array([points[share] for share in PROFILED_SHARES]) * noise
    columns = np.stack(
        [100.0 / np.array(PROFILED_SHARES), np.ones(len(PROFILED_SHARES))], axis=1
    )
    a_ms, b_ms = np.linalg.lstsq(
        columns / readings[:, None], np.ones(len(readings)), rcond=None
    )[0]
    if b_ms < 0.0:  # work-bound throughout: the best a alone
        weights = columns[:, 0] / readings
        a_ms, b_ms = weights.sum() / (weights**2).sum(), 0.0
    return StepFit(a_ms=float(a_ms), b_ms=float(b_ms))


def read_stall_ms(
    truth: Truth, network: str, sm_percent: float, gpu_type: CatalogueType
) -> float:
    """What the 99th percentile of a service gains next to it, which has the rest of the SMs."""
    service = Neighbour(truth.networks[0], BATCH, 100.0 - sm_percent)
    task = Neighbour(network, truth.max_batch(network), sm_percent)
    # Two of a hundred batches stall, by an exponential: one of a hundred passes its mean times ln 2.
    return truth.stall_ms(running(gpu_type, service, (task,))) * math.log(2.0)


def fit_stall(points: Points, name: str) -> PowerLaw:
    """From stalls at `PROFILED_NEIGHBOURS`, each read once with `STALL_NOISE`."""
    noise = normal_draws(f"{name}/stall", len(PROFILED_NEIGHBOURS))
    return _fit_power(
        [
            points[share] * (1.0 + STALL_NOISE * drawn)
            for share, drawn in zip(PROFILED_NEIGHBOURS, noise, strict=True)
        ]
    )


def _fit_power(costs: Sequence[float]) -> PowerLaw:
    """A straight line through the logarithms at `PROFILED_NEIGHBOURS`."""
    shares = np.array(PROFILED_NEIGHBOURS) / 100.0
    exponent, log_full = np.polyfit(np.log(shares), np.log(costs), 1)
    return PowerLaw(at_full=float(np.exp(log_full)), exponent=float(exponent))


def profile_lines(
    believed: Believed,
    gpu_type: CatalogueType,
    speed: RelativeSpeed,
    *,
    anchor: RelativeSpeed,
    partners: PartnerBelief,
) -> Iterator[tuple[str | float, ...]]:
    """The operating points on one GPU type, by the same laws of speed and clock as inference's.

    `anchor`: the type at whose measured steps this one's are levelled; itself where it was measured.
    """
    pressures = {
        each: partners.pressure(believed.network.name, sm_percent=each, batch=BATCH)
        for each in SM_PERCENTS
    }
    for clock_mhz in gpu_type.clocks_mhz:
        slowing = clock_mhz / gpu_type.clocks_mhz[-1]
        for sm_percent in SM_PERCENTS:
            share = sm_percent * speed.speed_low * slowing
            min_ms = 0.0
            for batch, fit in believed.steps.items():
                step_ms = max(min_ms, fit.at(share) * _level(believed, batch, anchor))
                min_ms = step_ms
                transfer_ms = (
                    batch * believed.bytes_per_item / (gpu_type.pcie_gb_per_s * 1e6)
                )
                launch_ms = believed.network.kernels * LAUNCH_MS_PER_KERNEL
                yield (
                    gpu_type.name,
                    sm_percent,
                    batch,
                    clock_mhz,
                    transfer_ms,
                    launch_ms,
                    max(_MIN_RUN * step_ms, step_ms - transfer_ms - launch_ms),
                    round(believed.memory_mib[batch]),
                    _watts(
                        believed,
                        gpu_type,
                        sm_percent,
                        slowing,
                        batch * 100.0 / share / fit.at(share),
                    ),
                    pressures[sm_percent],
                    believed.stall_ms.at(sm_percent),
                    "estimated",
                )


def _level(believed: Believed, batch: int, anchor: RelativeSpeed) -> float:
    """Measured over believed step of the whole anchor, both against the V100's; 1 where nothing was measured."""
    fit = believed.steps[batch]
    moved = fit.at(100.0 * anchor.speed_low) / fit.at(100.0)
    return believed.levels.get((anchor.gpu_type, batch), moved) / moved


def _watts(
    believed: Believed,
    gpu_type: CatalogueType,
    sm_percent: float,
    slowing: float,
    items_per_work_ms: float,
) -> float:
    """`items_per_work_ms` times the work per item is the duty: SM time wanted over SM time had."""
    duty = believed.work_ms_per_item * items_per_work_ms
    v100_w = believed.busy_w * busy_share_w(sm_percent, duty) / busy_share_w(100.0, 1.0)
    board_scale = (gpu_type.tdp_w - gpu_type.idle_w) / (V100_LIMIT_W - V100_IDLE_W)
    return v100_w * board_scale * float(slowing**CLOCK_EXPONENT)
