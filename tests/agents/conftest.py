"""Tests of replicas and tasks run once with each launcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.kubernetes.cluster import Cluster, make_cluster


@pytest.fixture(params=["processes", "pods"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster | None]:
    """None: what the test starts are processes, else Pods of this cluster."""
    if request.param == "processes":
        yield None
        return
    with make_cluster(tmp_path / "cluster") as made:
        yield made
