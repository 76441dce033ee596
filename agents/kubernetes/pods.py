"""The Pods of one namespace, as requests to the API."""

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path

import msgspec

from agents.kubernetes.api import (
    ApiAway,
    ApiRefused,
    Away,
    ChangedObject,
    KubernetesApi,
    ListedObjects,
)
from agents.kubernetes.manifest import (
    CONTAINER,
    MPS_APP,
    NODE,
    PodSettings,
    label_value,
)
from agents.kubernetes.pod import Pod

DELETED_WITHIN_S = 30
"""The grace of Pods none of whose processes runs any more, or has begun to."""


class _PodList(msgspec.Struct):
    items: list[Pod] = []


class Pods:
    """See the module's docstring."""

    def __init__(self, api: KubernetesApi, settings: PodSettings) -> None:
        self._api, self._settings = api, settings
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"

    async def create(self, manifest: Mapping[str, object]) -> Pod:
        """The Pod, also where an earlier request has made it. Raises ApiRefused, ApiAway."""
        try:
            body = await self._api.ask("POST", self._path, manifest)
        except ApiRefused as error:
            # That request's answer did not come back. No other start of anything has this name.
            if error.status != HTTPStatus.CONFLICT:
                raise
            metadata = msgspec.convert(manifest["metadata"], dict[str, object])
            body = await self._api.ask("GET", f"{self._path}/{metadata['name']}")
        return msgspec.json.decode(body, type=Pod)

    async def read(self, name: str) -> Pod | None:
        """The Pod of that name; None: there is none. Raises ApiRefused, ApiAway."""
        try:
            body = await self._api.ask("GET", f"{self._path}/{name}")
        except ApiRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None
        return msgspec.json.decode(body, type=Pod)

    async def gpu_claim(self) -> str:
        """The ResourceClaim of this node's GPUs. Raises ApiRefused, ApiAway, also where there is none yet."""
        query = {
            "labelSelector": f"app={MPS_APP}",
            "fieldSelector": f"spec.nodeName={self._settings.node}",
        }
        body = await self._api.ask("GET", self._path, query=query)
        for pod in msgspec.json.decode(body, type=_PodList).items:
            if pod.gpu_claim:
                return pod.gpu_claim
        raise ApiAway(
            f"no Pod of {MPS_APP} on node {self._settings.node} has a ResourceClaim; is overlay gpus-dra applied?"
        )

    async def delete(self, pod: Pod) -> bool:
        """Begin to delete that very Pod; False: there is none any more. Raises ApiRefused, ApiAway."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": DELETED_WITHIN_S,
            # Another of its name must not be hit by a request that comes late.
            "preconditions": {"uid": pod.metadata.uid},
        }
        try:
            await self._api.ask("DELETE", f"{self._path}/{pod.metadata.name}", options)
        except ApiRefused as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            return False
        return True

    def follow(self) -> AsyncIterator[ListedObjects[Pod] | ChangedObject[Pod] | Away]:
        """All Pods of the node, and what becomes of them, for ever."""
        query = {"labelSelector": f"{NODE}={label_value(self._settings.node)}"}
        return self._api.follow(self._path, Pod, **query)

    def log_folder(self, pod: Pod) -> Path:
        """Where kubelet keeps what it writes."""
        metadata = pod.metadata
        folder = f"{self._settings.namespace}_{metadata.name}_{metadata.uid}"
        return self._settings.logs / folder / CONTAINER
