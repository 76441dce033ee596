"""A cluster with Plimsoll's kinds of objects, and an API in step with it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.kubernetes import sync
from app.kubernetes.cluster import Cluster
from tests.agents.kubernetes.cluster import make_cluster
from tests.app.kubernetes.kubectl import Kubectl, clean, control_plane, prepare
from tests.integration.api_harness import Api, Prepared


@contextmanager
def running_cluster(directory: Path) -> Iterator[Kubectl]:
    """Of a cluster with the node n1, of which nothing is left afterwards."""
    with (
        make_cluster(directory / "cluster") as cluster,
        closing(Kubectl(cluster)) as made,
    ):
        prepare(made)
        try:
            yield made
        finally:
            clean(made)


@pytest.fixture(scope="module", autouse=True)
def quick_rounds() -> Iterator[None]:
    """They come as soon as there is something to do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "GAP_S", 0.05)
        patch.setattr(sync, "PERIOD_S", 1.0)
        yield


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    with running_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def cluster(kubectl: Kubectl, tmp_path: Path) -> Cluster:
    """As the control plane's service account may use it."""
    return control_plane(kubectl, tmp_path)


@pytest.fixture
def api(small_fleet: Prepared, cluster: Cluster) -> Iterator[Api]:
    with small_fleet.running_api(cluster=cluster) as made:
        yield made
