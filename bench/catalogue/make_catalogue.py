"""Make the generated part of `app/catalogue/data` from the shared measurements.

    python -m bench.catalogue.make_catalogue [--shared ../shared/data] [--out app/catalogue/data]

Kept by hand: gpu_types.csv and networks.csv. Made here: relative_speed.csv, sensitivity.csv, launch_delay.csv and
profiles/*.csv. What they say of neighbours is profiled in the simulator, so its tables are made first. A re-run gives
the same bytes. What each column rests on stands in app/catalogue/SOURCES.md.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.sim.truth.truth import load_truth
from bench.catalogue.curves import Surface, upper_envelope
from bench.catalogue.measured import (
    CATALOGUE_DATA,
    DEFAULT_SHARED,
    CatalogueType,
    MeasuredPoint,
    NetworkFacts,
    read_networks,
    read_points,
    read_types,
    write_rows,
)
from bench.catalogue.partner_belief import PartnerBelief, profile
from bench.catalogue.relative_speed import RelativeSpeed, relative_speeds
from bench.catalogue.watts import (
    CLOCK_EXPONENT,
    V100_IDLE_W,
    V100_LIMIT_W,
    busy_share_w,
    interpolated_w,
    read_watts,
    work_ms_per_item,
)

SM_PERCENTS = tuple(float(share) for share in range(10, 101, 10))
PYTORCH_BATCHES = (1, 2, 4, 8)
TENSORRT_BATCHES = (1, 2, 4, 8, 16, 32)

# Request of 3 x 224 x 224 float32 numbers and reply of 1000 (iGniter's input_bytes and output_bytes).
BYTES_PER_ITEM = 602112 + 4000
# Delay of one kernel launch on a V100 with one process (iGniter hardware.csv).
LAUNCH_MS_PER_KERNEL = 0.00136854
# Least squares through GoogLeNet 1720, ResNet-50 1820 and VGG-16 2920 MiB (gpu-lets) over 25.3, 97.5, 527.8 MiB of
# parameters: 1623 + 2.447 * parameters.
MEMORY_BASE_MIB = 1623.0
MEMORY_PER_PARAMETER_MIB = 2.447

PROFILE_HEADER = (
    "gpu_type",
    "sm_percent",
    "batch",
    "clock_mhz",
    "transfer_ms",
    "launch_ms",
    "run_ms",
    "memory_mib",
    "power_w",
    "pressure",
    "provenance",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class V100Fit:
    """What is known of one network on a V100, ready to be scaled to any GPU type."""

    network: NetworkFacts
    latency: Surface
    """Upper envelope of the measured latency."""
    run: Surface
    """The same without transfer and launch."""
    measured: frozenset[tuple[float, int]]
    """(sm_percent, batch) pairs that were measured themselves."""
    work_ms: float
    shared: Path


def make(shared: Path, out: Path) -> None:
    """Write every generated file below `out`."""
    types = read_types()
    networks = read_networks()
    speeds = relative_speeds(shared, types)
    truth = load_truth()
    beliefs = [profile(truth, networks, gpu_type, BYTES_PER_ITEM) for gpu_type in types]
    write_rows(
        out / "launch_delay.csv",
        ("gpu_type", "launch_per_neighbour", "launch_base"),
        [
            # Rounded, since a bound of 0 is reached to some 1e-12 only.
            (
                gpu_type.name,
                round(belief.launch.per_neighbour, 4),
                round(belief.launch.base, 4),
            )
            for gpu_type, belief in zip(types, beliefs, strict=True)
        ],
    )
    write_rows(
        out / "relative_speed.csv",
        ("gpu_type", "speed", "speed_low", "provenance", "source"),
        [
            (
                speed.gpu_type,
                speed.speed,
                speed.speed_low,
                speed.provenance,
                speed.source,
            )
            for speed in speeds
        ],
    )
    write_rows(
        out / "sensitivity.csv",
        ("network", "gpu_type", "sensitivity", "provenance"),
        [
            (
                network.name,
                gpu_type.name,
                belief.sensitivity(network.name),
                "estimated",
            )
            for network in networks
            for gpu_type, belief in zip(types, beliefs, strict=True)
        ],
    )
    for network in networks:
        fit = fit_v100(network, read_points(shared, network), shared)
        lines = [
            line
            for gpu_type, speed, belief in zip(types, speeds, beliefs, strict=True)
            for line in profile_lines(fit, gpu_type, speed, belief)
        ]
        write_rows(out / "profiles" / f"{network.name}.csv", PROFILE_HEADER, lines)


def fit_v100(
    network: NetworkFacts, points: tuple[MeasuredPoint, ...], shared: Path
) -> V100Fit:
    """Envelope the measured points and split them into transfer, launch and run (at least 1 % of the whole)."""
    batches = TENSORRT_BATCHES if network.is_tensorrt else PYTORCH_BATCHES
    latency = upper_envelope(points, batches)
    run_ms = latency.time_ms.copy()
    for index, batch in enumerate(batches):
        run_ms[index] -= (
            _transfer_ms(batch, 10.0) + network.kernels * LAUNCH_MS_PER_KERNEL
        )
    run_ms = np.maximum.accumulate(run_ms.clip(min=0.01 * latency.time_ms), axis=0)
    return V100Fit(
        network=network,
        latency=latency,
        run=Surface(batches=batches, sm_percents=latency.sm_percents, time_ms=run_ms),
        measured=frozenset((point.sm_percent, point.batch) for point in points),
        work_ms=work_ms_per_item(latency),
        shared=shared,
    )


def profile_lines(
    fit: V100Fit, gpu_type: CatalogueType, speed: RelativeSpeed, belief: PartnerBelief
) -> Iterator[tuple[str | float, ...]]:
    """The operating points of one network on one GPU type.

    A GPU that is r times as fast as a V100 behaves at share p as a V100 at share r * p; a lower clock makes it slower
    in proportion. So work-bound times scale and host-bound times, which no GPU shortens, stay.
    """
    dynamic_scale = (gpu_type.tdp_w - gpu_type.idle_w) / (V100_LIMIT_W - V100_IDLE_W)
    network = fit.network
    for clock_mhz in gpu_type.clocks_mhz:
        slowing = clock_mhz / gpu_type.clocks_mhz[-1]
        for sm_percent in SM_PERCENTS:
            share = sm_percent * speed.speed_low * slowing
            for batch in fit.run.batches:
                yield (
                    gpu_type.name,
                    sm_percent,
                    batch,
                    clock_mhz,
                    _transfer_ms(batch, gpu_type.pcie_gb_per_s),
                    network.kernels * LAUNCH_MS_PER_KERNEL,
                    fit.run.at(batch, share),
                    round(memory_mib(network, batch)),
                    _v100_watts(fit, sm_percent, batch, share)
                    * dynamic_scale
                    * slowing**CLOCK_EXPONENT,
                    belief.pressure(network.name, sm_percent=sm_percent, batch=batch),
                    _provenance(speed, slowing, (sm_percent, batch) in fit.measured),
                )


def memory_mib(network: NetworkFacts, batch: int) -> float:
    """Memory of one replica: runtime, parameters, and every feature map of the batch."""
    resident_mib = MEMORY_BASE_MIB + MEMORY_PER_PARAMETER_MIB * network.parameters_mib
    return resident_mib + batch * network.activations_mib


def _transfer_ms(batch: int, pcie_gb_per_s: float) -> float:
    return batch * BYTES_PER_ITEM / (pcie_gb_per_s * 1e6)


def _v100_watts(fit: V100Fit, sm_percent: float, batch: int, share: float) -> float:
    if fit.network.is_tensorrt:
        return interpolated_w(
            read_watts(fit.shared, fit.network.source_name), sm_percent, batch
        )
    duty = batch * fit.work_ms * 100 / share / fit.latency.at(batch, share)
    return busy_share_w(sm_percent, duty)


def _provenance(speed: RelativeSpeed, slowing: float, is_measured: bool) -> str:
    if speed.provenance != "measured":
        return speed.provenance
    if slowing < 1.0:
        return "scaled"
    return "measured" if is_measured else "estimated"


def main() -> None:
    """Read the two folders from the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=DEFAULT_SHARED)
    parser.add_argument("--out", type=Path, default=CATALOGUE_DATA)
    arguments = parser.parse_args()
    make(arguments.shared, arguments.out)


if __name__ == "__main__":
    main()
