"""Tests of replicas and tasks run with processes, in `make test-all` with Pods, too.

Where the launcher is what is tested both run in `make test`: `@BOTH_LAUNCHERS`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.kubernetes.cluster import Cluster, make_cluster


@pytest.fixture(params=["processes", pytest.param("pods", marks=pytest.mark.thorough)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster | None]:
    """None: what the test starts are processes, else Pods of this cluster."""
    if request.param == "processes":
        yield None
        return
    with make_cluster(tmp_path / "cluster") as made:
        yield made
