"""The cluster's objects follow the plan, and nodes follow the cluster; on the fake API and on a real server."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import yaml

from agents.kubernetes.api import ApiRefused, KubernetesApi
from agents.kubernetes.pod import MANAGED_BY, only_on
from app.kubernetes.cluster import Cluster
from tests.agents.kubernetes.cluster import Cluster as RunningCluster
from tests.agents.kubernetes.cluster import make_cluster
from tests.agents.kubernetes.fake_api import NAMESPACE
from tests.integration.api_harness import Api, Prepared, reading, service
from tests.ports import a_free_port

pytestmark = pytest.mark.integration
RESOURCES = Path(__file__).parents[3] / "deploy/kubernetes/base/resources.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLACE = f"/api/v1/namespaces/{NAMESPACE}"
POOLS = f"/apis/gpu.plimsoll/v1/namespaces/{NAMESPACE}/plimsollpools"
SOON_S = 30.0


class Kubectl:
    """Asks the cluster's API as an admin does."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster

    def ask(self, method: str, path: str, document: object = None, **how: Any) -> Any:
        async def run() -> bytes:
            api = KubernetesApi(self.cluster.address)
            try:
                return await api.ask(method, path, document, **how)
            finally:
                await api.close()

        return msgspec.json.decode(asyncio.run(run()))

    def patch(self, path: str, document: object) -> Any:
        kind = "application/merge-patch+json"
        return self.ask("PATCH", path, document, content_type=kind)

    def items(self, path: str) -> list[Any]:
        return list(self.ask("GET", path)["items"])

    @property
    def budgets(self) -> str:
        found = self.ask("GET", "/apis/policy")["versions"]
        versions = {each["groupVersion"] for each in found}
        version = "v1" if "policy/v1" in versions else "v1beta1"
        return f"/apis/policy/{version}/namespaces/{NAMESPACE}/poddisruptionbudgets"

    def add_pod(self, service_name: str) -> str:
        """A Pod as an agent creates it, whose server listens."""
        name, port = f"{service_name}-{uuid4().hex[:8]}", a_free_port()
        labels = {**MANAGED_BY, "plimsoll/service": service_name}
        container = {
            "name": "worker",
            "image": "none",
            "command": ["python3", "-m", "http.server", str(port)],
            "workingDir": "/tmp",
            "env": [{"name": "A", "value": "b"}],
            "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2},
        }
        self.ask(
            "POST",
            f"{PLACE}/pods",
            {
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "affinity": {"nodeAffinity": only_on(self.cluster.settings.node)},
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                },
            },
        )
        return name


