"""What the agent's service account may ask of a real cluster: Pods of one namespace, and nothing else."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agents.kubernetes.api import ApiRefused, KubernetesApi
from tests.agents.kubernetes.cluster import TESTBED, Cluster, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TESTBED, reason="only a real server has roles"),
]
RIGHTS = Path(__file__).parents[3] / "deploy/kubernetes/base/agent-rights.yaml"
MINE, RBAC = "plimsoll-replicas", "rbac.authorization.k8s.io"
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{MINE}/serviceaccounts",
    "Role": f"/apis/{RBAC}/v1/namespaces/{MINE}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{MINE}/rolebindings",
}
FORBIDDEN = (
    # verb, group, resource, subresource, namespace
    ("get", "", "secrets", "", MINE),
    ("list", "", "secrets", "", "plimsoll"),
    ("create", "", "secrets", "", MINE),
    ("get", "", "configmaps", "", MINE),
    ("get", "", "pods", "log", MINE),
    ("create", "", "pods", "exec", MINE),
    ("create", "", "pods", "attach", MINE),
    ("create", "", "pods", "portforward", MINE),
    ("create", "", "pods", "eviction", MINE),
    ("update", "", "pods", "status", MINE),
    ("patch", "", "pods", "", MINE),
    ("list", "", "pods", "", "plimsoll"),
    ("create", "", "pods", "", "plimsoll"),
    ("create", "", "pods", "", "kube-system"),
    ("delete", "", "pods", "", "kube-system"),
    ("get", "", "nodes", "", ""),
    ("patch", "", "nodes", "", ""),
    ("create", "apps", "deployments", "", MINE),
    ("create", "apps", "daemonsets", "", MINE),
    ("create", RBAC, "roles", "", MINE),
    ("create", RBAC, "rolebindings", "", MINE),
    ("create", "", "serviceaccounts", "token", MINE),
)
ALLOWED = tuple(
    (verb, "", "pods", "", MINE)
    for verb in ("get", "list", "watch", "create", "delete")
)


async def is_allowed(api: KubernetesApi, asked: tuple[str, ...]) -> bool:
    verb, group, resource, subresource, namespace = asked
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{MINE}:plimsoll-agent",
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "namespace": namespace,
            },
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = msgspec.json.decode(await api.ask("POST", path, review))
    return bool(answer["status"]["allowed"])


async def reviewed(cluster: Cluster) -> tuple[list[Any], list[Any]]:
    """What is allowed of both lists."""
    api = KubernetesApi(cluster.address)
    try:
        for each in yaml.safe_load_all(RIGHTS.read_text()):
            # Of an earlier run.
            with contextlib.suppress(ApiRefused):
                await api.ask("POST", PATHS[each["kind"]], each)
        return (
            [each for each in FORBIDDEN if await is_allowed(api, each)],
            [each for each in ALLOWED if await is_allowed(api, each)],
        )
    finally:
        await api.close()


def test_an_agent_may_ask_for_its_pods_and_nothing_else(tmp_path: Path) -> None:
    with make_cluster(tmp_path / "cluster") as cluster:
        assert asyncio.run(reviewed(cluster)) == ([], list(ALLOWED))
