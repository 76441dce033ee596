"""Make `agents/sim/data` (what the simulated devices do) from the shared measurements.

    python -m bench.catalogue.make_truth [--shared ../shared/data] [--out agents/sim/data]

The measured points are copied as they are; nothing is smoothed. A re-run gives the same bytes.
"""

import argparse
import zlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.catalogue.make_catalogue import fit_v100, memory_mib
from bench.catalogue.measured import (
    ROOT,
    CatalogueType,
    NetworkFacts,
    Row,
    read_networks,
    read_points,
    read_types,
    rows,
    write_rows,
)
from bench.catalogue.relative_speed import RelativeSpeed, relative_speeds
from bench.catalogue.watts import read_watts, work_ms_per_item

TRUTH_DATA = ROOT / "agents" / "sim" / "data"
AZURE_SECONDS = 900
PROFILED_LIKE = {
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "mobilenet": "mobilenetv2",
    "mnasnet": "mobilenetv2",
    "efficientnet": "efficientnet",
}
"""Names of ours, by their beginning, and the network of Orion's whose kernels they have."""

Line = tuple[str | float, ...]


def make(shared: Path, out: Path) -> None:
    """Write every file below `out`."""
    networks = read_networks()
    types = read_types()
    tensorrt = [network for network in networks if network.is_tensorrt]
    pairs = list(rows(shared / "igniter_v100" / "pair_interference.csv"))
    write_rows(
        out / "curves.csv",
        ("network", "batch", "sm_percent", "latency_ms"),
        curve_lines(shared, networks),
    )
    write_rows(
        out / "watts.csv",
        ("network", "sm_percent", "batch", "duty", "watts"),
        [line for network in tensorrt for line in watts_lines(shared, network)],
    )
    write_rows(
        out / "measured_pairs.csv",
        (
            "gpu_type",
            "network",
            "neighbour",
            "batch",
            "neighbour_batch",
            "neighbour_sm_percent",
            "factor",
        ),
        [*pair_lines(pairs, tensorrt), *resnet50_lines(shared)],
    )
    write_rows(
        out / "launch_delay.csv",
        ("replicas", "delay_ms_per_kernel"),
        delay_lines(shared),
    )
    write_rows(
        out / "gpu_types.csv",
        (
            "gpu_type",
            "max_clock_mhz",
            "idle_w",
            "tdp_w",
            "partner_excess",
            "partner_share_exponent",
        ),
        [type_line(kind) for kind in types],
    )
    write_rows(
        out / "networks.csv",
        (
            "network",
            "kernels",
            "work_ms_per_item",
            "noise_cv",
            "memory_base_mib",
            "memory_per_item_mib",
            "memory_bound",
        ),
        [network_line(shared, network, pairs) for network in networks],
    )
    speeds = relative_speeds(shared, types)
    write_rows(
        out / "speeds.csv",
        ("network", "gpu_type", "speed", "provenance"),
        [speed_line(network, speed) for network in networks for speed in speeds],
    )
    write_rows(
        out / "azure_llm_per_second.csv",
        ("service", "second", "requests"),
        azure_lines(shared),
    )


def curve_lines(shared: Path, networks: tuple[NetworkFacts, ...]) -> list[Line]:
    """Every measured point, untouched (five significant digits in the source, kept as text)."""
    return [
        (network.name, point.batch, point.sm_percent, repr(point.latency_ms))
        for network in networks
        for point in read_points(shared, network)
    ]


def watts_lines(shared: Path, network: NetworkFacts) -> Iterator[Line]:
    """Measured watts above idle, with the duty at which they were drawn (GPU time at full efficiency over GPU time)."""
    shares, batches, watts = read_watts(shared, network.source_name)
    work_ms = work_ms_per_item(
        fit_v100(network, read_points(shared, network), shared).latency
    )
    gpu_ms = {
        (float(row["sm_pct"]), float(row["batch"])): float(row["gpu_latency_ms"])
        for row in rows(shared / "igniter_v100" / "power_clock.csv")
        if row["model"] == network.source_name
    }
    for i, share in enumerate(shares):
        for j, batch in enumerate(batches):
            duty = min(1.0, batch * work_ms * 100 / share / gpu_ms[share, batch])
            yield (
                network.name,
                float(share),
                float(batch),
                duty,
                repr(round(float(watts[i, j]), 3)),
            )


def pair_lines(pairs: list[Row], networks: list[NetworkFacts]) -> Iterator[Line]:
    """Both halves of every pair that iGniter measured on a V100."""
    names = {network.source_name: network.name for network in networks}
    for row in pairs:
        for mine, other in (("a", "b"), ("b", "a")):
            factor = float(row[f"latency_{mine}_ms"]) / float(
                row[f"solo_latency_{mine}_ms"]
            )
            yield (
                "V100-16GB",
                names[row[f"model_{mine}"]],
                names[row[f"model_{other}"]],
                row[f"batch_{mine}"],
                row[f"batch_{other}"],
                row[f"sm_pct_{other}"],
                factor,
            )


