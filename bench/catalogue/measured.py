"""The measured curves behind the catalogue, read from the shared data folder or from a set of our own."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_SHARED = ROOT.parent / "shared" / "data"
MEASURED = ROOT / "bench" / "measured"
CATALOGUE_DATA = ROOT / "app" / "catalogue" / "data"

Row = Mapping[str, str]


def rows(path: Path) -> Iterator[Row]:
    """Each line of a CSV file as column -> text."""
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def write_rows(
    path: Path, header: tuple[str, ...], lines: list[tuple[str | float, ...]]
) -> None:
    """Write a CSV file with Unix line ends; a re-run gives the same bytes (see `number`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            [cell if isinstance(cell, str) else number(cell) for cell in line]
            for line in lines
        )


def number(value: float) -> str:
    """The shortest text of `value` at four significant digits (whole numbers in full)."""
    return str(int(value)) if value == int(value) else f"{value:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """One line of `networks.csv`."""

    name: str
    source: str
    source_name: str
    parameters_mib: float
    activations_mib: float
    """Float32 feature maps of one item."""
    kernels: int

    @property
    def is_tensorrt(self) -> bool:
        """Whether the curve was measured with TensorRT (iGniter) rather than PyTorch (RaPP)."""
        return self.source == "igniter_v100"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueType:
    """One line of `gpu_types.csv`, as far as the scripts need it."""

    name: str
    clocks_mhz: tuple[float, ...]
    tdp_w: float
    idle_w: float
    pcie_gb_per_s: float
    fp32_tflops: float
    memory_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Mean latency of one batch on a V100, alone, at full quota and the highest clock."""

    sm_percent: float
    batch: int
    latency_ms: float


def read_networks(kind: str = "inference") -> tuple[NetworkFacts, ...]:
    """All networks of one kind that ship; 1e6 float32 numbers are 4e6 / 2**20 = 3.8147 MiB."""
    mib_per_million = 4e6 / 2**20
    return tuple(
        NetworkFacts(
            name=row["network"],
            source=row["source"],
            source_name=row["source_name"],
            parameters_mib=float(row["parameters_millions"]) * mib_per_million,
            activations_mib=float(row["activations_millions"]) * mib_per_million,
            kernels=int(row["kernels"]),
        )
        for row in rows(CATALOGUE_DATA / "networks.csv")
        if row["kind"] == kind
    )


def read_types() -> tuple[CatalogueType, ...]:
    """All GPU types that ship."""
    return tuple(
        CatalogueType(
            name=row["name"],
            clocks_mhz=tuple(float(clock) for clock in row["clocks_mhz"].split(";")),
            tdp_w=float(row["tdp_w"]),
            idle_w=float(row["idle_w"]),
            pcie_gb_per_s=float(row["pcie_gb_per_s"]),
            fp32_tflops=float(row["fp32_tflops"]),
            memory_gb_per_s=float(row["memory_gb_per_s"]),
        )
        for row in rows(CATALOGUE_DATA / "gpu_types.csv")
    )


def read_points(
    shared: Path, network: NetworkFacts, *, measured: Path = MEASURED
) -> tuple[MeasuredPoint, ...]:
    """The measured points of one network, sorted by batch, then SM percent; `measured`: where our own sets are."""
    if (own := measured / network.source / "solo.csv").is_file():
        return _own_points(own, network.source_name)
    if network.is_tensorrt:
        source = rows(shared / "igniter_v100" / "solo_latency.csv")
    else:
        source = (
            row
            for row in rows(shared / "rapp_v100" / "latency_sm_quota.csv")
            if row["time_quota_pct"] == "100"
        )
    points = [
        MeasuredPoint(
            sm_percent=float(row["sm_pct"]),
            batch=int(row["batch"]),
            latency_ms=float(row["latency_ms"]),
        )
        for row in source
        if row["model"] == network.source_name
    ]
    return tuple(sorted(points, key=lambda point: (point.batch, point.sm_percent)))


def _own_points(path: Path, name: str) -> tuple[MeasuredPoint, ...]:
    """Of a set that `bench.real_gpu` wrote, with the shares that were asked for."""
    points = [
        MeasuredPoint(
            sm_percent=float(row["sm_percent"]),
            batch=int(row["batch"]),
            latency_ms=float(row["latency_ms_mean"]),
        )
        for row in rows(path)
        if row["network"] == name
    ]
    return tuple(sorted(points, key=lambda point: (point.batch, point.sm_percent)))
