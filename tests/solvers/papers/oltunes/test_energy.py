import csv
from pathlib import Path

import numpy as np
import pytest

from solvers.papers.oltunes.tuning_score import estimated_power_consumption

PRINTED = (
    Path(__file__).parents[5] / "shared" / "data" / "papers" / "oltunes_epc_example.csv"
)


@pytest.mark.parametrize(
    ("tdp_w", "sm_percent", "memory_share", "latency_s", "printed"),
    [
        (300.0, 70.0, 8 / 16, 12.0, 1068.0),  # 60 + 240 · 0.7 · 0.5 · 12
        (200.0, 70.0, 6 / 12, 19.0, 991.0),  # 60 + 140 · 0.7 · 0.5 · 19
        (300.0, 20.0, 8 / 16, 2.0, 108.0),  # 60 + 240 · 0.2 · 0.5 · 2
        (
            200.0,
            20.0,
            6 / 12,
            3.8,
            113.2,
        ),  # 60 + 140 · 0.2 · 0.5 · 3.8; the text says 3.5 s, which would be 109
    ],
)
def test_the_papers_worked_examples(
    tdp_w: float,
    sm_percent: float,
    memory_share: float,
    latency_s: float,
    printed: float,
) -> None:
    assert estimated_power_consumption(
        base_w=60.0,
        tdp_w=tdp_w,
        sm_percent=sm_percent,
        memory_share=memory_share,
        latency_s=latency_s,
    ) == pytest.approx(printed)


@pytest.mark.skipif(not PRINTED.exists(), reason="the papers' tables are not here")
def test_the_papers_table_is_reproduced_as_columns() -> None:
    with PRINTED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    epc = estimated_power_consumption(
        base_w=column("base_w"),
        tdp_w=column("tdp_w"),
        sm_percent=100.0 * column("sm_ratio"),
        memory_share=column("mem_used_gb") / column("mem_total_gb"),
        latency_s=column("latency_s"),
    )
    assert epc == pytest.approx(column("epc_printed"))


def test_a_tdp_below_the_base_power_is_refused() -> None:
    with pytest.raises(ValueError, match="above the TDP"):
        estimated_power_consumption(
            base_w=60.0, tdp_w=50.0, sm_percent=50.0, memory_share=0.5, latency_s=1.0
        )
