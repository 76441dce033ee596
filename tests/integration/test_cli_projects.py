"""`plimsoll describe project`: a project's quota beside what it uses of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.runner import Result
from tests.integration.test_cli import control_plane, file, plimsoll

pytestmark = pytest.mark.integration

__all__ = ("control_plane", "file", "plimsoll")

PROJECT = """\
apiVersion: plimsoll/v1
kind: Project
metadata: {name: team-a}
spec: {quota: {max_gpus: 8, max_replicas: 6, max_priority: standard, max_simulations: 2}}
---
apiVersion: plimsoll/v1
kind: Service
metadata: {name: photo, project: team-a}
spec:
  network: bert
  slo: {latency_ms: 100, percentile: 0.98}
  scaling: {max_replicas: 4}
"""


def test_a_project_is_described_with_its_quota_and_what_it_uses(
    plimsoll: Callable[..., Result], file: Path, tmp_path: Path
) -> None:
    assert plimsoll("apply", "-f", file, "-y").code == 0
    project = tmp_path / "project.yaml"
    project.write_text(PROJECT)
    assert plimsoll("apply", "-f", project, "-y").code == 0
    lines = plimsoll("describe", "project", "team-a").out.splitlines()
    said = [line.split() for line in lines]
    quota, used = lines.index("  quota:"), lines.index("status:")
    assert quota < used
    for limit, wanted, has in (
        ("max_gpus:", "8", "4"),
        ("max_replicas:", "6", "4"),
        ("max_simulations:", "2", "0"),
    ):
        assert [limit, wanted] in said[quota:used]
        assert [limit, has] in said[used:]
    assert ["max_priority:", "10"] in said[quota:used]
