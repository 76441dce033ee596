"""`plimsoll samples plan`: which conditions to measure next, offline."""

from pathlib import Path

import numpy as np
import pytest

from app.measurements.csv_files import read_queries
from tests.app.runner import cli

PLAN = ("samples", "plan", "resnet50", "--gpu-type", "V100-16GB")


def planned(path: Path, *options: str | Path) -> list[tuple[float, float, float]]:
    """The points that the command writes, in its order, as `plimsoll predict` reads them."""
    result = cli(*PLAN, *options, "-o", path)
    assert result.code == 0, result.err
    queries = read_queries(path).queries
    assert set(queries.network) == {"resnet50"} and set(queries.gpu_type) == {
        "V100-16GB"
    }
    columns = (
        queries.batch.tolist(),
        queries.sm_percent.tolist(),
        queries.clock_mhz.tolist(),
    )
    return list(zip(*columns, strict=True))


def test_points_lie_on_the_grid_of_the_gpu_type(tmp_path: Path) -> None:
    points = planned(tmp_path / "points.csv", "--count", "16", "--largest-batch", "20")
    assert len(set(points)) == 16
    assert {batch for batch, _, _ in points} <= {1.0, 2.0, 4.0, 8.0, 16.0}
    assert {share for _, share, _ in points} <= set(np.arange(5.0, 101.0, 5.0))
    assert {clock for _, _, clock in points} <= {1230.0, 1380.0, 1530.0}


def test_the_first_points_stay_first_and_reach_far(tmp_path: Path) -> None:
    few = planned(tmp_path / "few.csv", "--count", "3")
    usual = planned(tmp_path / "usual.csv")
    assert (len(usual), usual[:3]) == (8, few)
    batches, shares, _ = zip(*usual, strict=True)
    assert min(batches) <= 2 and max(batches) >= 32
    assert min(shares) <= 20 and max(shares) >= 80


def test_only_measurements_of_the_network_alone_and_without_limits_count(
    tmp_path: Path,
) -> None:
    others = tmp_path / "others.csv"
    others.write_text(
        "network,gpu_type,batch,sm_percent,latency_ms,time_quota_percent,power_limit_w,neighbours\n"
        "vgg16,V100-16GB,8,50,9,,,\nresnet50,T4,8,50,9,,,\nresnet50,V100-16GB,8,50,9,50,,\n"
        "resnet50,V100-16GB,8,50,9,,150,\nresnet50,V100-16GB,8,50,9,,,vgg16:1:50\n"
    )
    assert planned(tmp_path / "a.csv", "--samples", others) == planned(
        tmp_path / "b.csv"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("samples", "plan", "resnet50", "--gpu-type", "V1000"),
            2,
            "has no GPU type V1000; it has T4",
        ),
        (("samples", "plan", "resnet50"), 2, "--gpu-type"),
        ((*PLAN, "--count", "17"), 2, "--count"),
        ((*PLAN, "--samples", "none.csv"), 1, "cannot read none.csv"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    # Usage errors are framed and folded.
    assert words in " ".join(result.err.replace("│", " ").split())
