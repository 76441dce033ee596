"""Which node an agent's service account proves; on the fake API and, by `make test-kubernetes`, on a real server."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from agents.kubernetes.api import ApiRefused, KubernetesApi
from agents.kubernetes.manifest import only_on
from app.base.errors import Unavailable
from app.kubernetes.cluster import Cluster
from app.kubernetes.node_identity import AGENT_ACCOUNT, AUDIENCE, NodeIdentity
from tests.agents.kubernetes.cluster import Cluster as RunningCluster
from tests.agents.kubernetes.cluster import make_cluster
from tests.agents.kubernetes.fake_api import NAMESPACE
from tests.waiting import eventually

PLACE = f"/api/v1/namespaces/{NAMESPACE}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with make_cluster(tmp_path_factory.mktemp("identity") / "cluster") as made:
        yield made


class Accounts:
    """Makes Pods and tokens of service accounts."""

    def __init__(self, api: KubernetesApi, node: str) -> None:
        self._api = api
        self._node = node

    async def ask(self, method: str, path: str, document: object = None) -> Any:
        return msgspec.json.decode(await self._api.ask(method, path, document))

    async def pod(self, account: str) -> dict[str, Any]:
        """One that is on the node."""
        # There already, and the fake knows any.
        with contextlib.suppress(ApiRefused):
            await self.ask(
                "POST",
                f"{PLACE}/serviceaccounts",
                {"metadata": {"name": account, "namespace": NAMESPACE}},
            )
        name = f"agent-{uuid4().hex[:8]}"
        wanted = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {}},
            "spec": {
                "serviceAccountName": account,
                "affinity": {"nodeAffinity": only_on(self._node)},
                "containers": [{"name": "c", "image": "none"}],
            },
        }
        await self.ask("POST", f"{PLACE}/pods", wanted)

        async def placed() -> dict[str, Any] | None:
            found: dict[str, Any] = await self.ask("GET", f"{PLACE}/pods/{name}")
            return found if found["spec"].get("nodeName") else None

        pod: dict[str, Any] = await eventually(placed)
        return pod

    async def token(
        self,
        pod: dict[str, Any] | None,
        account: str = AGENT_ACCOUNT,
        audience: str = AUDIENCE,
    ) -> str:
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 3600}
        if pod is not None:
            name, uid = (pod["metadata"][key] for key in ("name", "uid"))
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": name,
                "uid": uid,
            }
        made = await self.ask(
            "POST", f"{PLACE}/serviceaccounts/{account}/token", {"spec": spec}
        )
        return str(made["status"]["token"])


def nodes(
    cluster: RunningCluster,
    namespace: str,
    make: Callable[[Accounts], Awaitable[list[str]]],
) -> list[str | None]:
    """What is said of each of the tokens that are made."""

    async def run() -> list[str | None]:
        api = KubernetesApi(cluster.address)
        identity = NodeIdentity(Cluster(cluster.address, namespace))
        try:
            made = await make(Accounts(api, cluster.settings.node))
            return [await identity.node_of(token) for token in made]
        finally:
            await identity.close()
            await api.close()

    return asyncio.run(run())


def test_an_agents_token_proves_the_node_of_its_pod(cluster: RunningCluster) -> None:
    async def make(accounts: Accounts) -> list[str]:
        return [await accounts.token(await accounts.pod(AGENT_ACCOUNT))]

    assert nodes(cluster, NAMESPACE, make) == [cluster.settings.node]


def test_nobody_elses_token_proves_a_node(cluster: RunningCluster) -> None:
    async def make(accounts: Accounts) -> list[str]:
        pod = await accounts.pod(AGENT_ACCOUNT)
        return [
            await accounts.token(pod, audience="somebody"),
            await accounts.token(await accounts.pod("default"), account="default"),
            # Bound to no Pod, it is on no node.
            await accounts.token(None),
            f"{await accounts.token(pod)}x",
        ]

    assert nodes(cluster, NAMESPACE, make) == [None] * 4


def test_an_account_of_that_name_in_another_namespace_proves_no_node(
    cluster: RunningCluster,
) -> None:
    async def make(accounts: Accounts) -> list[str]:
        return [await accounts.token(await accounts.pod(AGENT_ACCOUNT))]

    assert nodes(cluster, "elsewhere", make) == [None]


def test_a_cluster_that_does_not_answer_is_no_refusal(tmp_path: Path) -> None:
    with make_cluster(tmp_path / "cluster") as cluster:
        if cluster.fake is None:
            pytest.skip("a real server is everybody's")
        cluster.fake.is_away = True

        async def make(_: Accounts) -> list[str]:
            return ["eyJ.x.y"]

        with pytest.raises(Unavailable, match="no service account can be judged"):
            nodes(cluster, NAMESPACE, make)