def resnet50_lines(shared: Path) -> Iterator[Line]:
    """Both halves of every pair of ResNet-50 with itself on an A100."""
    for row in rows(shared / "resnet50_pairs_mps" / "pairs.csv"):
        for mine, other in (("a", "b"), ("b", "a")):
            factor = float(row[f"p95_{mine}_ms"]) / float(row[f"solo_p95_{mine}_ms"])
            yield (
                "A100-80GB",
                "resnet50",
                "resnet50",
                row[f"batch_{mine}"],
                row[f"batch_{other}"],
                row[f"sm_pct_{other}"],
                factor,
            )


def type_line(kind: CatalogueType) -> Line:
    """Facts of one GPU type; what partners cost on it follows its generation.

    Volta: iGniter's pairs, in which the neighbour's share does not matter. Turing: InSS's printed rows. Ampere and
    later: ResNet-50 next to itself, whose excess grows with the neighbour's share.
    """
    if kind.name.startswith("V100"):
        excess, exponent = 0.10, 0.0
    elif kind.name.startswith(("T4", "RTX-20")):
        excess, exponent = 0.10, 0.5
    else:
        excess, exponent = 0.20, 1.0
    clock_mhz = kind.clocks_mhz[-1]
    return kind.name, clock_mhz, kind.idle_w, kind.tdp_w, excess, exponent


def delay_lines(shared: Path) -> list[Line]:
    """Measured launch delay per kernel by the number of replicas on the GPU."""
    hardware = rows(shared / "igniter_v100" / "hardware.csv")
    measured = [
        row for row in hardware if row["quantity"] == "sched_delay_ms_per_kernel"
    ]
    return [(row["condition"].split()[0], row["value"]) for row in measured]


def network_line(shared: Path, network: NetworkFacts, pairs: list[Row]) -> Line:
    """Facts of one network; noise is the median of std / mean over the measured pairs (pooled for PyTorch)."""
    spread = [
        float(row[f"std_{side}_ms"]) / float(row[f"latency_{side}_ms"])
        for row in pairs
        for side in ("a", "b")
        if not network.is_tensorrt or row[f"model_{side}"] == network.source_name
    ]
    per_item_mib = memory_mib(network, 1) - memory_mib(network, 0)
    work_ms = raw_work_ms_per_item(shared, network)
    return (
        network.name,
        network.kernels,
        work_ms,
        median(spread),
        memory_mib(network, 0),
        per_item_mib,
        memory_bound(shared, network),
    )


def memory_bound(shared: Path, network: NetworkFacts) -> float:
    """Share of classified kernel time that waits for memory (Orion's profiles; their median where it has none)."""
    shares = {
        row["model"]: float(row["memory_bound_ms"])
        / (float(row["memory_bound_ms"]) + float(row["compute_bound_ms"]))
        for row in rows(shared / "orion_kernels" / "kernel_classes.csv")
        if row["mode"] == "inference"
    }
    profiled = next(
        (
            shares[theirs]
            for ours, theirs in PROFILED_LIKE.items()
            if network.name.startswith(ours)
        ),
        None,
    )
    return median(shares.values()) if profiled is None else profiled


def raw_work_ms_per_item(shared: Path, network: NetworkFacts) -> float:
    """As `work_ms_per_item`, over the raw points."""
    return min(
        point.latency_ms * point.sm_percent / 100 / point.batch
        for point in read_points(shared, network)
    )


def speed_line(network: NetworkFacts, speed: RelativeSpeed) -> Line:
    """The true speed of one network on one type: somewhere between the lowest published ratio and ResNet-50's.

    No single ratio holds for every network; the place in between comes from a checksum of the two names.
    """
    place = zlib.crc32(f"{network.name}/{speed.gpu_type}".encode()) / 0xFFFFFFFF
    true_speed = speed.speed_low + place * (speed.speed - speed.speed_low)
    return network.name, speed.gpu_type, true_speed, speed.provenance


def azure_lines(shared: Path) -> list[Line]:
    """The first seconds of both Azure services."""
    return [
        (service, row["second"], row["requests"])
        for service in ("code", "conv")
        for row in rows(shared / "azure_llm_2023" / f"per_second_{service}.csv")
        if int(row["second"]) < AZURE_SECONDS
    ]


def main() -> None:
    """Read the two folders from the command line and make the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=TRUTH_DATA)
    arguments = parser.parse_args()
    make(arguments.shared, arguments.out)


if __name__ == "__main__":
    main()
