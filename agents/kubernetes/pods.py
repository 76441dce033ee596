"""The Pods of one namespace, as requests to the API."""

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path

import msgspec

from agents.kubernetes.api import (
    ApiRefused,
    Away,
    ChangedObject,
    KubernetesApi,
    ListedObjects,
)
from agents.kubernetes.pod import CONTAINER, NODE, Pod, PodSettings, label_value

DELETED_WITHIN_S = 30
"""The grace of Pods none of whose processes runs any more, or has begun to."""


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
