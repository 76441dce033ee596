"""The shipped GPU types and operating points: complete, monotone, attributed, and reproducible from their sources."""

import filecmp
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from agents.base.device import DeviceError
from agents.gpu.nvml.known_memory import MEMORY_MIB, memory_mib_of
from app.catalogue.catalogue import (
    CatalogueError,
    list_networks,
    load_gpu_types,
    load_profiles,
    load_provenance,
)
from solvers.types.problem import OperatingPoint, OperatingPoints
from tests.shared import SHARED, needs

ROOT = Path(__file__).resolve().parents[3]
CATALOGUE = ROOT / "app" / "catalogue"
SOURCES = (
    "azure_llm_2023",
    "gavel_training",
    "igniter_v100",
    "miso_mig",
    "mlperf_inference",
    "pctodl_fits",
    "rapp_v100",
    "sia_training",
    "tally_infer_train",
    "zeus_power",
)
"""What the shipped files are made of."""


def test_agents_know_the_memory_of_the_same_types() -> None:
    assert {each.name: each.memory_mib for each in load_gpu_types()} == (MEMORY_MIB)


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [
        ("L4", 23034.0),
        ("NVIDIA L4", 23034.0),
        ("Tesla T4", 15360.0),
        ("NVIDIA GeForce RTX 4090", 24564.0),
        ("NVIDIA A30", 24576.0),
        ("K80-12GB", 12288.0),
        ("NVIDIA H100 80GB HBM3", 81920.0),
    ],
)
def test_the_memory_of_a_type_is_known_by_the_list_or_by_the_name(
    name: str, memory_mib: float
) -> None:
    assert memory_mib_of(name) == memory_mib
    assert memory_mib_of(name, 1000.0) == 1000.0


def test_a_type_of_unknown_memory_is_refused_with_the_remedy() -> None:
    with pytest.raises(DeviceError, match=r"GB10 is no GPU type .* --gpu-memory-mib"):
        memory_mib_of("GB10")


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(CatalogueError, match=r"no GPU type P100; it has T4, L4"):
        load_gpu_types(["T4", "P100"])
    with pytest.raises(CatalogueError, match=r"no network yolo"):
        load_profiles(["yolo"])
    with pytest.raises(CatalogueError, match=r"no network yolo"):
        load_provenance("yolo")


def test_every_network_has_a_complete_grid_on_every_gpu_type() -> None:
    types = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
    entries = load_profiles()
    assert len(entries) == len(types) * len(list_networks())
    for entry in entries:
        batches = {row.batch for row in entry.rows}
        if entry.network in list_networks("inference"):
            assert batches == (
                {1, 2, 4, 8, 16, 32} if entry.network.endswith("-trt") else {1, 2, 4, 8}
            )
        wanted = {
            (share, batch, clock)
            for share in range(10, 101, 10)
            for batch in batches
            for clock in types[entry.gpu_type].clocks_mhz
        }
        assert {
            (row.sm_percent, row.batch, row.clock_mhz) for row in entry.rows
        } == wanted
        assert len(entry.rows) == len(wanted)


def _line(entry: OperatingPoints, axis: str) -> list[list[OperatingPoint]]:
    """Rows that differ in `axis` only, ascending along it."""
    groups: dict[tuple[float, ...], list[OperatingPoint]] = defaultdict(list)
    for row in entry.rows:
        groups[
            tuple(
                getattr(row, name)
                for name in {"sm_percent", "batch", "clock_mhz"} - {axis}
            )
        ].append(row)
    return [
        sorted(rows, key=lambda row: float(getattr(row, axis)))
        for rows in groups.values()
    ]


@pytest.mark.parametrize(
    ("axis", "falls"), [("sm_percent", True), ("clock_mhz", True), ("batch", False)]
)
def test_latency_never_rises_with_share_or_clock_nor_falls_with_batch(
    axis: str, falls: bool
) -> None:
    for entry in load_profiles():
        for rows in _line(entry, axis):
            times = [row.solo_ms for row in rows]
            # Four significant digits: equal times may differ in the fourth after the terms are added.
            ordered = times[::-1] if falls else times
            assert all(low <= high * 1.001 for low, high in pairwise(ordered)), entry


KERNELS = ("all_reduce", "decode_attention", "gemm", "prompt_attention")


@needs("data/llm_operators")
@pytest.mark.thorough
def test_the_kernels_of_simulated_models_are_those_that_were_measured(
    tmp_path: Path,
) -> None:
    # The tables are Parquet, which an installation reads with an extra alone.
    pytest.importorskip("pyarrow")
    arguments = ("--shared", str(SHARED / "data"), "--out", str(tmp_path))
    script = "bench.catalogue.make_llm_kernels"
    subprocess.run([sys.executable, "-m", script, *arguments], cwd=ROOT, check=True)
    for name in KERNELS:
        file = f"llm_{name}.csv"
        shipped = ROOT / "agents" / "sim" / "data" / file
        assert filecmp.cmp(tmp_path / file, shipped, shallow=False), file


MADE_BY = {
    "make_truth": ("truth",),
    "make_plant": ("plant",),
    "make_catalogue": ("believed",),
    "make_training": ("believed", "truth"),
}
"""Which folders of data each script writes to."""


@needs(*(f"data/{name}" for name in SOURCES))
@pytest.mark.parametrize(
    "scripts",
    [
        ("make_truth", "make_plant"),
        pytest.param(tuple(MADE_BY), marks=pytest.mark.thorough),
    ],
    ids=["quick scripts", "all"],
)
def test_the_scripts_make_the_shipped_files_byte_for_byte(
    tmp_path: Path, scripts: tuple[str, ...]
) -> None:
    made = {kind: tmp_path / kind for kind in ("truth", "believed", "plant")}
    shipped = {
        "truth": ROOT / "agents" / "sim" / "data",
        "believed": CATALOGUE / "data",
        "plant": ROOT / "bench" / "papers" / "data",
    }
    for script in scripts:
        options = ("--out", "--truth")
        arguments = ["--shared", SHARED / "data"]
        for option, kind in zip(options, MADE_BY[script], strict=False):
            arguments += [option, made[kind]]
        subprocess.run(
            [sys.executable, "-m", f"bench.catalogue.{script}", *map(str, arguments)],
            cwd=ROOT,
            check=True,
        )
    files = {
        kind: {file.relative_to(folder) for file in folder.rglob("*.csv")}
        for kind, folder in made.items()
    }
    assert files["truth"] and files["plant"]
    for kind, names in files.items():
        for name in names:
            made_file, shipped_file = made[kind] / name, shipped[kind] / name
            assert filecmp.cmp(made_file, shipped_file, shallow=False), name
    if len(scripts) < len(MADE_BY):
        return
    # The papers' plants have a test of their own (tests/bench/papers/test_plants.py).
    # Seven are written by hand or copied, layers.csv needs torch (bench/count_layers.py), and kernel_classes.csv has a
    # test of its own.
    by_hand = ("gpu_types", "networks", "layers", "training_layers", "kernel_classes")
    by_hand += ("llm_gpu_types", "llm_networks", "llm_efficiency", "llm_runs")
    by_others = {
        "truth": {Path(f"llm_{name}.csv") for name in KERNELS},
        "plant": {
            Path(f"{name}.csv")
            for name in ("hetsev_tf_serving", "inss_2060", "morak_2080ti")
        },
        "believed": {Path(f"{name}.csv") for name in by_hand},
    }
    for kind, names in files.items():
        all_names = {
            file.relative_to(shipped[kind]) for file in shipped[kind].rglob("*.csv")
        }
        assert all_names - names == by_others[kind]
