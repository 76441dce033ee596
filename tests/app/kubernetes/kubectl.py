"""Asks a cluster's API, fake or real, as an admin does."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import yaml

from agents.kubernetes.api import ApiRefused, KubernetesApi
from agents.kubernetes.manifest import MANAGED_BY, only_on
from app.kubernetes.cluster import Cluster
from tests.agents.kubernetes.cluster import Cluster as RunningCluster
from tests.agents.kubernetes.fake_api import NAMESPACE
from tests.ports import a_free_port
from tests.waiting import until

RESOURCES = Path(__file__).parents[3] / "deploy/kubernetes/base"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLACE = f"/api/v1/namespaces/{NAMESPACE}"
GROUP = "/apis/gpu.plimsoll/v1"
POOLS = f"{GROUP}/namespaces/{NAMESPACE}/plimsollpools"


class Kubectl:
    """Asks the cluster's API as an admin does."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        # One loop and its connections for all that is asked.
        self._loop = asyncio.Runner()
        self._api = KubernetesApi(cluster.address)

    def close(self) -> None:
        self._loop.run(self._api.close())
        self._loop.close()

    def ask(self, method: str, path: str, document: object = None, **how: Any) -> Any:
        answer = self._loop.run(self._api.ask(method, path, document, **how))
        return msgspec.json.decode(answer)

    def add(self, path: str, document: object) -> None:
        """Unless it is there."""
        try:
            self.ask("POST", path, document)
        except ApiRefused as error:
            if error.status != 409:
                raise

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


def prepare(kubectl: Kubectl) -> None:
    """Plimsoll's kinds, the node n1, and the namespaces of teams."""
    for path in RESOURCES.glob("plimsoll*.yaml"):
        for each in yaml.safe_load_all(path.read_text()):
            kubectl.add(DEFINITIONS, each)
    for team in ("team-a", "team-b", "team-c"):
        kubectl.add("/api/v1/namespaces", {"metadata": {"name": team}})
    until(lambda: is_served(kubectl), "the definitions are not served")
    labels = {"plimsoll/gpus": "true"}
    kubectl.add(
        "/api/v1/nodes", {"metadata": {"name": "n1", "labels": labels}, "spec": {}}
    )


def control_plane(kubectl: Kubectl, directory: Path) -> Cluster:
    """The cluster as the account that deploy/kubernetes gives the control plane sees it."""
    account = "/api/v1/namespaces/plimsoll/serviceaccounts"
    kubectl.add("/api/v1/namespaces", {"metadata": {"name": "plimsoll"}})
    kubectl.add(account, {"metadata": {"name": "plimsoll"}})
    rights = (RESOURCES / "control-plane-rights.yaml").read_text()
    for each in yaml.safe_load_all(rights):
        namespace = each["metadata"].get("namespace")
        within = f"namespaces/{namespace}/" if namespace else ""
        path = f"/apis/{each['apiVersion']}/{within}{each['kind'].lower()}s"
        kubectl.ask(
            "PATCH",
            f"{path}/{each['metadata']['name']}",
            each,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": "test", "force": "true"},
        )
    made = kubectl.ask("POST", f"{account}/plimsoll/token", {"spec": {}})
    token_file = directory / "control-plane-token"
    token_file.write_text(made["status"]["token"])
    address = replace(kubectl.cluster.address, token_file=token_file)
    return Cluster(address, NAMESPACE)


def clean(kubectl: Kubectl) -> None:
    """Nothing that a test has made is left."""
    if kubectl.cluster.fake is not None:
        return
    kubectl.ask("DELETE", "/api/v1/nodes/n1")
    for each in kubectl.items(f"{PLACE}/pods"):
        path = f"{PLACE}/pods/{each['metadata']['name']}"
        kubectl.ask("DELETE", path, {"gracePeriodSeconds": 0})
    for path in (POOLS, kubectl.budgets, f"{GROUP}/plimsollpolicies"):
        for each in kubectl.items(path):
            kubectl.ask("DELETE", f"{path}/{each['metadata']['name']}")
    for each in kubectl.items(f"{GROUP}/plimsollservices"):
        metadata = each["metadata"]
        path = services_path(metadata["namespace"], metadata["name"])
        kubectl.patch(path, {"metadata": {"finalizers": None}})
        with contextlib.suppress(ApiRefused):
            kubectl.ask("DELETE", path)


def services_path(namespace: str, name: str = "") -> str:
    return f"{GROUP}/namespaces/{namespace}/plimsollservices/{name}".rstrip("/")


def is_served(kubectl: Kubectl) -> bool:
    with contextlib.suppress(ApiRefused):
        for each in ("plimsollpools", "plimsollservices", "plimsollpolicies"):
            kubectl.ask("GET", f"{GROUP}/{each}")
        return True
    return False
