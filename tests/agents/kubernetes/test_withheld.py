"""GPUs that are Plimsoll's are given to no other Pod, as the scheduler of a real cluster counts them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agents.kubernetes.api import KubernetesApi
from agents.kubernetes.manifest import GPUS, only_on
from tests.agents.fakes.replicas import in_loop
from tests.agents.kubernetes.cluster import ROOM, TESTBED, Cluster, make_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TESTBED, reason="only a real scheduler counts GPUs"),
]
BASE = Path(__file__).parents[3] / "deploy/kubernetes/base"
GPU = "nvidia.com/gpu"
WAITS_S = 3.0
"""A Pod that finds a place has it sooner."""


def a_pod(name: str, node: str, gpus: str) -> dict[str, Any]:
    """Somebody's, who wants GPUs of that node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "affinity": {"nodeAffinity": only_on(node)},
            "containers": [
                {
                    "name": "c",
                    "image": "none",
                    "env": [],
                    "command": ["true"],
                    "workingDir": "/",
                    "resources": {"limits": {GPU: gpus}},
                }
            ],
        },
    }


def the_holder(node: str) -> dict[str, Any]:
    """The Pod of the MPS daemons as overlay gpus-device-plugin makes it, for this node's GPUs."""
    daemons = yaml.safe_load((BASE / "mps.yaml").read_text())
    spec = daemons["spec"]["template"]["spec"]
    spec["affinity"] = {"nodeAffinity": only_on(node)}
    spec["nodeSelector"] = {}
    (container,) = spec["containers"]
    container["resources"]["limits"][GPU] = ROOM[GPU]
    # Of another namespace, which may have no such class here; what its program does is not looked at.
    spec |= {"priorityClassName": None, "hostPID": False, "volumes": []}
    container |= {"volumeMounts": [], "command": ["true"], "env": [], "workingDir": "/"}
    metadata = {"name": f"mps-{node}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def created(api: KubernetesApi, pod: dict[str, Any]) -> AsyncIterator[str]:
    path = "/api/v1/namespaces/default/pods"
    await api.ask("POST", path, pod)
    mine = f"{path}/{pod['metadata']['name']}"
    try:
        yield mine
    finally:
        await api.ask("DELETE", mine, {"gracePeriodSeconds": 0})


async def why_unbound(api: KubernetesApi, path: str) -> str:
    """What the scheduler says after a while; empty: the Pod has its node."""
    end_s = time.monotonic() + WAITS_S
    said = ""
    while time.monotonic() < end_s:
        pod = msgspec.json.decode(await api.ask("GET", path))
        if "nodeName" in pod["spec"]:
            return ""
        conditions = pod["status"].get("conditions", [])
        said = " ".join(each.get("message", "") for each in conditions)
        await asyncio.sleep(0.1)
    return said or "nothing"


@in_loop
async def scheduled(cluster: Cluster, *, is_tainted: bool) -> None:
    api, node = KubernetesApi(cluster.address), cluster.settings.node
    try:
        if is_tainted:
            path = f"/api/v1/nodes/{node}"
            found = msgspec.json.decode(await api.ask("GET", path))
            taint = {"key": GPUS, "value": "true", "effect": "NoSchedule"}
            found["spec"]["taints"] = [taint]
            await api.ask("PUT", path, found)
            async with created(api, a_pod(f"other-{node}", node, "1")) as other:
                assert "taint" in await why_unbound(api, other)
        async with created(api, the_holder(node)) as holder:
            assert await why_unbound(api, holder) == ""
            stranger = a_pod(f"stranger-{node}", node, "1")
            # Also one that tolerates everything.
            stranger["spec"]["tolerations"] = [{"operator": "Exists"}]
            async with created(api, stranger) as path:
                assert f"Insufficient {GPU}" in await why_unbound(api, path)
    finally:
        await api.close()


@pytest.mark.parametrize("is_tainted", [False, True])
def test_a_stranger_gets_no_gpu_of_a_node_whose_gpus_are_held(
    tmp_path: Path, is_tainted: bool
) -> None:
    with make_cluster(tmp_path / "cluster") as cluster:
        scheduled(cluster, is_tainted=is_tainted)
