"""Whole profiles of a pretended GPU: real processes, the pretended MPS, known times."""

from pathlib import Path

import pytest

from agents.profiling.cells import grid
from tests.agents.profiling.nodes import Heard, Node, play

pytestmark = pytest.mark.integration


def test_a_grid_has_the_known_times(tmp_path: Path) -> None:
    node, heard = Node(directory=tmp_path), Heard()
    report = play(lambda: node.profile(grid(["resnet50"], [25.0, 50.0, 100.0], [1, 4]), heard))
    assert (report.measured, report.failed, report.left) == (6, (), 0)
    found = {
        (timing.member.sm_percent, timing.member.batch): timing
        for measurement in heard.measurements
        for timing in measurement.timings
    }
    for (share, batch), timing in found.items():
        # (2 + batch) · 100 / share ms, see pretended_bench.
        assert timing.latency_ms == pytest.approx((2 + batch) * 100.0 / share, rel=0.01), (share, batch)
