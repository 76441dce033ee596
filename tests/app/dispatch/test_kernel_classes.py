"""Kernel classes that ship: by time and by count, as they were profiled, made by their script."""

from pathlib import Path

import pytest

from app.catalogue.catalogue import list_networks
from app.dispatch.kernel_classes import load_count_ratios, load_kernel_ratios
from bench.catalogue.make_kernel_classes import OUT, make
from tests.shared import SHARED, needs


def test_ratios_are_those_of_the_profiles() -> None:
    # ResNet-50, batch 4: 54 compute-bound kernels of 4.97 ms, 80 memory-bound ones of 1.306 ms.
    assert load_kernel_ratios()["resnet50"] == pytest.approx(
        4.97011 / 1.30636, rel=1e-3
    )
    assert load_count_ratios()["resnet50"] == pytest.approx(54 / 80)


def test_shipped_networks_go_by_the_catalogues_names() -> None:
    assert {"resnet50", "resnet101", "mobilenet_v2", "efficientnet_b0"} <= set(
        load_kernel_ratios()
    ) & set(list_networks())


@needs("data/orion_kernels/kernel_classes.csv")
def test_the_script_makes_the_same_file_again(tmp_path: Path) -> None:
    make(SHARED / "data", tmp_path / "made.csv")
    assert (tmp_path / "made.csv").read_bytes() == OUT.read_bytes()
