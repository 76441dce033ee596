"""On which node a Pod of an agent is, by the token of its service account, which the cluster judges (TokenReview).

No secret of a node has to be handed out: kubelet gives every Pod such a token, and no other Pod can have it.
"""

from urllib.parse import quote

import msgspec

from agents.base.arguments import as_node_name
from agents.kubernetes.api import ApiAway, ApiRefused, KubernetesApi
from app.base.errors import Unavailable
from app.kubernetes.cluster import Cluster

AUDIENCE = "plimsoll"
"""Whom the token is for, as the agent's Pod asks for it: one that is for somebody else is not taken."""
AGENT_ACCOUNT = "plimsoll-agent"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_EXTRA = "authentication.kubernetes.io"


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] = {}


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] = []
    user: _User = msgspec.field(default_factory=_User)


class _Review(msgspec.Struct):
    status: _ReviewStatus


class _PodMetadata(msgspec.Struct):
    uid: str


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMetadata
    spec: _PodSpec


async def nobody(_: str) -> None:
    """The answer where there is no cluster."""


class NodeIdentity:
    """Asks a cluster about its agents."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = KubernetesApi(cluster.address)
        self._namespace = cluster.namespace

    async def close(self) -> None:
        await self._api.close()

    async def node_of(self, token: str) -> str | None:
        """The name, as Plimsoll has it, of the node on which the token's Pod is; None: it is no agent's token.

        Raises Unavailable where the cluster does not answer, or does not let this be asked.
        """
        try:
            return await self._node_of(token)
        # A refusal, too: what is missing is a right of the control plane, not of the agent.
        except (ApiAway, ApiRefused, msgspec.MsgspecError) as error:
            raise Unavailable(f"no service account can be judged: {error}") from error

    async def _node_of(self, token: str) -> str | None:
        """Raises ApiAway, ApiRefused, MsgspecError."""
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        body = await self._api.ask("POST", REVIEWS, wanted)
        found = msgspec.json.decode(body, type=_Review).status
        agents = f"system:serviceaccount:{self._namespace}:{AGENT_ACCOUNT}"
        # A server that knows no audiences names none, and would take a token that was meant for anybody.
        if (
            not found.authenticated
            or AUDIENCE not in found.audiences
            or found.user.username != agents
        ):
            return None
        # A token that is not bound to a Pod, as of old Secrets, says nothing of a node.
        said = found.user.extra
        pod = said.get(f"{_EXTRA}/pod-name")
        uid = said.get(f"{_EXTRA}/pod-uid")
        if not pod or not uid:
            return None
        # Since 1.30 the cluster says it in the token; before, its Pod does.
        node = said.get(f"{_EXTRA}/node-name")
        if node:
            return as_node_name(node[0])
        return await self._node_of_pod(pod[0], uid[0])

    async def _node_of_pod(self, name: str, uid: str) -> str | None:
        """Raises ApiAway, ApiRefused, MsgspecError."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{quote(name, safe='')}"
        pod = msgspec.json.decode(await self._api.ask("GET", path), type=_Pod)
        # Another Pod may have its name by now.
        if pod.metadata.uid != uid or not pod.spec.node_name:
            return None
        return as_node_name(pod.spec.node_name)
