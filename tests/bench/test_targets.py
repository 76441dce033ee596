"""What Plimsoll promises of itself is compared with the results of the benches."""

import json
from pathlib import Path

import pytest

from bench.report import Figures
from bench.targets import compare

pytestmark = pytest.mark.thorough


def write(folder: Path, name: str, rows: list[Figures]) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"rows": rows}))


def holds(folder: Path) -> dict[object, object]:
    return {row["figure"]: row["holds"] for row in compare(folder)}


def test_nothing_holds_that_was_not_measured(tmp_path: Path) -> None:
    assert set(holds(tmp_path).values()) == {"not measured"}


def test_the_worst_service_of_our_policy_counts_and_of_no_other(tmp_path: Path) -> None:
    rows: list[Figures] = [
        {"policy": policy, "service": "s", "in_slo_percent": percent}
        for policy, percent in (
            ("joint", 99.5),
            ("joint", 98.1),
            ("hetsev", 90.0),
            ("k8s_hpa", 80.0),
        )
    ]
    write(tmp_path, "demo_services", rows)
    assert holds(tmp_path)["SLO attainment of the worst service, `joint`"] == "yes"
    write(
        tmp_path,
        "demo_services",
        [*rows, {"policy": "joint", "service": "t", "in_slo_percent": 97.9}],
    )
    assert holds(tmp_path)["SLO attainment of the worst service, `joint`"] == "NO"


def test_ticks_that_look_for_something_cheaper_have_a_limit_of_their_own(
    tmp_path: Path,
) -> None:
    def row(gpus: int, kind: str, p50: float, most: float) -> Figures:
        return {
            "gpus": gpus,
            "kind": kind,
            "total_ms_p50": p50,
            "total_ms_p99": most,
            "total_ms_max": most,
        }

    write(
        tmp_path,
        "tick",
        [
            row(8, "keeps or changes", 25.0, 120.0),
            row(8, "looks", 850.0, 880.0),
            row(100, "keeps or changes", 90.0, 200.0),
            row(100, "looks", 900.0, 1100.0),
        ],
    )
    fleet = "8 GPUs × 4 services"
    found = holds(tmp_path)
    assert found[f"tick that keeps or changes what runs, {fleet}, p50"] == "yes"
    assert found[f"tick that keeps or changes what runs, {fleet}, p99"] == "NO"
    assert found[f"tick that looks for something cheaper, {fleet}, worst"] == "yes"
    assert found["tick of either kind, 100 GPUs × 30 services, worst"] == "NO"
