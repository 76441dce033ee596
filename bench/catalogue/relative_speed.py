"""How fast each GPU type is against a V100, from published throughput of the same network on both.

Two anchors: training steps (Sia traces) measured on T4, RTX 2080 Ti, V100 and A100-40GB, and audited inference
results (MLPerf Inference 2.1 and 4.1) of A100-80GB and newer types. `speed` follows ResNet-50; `speed_low` is the
lowest ratio that any of the compared networks shows, and what the planner believes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.catalogue.measured import CatalogueType, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeSpeed:
    """Speed of a whole GPU as a multiple of a whole V100."""

    gpu_type: str
    speed: float
    speed_low: float
    provenance: str
    source: str


# Largest batch that the Sia traces hold for all of T4, 2080 Ti, V100 and A100, per network. YOLOv3 and DeepSpeech2
# are left out: their A100 is slower than their V100, so the host's input pipeline was measured, not the GPU.
SIA_BATCHES = {"imagenet": "163", "cifar10": "725", "bert": "11"}
SIA_CLUSTERS = {"T4": "aws", "RTX-2080-Ti": "rtx", "A100-40GB": "dgx-ext"}
MLPERF_NETWORKS = ("resnet50", "bert-99", "retinanet", "rnnt", "3d-unet-99")
MLPERF_BOARDS = {
    "A100-40GB": "NVIDIA A100-SXM-40GB",
    "A100-80GB": "NVIDIA A100-SXM-80GB",
    "A10G": "NVIDIA A10",
    "A30": "NVIDIA A30",
    "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
    "H100": "NVIDIA H100-SXM-80GB",
    "H200": "NVIDIA H200-SXM-141GB",
}


def relative_speeds(
    shared: Path, types: Iterable[CatalogueType]
) -> tuple[RelativeSpeed, ...]:
    """One entry per GPU type, in the order of `types`."""
    by_name = {gpu_type.name: gpu_type for gpu_type in types}
    speeds = {name: _v100(name) for name in ("V100-16GB", "V100-32GB")}
    speeds |= _from_sia(shared)
    speeds |= _from_mlperf(shared, speeds["A100-40GB"])
    speeds["RTX-4090"] = _same_design(
        by_name["RTX-4090"], by_name["L40S"], speeds["L40S"], "same chip"
    )
    for name in ("RTX-2060-Super", "RTX-2060"):
        speeds[name] = _same_design(
            by_name[name],
            by_name["RTX-2080-Ti"],
            speeds["RTX-2080-Ti"],
            "same architecture",
        )
    return tuple(speeds[name] for name in by_name)


def _v100(name: str) -> RelativeSpeed:
    source = "reference: RaPP and iGniter measured a V100 16 GB"
    return RelativeSpeed(
        gpu_type=name, speed=1.0, speed_low=1.0, provenance="measured", source=source
    )


def _from_sia(shared: Path) -> dict[str, RelativeSpeed]:
    compute_s: dict[tuple[str, str], list[float]] = {}
    for row in rows(shared / "sia_training" / "step_time.csv"):
        if SIA_BATCHES.get(row["model"]) == row["local_batch"]:
            key = (row["gpu_cluster"], row["model"])
            compute_s.setdefault(key, []).append(
                float(row["step_s"]) - float(row["sync_s"])
            )
    speeds = {}
    for name, cluster in SIA_CLUSTERS.items():
        ratios = {
            network: median(compute_s["azure", network])
            / median(compute_s[cluster, network])
            for network in SIA_BATCHES
        }
        speeds[name] = RelativeSpeed(
            gpu_type=name,
            speed=ratios["imagenet"],
            speed_low=min(ratios.values()),
            provenance="scaled",
            source="Sia traces: training step without synchronisation; ResNet-50 / least of ResNet-50 ResNet-18 BERT",
        )
    return speeds


def _from_mlperf(shared: Path, anchor: RelativeSpeed) -> dict[str, RelativeSpeed]:
    """Every other board against the A100-40GB; server results join `speed_low` where both boards have one."""
    rate: dict[tuple[str, str, str], list[float]] = {}
    for row in rows(shared / "mlperf_inference" / "results.csv"):
        if row["samples_per_s"] and row["max_q"] == "0" and row["mig"] == "0":
            gpus = int(row["accelerators_per_node"]) * int(row["nodes"])
            key = (row["accelerator"], row["scenario"], row["model"])
            rate.setdefault(key, []).append(float(row["samples_per_s"]) / gpus)
    speeds = {}
    for name, board in MLPERF_BOARDS.items():
        if name == anchor.gpu_type:
            continue
        ratios = [
            median(rate[board, scenario, network])
            / median(rate[MLPERF_BOARDS["A100-40GB"], scenario, network])
            for scenario in ("Offline", "Server")
            for network in MLPERF_NETWORKS
            if (board, scenario, network) in rate
            and (MLPERF_BOARDS["A100-40GB"], scenario, network) in rate
        ]
        is_substitute = name == "A10G"
        speeds[name] = RelativeSpeed(
            gpu_type=name,
            speed=anchor.speed * ratios[0],
            speed_low=anchor.speed_low * min(ratios),
            provenance="estimated" if is_substitute else "scaled",
            source=f"A100-40GB times MLPerf {board} / A100-SXM-40GB; ResNet-50 offline / least of all networks",
        )
    return speeds


def _same_design(
    wanted: CatalogueType, known: CatalogueType, speed: RelativeSpeed, relation: str
) -> RelativeSpeed:
    """Boards of one design, scaled by the published FLOPS and memory bandwidth.

    The RTX 4090 carries the L40S's chip (AD102); the RTX 2060 (Super) the RTX 2080 Ti's SMs (Turing), fewer of them.
    """
    compute = wanted.fp32_tflops / known.fp32_tflops
    bandwidth = wanted.memory_gb_per_s / known.memory_gb_per_s
    return RelativeSpeed(
        gpu_type=wanted.name,
        speed=speed.speed * (compute * bandwidth) ** 0.5,
        speed_low=speed.speed_low * min(compute, bandwidth),
        provenance="estimated",
        source=f"{known.name} ({relation}) times FP32 TFLOPS and memory bandwidth: geometric mean / lower of the two",
    )
