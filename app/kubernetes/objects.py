"""Objects of the cluster as far as the control plane reads them, and requests that change them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agents.kubernetes.api import ObjectMetadata

GROUP = "gpu.plimsoll"
"""A group's name must have a dot; no one else can have a domain under this one."""
API_VERSION = f"{GROUP}/v1"
GROUP_PATH = f"/apis/{API_VERSION}"
FIELD_MANAGER = "plimsoll"

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A change that is to be asked for."""

    method: Literal["PATCH", "DELETE"]
    path: str
    document: Document | None = None
    content_type: str = "application/json"
    query: Mapping[str, str] = field(default_factory=dict)


def applied(path: str, document: Document) -> Request:
    """Have the object as the document says, whether or not it is there (server-side apply)."""
    return Request(
        "PATCH",
        path,
        document,
        content_type="application/apply-patch+yaml",
        query={"fieldManager": FIELD_MANAGER, "force": "true"},
    )


def merged(path: str, document: Document) -> Request:
    """Have what the document names in an object that is there."""
    return Request("PATCH", path, document, content_type="application/merge-patch+json")


def selector(labels: Mapping[str, str]) -> str:
    """As a list or watch takes it."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False


class ClusterNode(msgspec.Struct):
    """A node of the cluster."""

    metadata: ObjectMetadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


class CustomResource(msgspec.Struct):
    """A PlimsollService or PlimsollPolicy."""

    metadata: ObjectMetadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class _PoolSpec(msgspec.Struct):
    replicas: int = -1


class _PoolStatus(msgspec.Struct, rename="camel"):
    ready_replicas: int = -1


class Pool(msgspec.Struct):
    """A PlimsollPool: the owner of a service's Pods."""

    metadata: ObjectMetadata
    spec: _PoolSpec = msgspec.field(default_factory=_PoolSpec)
    status: _PoolStatus = msgspec.field(default_factory=_PoolStatus)


class _BudgetSpec(msgspec.Struct, rename="camel"):
    min_available: int | str | None = None


class DisruptionBudget(msgspec.Struct):
    """A PodDisruptionBudget."""

    metadata: ObjectMetadata
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