def until(is_so: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < end_s, what
        time.sleep(0.2)


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    """A cluster with Plimsoll's kinds and the node n1, of which nothing is left afterwards."""
    with make_cluster(tmp_path / "cluster") as cluster:
        made = Kubectl(cluster)
        for each in yaml.safe_load_all(RESOURCES.read_text()):
            with contextlib.suppress(ApiRefused):
                made.ask("POST", DEFINITIONS, each)
        until(lambda: is_served(made), "the definitions are not served")
        labels = {"plimsoll/gpus": "true"}
        made.ask(
            "POST",
            "/api/v1/nodes",
            {"metadata": {"name": "n1", "labels": labels}, "spec": {}},
        )
        try:
            yield made
        finally:
            if cluster.fake is not None:
                cluster.fake.refused = ""
            made.ask("DELETE", "/api/v1/nodes/n1")
            for each in made.items(f"{PLACE}/pods"):
                path = f"{PLACE}/pods/{each['metadata']['name']}"
                made.ask("DELETE", path, {"gracePeriodSeconds": 0})
            for path in (POOLS, made.budgets):
                for each in made.items(path):
                    made.ask("DELETE", f"{path}/{each['metadata']['name']}")


def is_served(kubectl: Kubectl) -> bool:
    with contextlib.suppress(ApiRefused):
        kubectl.ask("GET", POOLS)
        return True
    return False


@pytest.fixture
def api(small_fleet: Prepared, kubectl: Kubectl) -> Iterator[Api]:
    with small_fleet.running_api(
        cluster=Cluster(kubectl.cluster.address, NAMESPACE)
    ) as made:
        yield made


def plan_two_replicas(api: Api) -> None:
    api.put("services/chat", service(scaling={"min_replicas": 2}))
    api.sync(services=[reading()])
    api.tick()


def test_pods_get_an_owner_and_a_budget_by_the_plan(api: Api, kubectl: Kubectl) -> None:
    plan_two_replicas(api)
    names = [kubectl.add_pod("chat") for _ in range(2)]
    until(
        lambda: (
            [each.get("status") for each in kubectl.items(POOLS)]
            == [{"readyReplicas": 2}]
        ),
        "no pool with two ready replicas",
    )
    (pool,) = kubectl.items(POOLS)
    for name in names:
        (owner,) = kubectl.ask("GET", f"{PLACE}/pods/{name}")["metadata"][
            "ownerReferences"
        ]
        assert (owner["uid"], owner["controller"]) == (pool["metadata"]["uid"], True)
    (budget,) = kubectl.items(kubectl.budgets)
    assert budget["spec"]["minAvailable"] == 2
    if kubectl.cluster.fake is None:
        check_evictions(kubectl, names)


def check_evictions(kubectl: Kubectl, names: list[str]) -> None:
    """None below the plan's replicas; one as soon as there is one more, which is how a drain goes."""

    def evict(name: str) -> int:
        body = {"metadata": {"name": name, "namespace": NAMESPACE}}
        body |= {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
        try:
            kubectl.ask("POST", f"{PLACE}/pods/{name}/eviction", body)
        except Exception as error:
            assert "disruption budget" in str(error)
            return 429
        return 201

    def allowed() -> Any:
        (budget,) = kubectl.items(kubectl.budgets)
        return budget.get("status", {}).get("disruptionsAllowed")

    until(lambda: allowed() == 0, "the budget is not known")
    assert evict(names[0]) == 429
    kubectl.add_pod("chat")
    until(lambda: allowed() == 1, "a third replica allows nothing")
    assert evict(names[0]) == 201


def test_a_plan_without_the_service_takes_pool_and_budget_away(
    api: Api, kubectl: Kubectl
) -> None:
    plan_two_replicas(api)
    until(lambda: kubectl.items(POOLS) and kubectl.items(kubectl.budgets), "no pool")
    assert api.call("DELETE", "services/chat", If_Match="*").status_code == 204
    api.tick()
    until(
        lambda: not kubectl.items(POOLS) and not kubectl.items(kubectl.budgets),
        "they are still there",
    )


def test_a_cordoned_node_drains_and_is_used_again(api: Api, kubectl: Kubectl) -> None:
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    until(lambda: api.get("nodes/n1")["status"]["drain"], "it does not drain")
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    until(lambda: not api.get("nodes/n1")["spec"]["cordoned"], "it is not used again")
    assert api.get("nodes/n1")["status"]["drain"] is None
    kinds = [
        event["kind"] for event in api.get("events?actor=token/kubernetes")["items"]
    ]
    assert kinds == ["NodeUncordoned", "NodeDraining"]


def test_what_a_person_keeps_out_of_use_stays_so(api: Api, kubectl: Kubectl) -> None:
    assert api.call("POST", "nodes/n1/cordon").status_code == 200
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    until(lambda: api.get("nodes/n1")["status"]["drain"], "it does not drain")
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    until(lambda: not api.get("nodes/n1")["spec"]["cordoned"], "it is not used again")
    # And one that nobody but a person has touched.
    assert api.call("POST", "nodes/n1/drain", {"deadline_s": 60}).status_code == 200
    plan_two_replicas(api)
    time.sleep(2.0)
    assert api.get("nodes/n1")["status"]["drain"]


def test_a_right_that_is_missing_is_named_and_the_api_serves_on(
    small_fleet: Prepared, kubectl: Kubectl
) -> None:
    fake = kubectl.cluster.fake
    if fake is None:
        pytest.skip("a real server's roles are others' test")
    fake.refused = "plimsollpools"
    cluster = Cluster(kubectl.cluster.address, NAMESPACE)
    with small_fleet.running_api(cluster=cluster) as api:
        until(
            lambda: api.get("events?kind=ClusterOutOfStep")["items"], "nobody says so"
        )
        (event,) = api.get("events?kind=ClusterOutOfStep")["items"]
        assert "plimsollpools is forbidden" in event["reason"]
        assert "is deploy/kubernetes of this release applied" in event["reason"]
        # Given the right, it goes on by itself.
        fake.refused = ""
        plan_two_replicas(api)
        until(lambda: kubectl.items(POOLS), "no pool")
