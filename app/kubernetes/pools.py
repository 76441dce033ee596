"""Owners and budgets of replicas' Pods. Pure: what is planned and what there is → what has to be changed.

An agent creates Pods without an owner, so that it needs no right but for Pods. Each gets its service's PlimsollPool as
owner here, and with the pool a PodDisruptionBudget: evictions, as of `kubectl drain`, never leave fewer ready
replicas than the plan has. Pods of tasks have one pool together and no budget: a task goes on elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.kubernetes.manifest import SERVICE, label_value
from agents.kubernetes.pod import Pod
from app.kubernetes.objects import (
    API_VERSION,
    GROUP_PATH,
    DisruptionBudget,
    Pool,
    Request,
    applied,
    merged,
)

TASKS = "tasks.plimsoll"
"""The pool of tasks: no service can be called so."""
PART_OF = {"app.kubernetes.io/managed-by": "plimsoll"}
"""By this label pools and budgets of the control plane are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPods:
    """One namespace's Pods that agents have created, with what belongs to them; each by `namespace/name`."""

    namespace: str
    pods: Mapping[str, Pod]
    pools: Mapping[str, Pool]
    budgets: Mapping[str, DisruptionBudget]
    budget_version: str
    """Group and version of PodDisruptionBudgets: before 1.21 there is no `policy/v1`."""


def pool_requests(planned: Mapping[str, int], there: OwnedPods) -> Iterator[Request]:
    """What brings pools, budgets and owners in step. `planned`: replicas by service, on nodes of this cluster."""
    pods: dict[str, list[Pod]] = {}
    for pod in there.pods.values():
        pods.setdefault(_pool_of(pod), []).append(pod)
    wanted = {label_value(service): count for service, count in planned.items()}
    for name in sorted(wanted.keys() | pods.keys()):
        yield from _pool(
            name,
            wanted.get(name, 0),
            pods.get(name, []),
            there,
        )
    for key, pool in there.pools.items():
        name = pool.metadata.name
        if name not in wanted and name not in pods:
            yield Request("DELETE", _pool_path(there, name))
        if key in there.budgets and not wanted.get(name):
            yield Request("DELETE", _budget_path(there, name))


def _pool(
    name: str, planned: int, pods: list[Pod], there: OwnedPods
) -> Iterator[Request]:
    key = f"{there.namespace}/{name}"
    pool = there.pools.get(key)
    budget = there.budgets.get(key)
    replicas = len(pods) if name == TASKS else planned
    if pool is None or pool.spec.replicas != replicas:
        yield applied(
            _pool_path(there, name),
            {
                **_head(API_VERSION, "PlimsollPool", name),
                "spec": {"replicas": replicas},
            },
        )
    if planned and (budget is None or budget.spec.min_available != planned):
        yield applied(
            _budget_path(there, name),
            {
                **_head(there.budget_version, "PodDisruptionBudget", name),
                "spec": {
                    "minAvailable": planned,
                    "selector": {"matchLabels": {SERVICE: name}},
                },
            },
        )
    if pool is None:
        return
    ready = sum(pod.is_ready for pod in pods)
    if pool.status.ready_replicas != ready:
        yield merged(
            f"{_pool_path(there, name)}/status", {"status": {"readyReplicas": ready}}
        )
    for pod in pods:
        # What is being deleted needs no owner, and may not get one any more.
        if not pod.metadata.owner_references and not pod.metadata.deletion_timestamp:
            yield _ownership(pod, pool)


def _ownership(pod: Pod, pool: Pool) -> Request:
    owner = {
        "apiVersion": API_VERSION,
        "kind": "PlimsollPool",
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        # Else `kubectl drain` takes the Pod for one that nothing would start elsewhere.
        "controller": True,
    }
    metadata = pod.metadata
    return merged(
        f"/api/v1/namespaces/{metadata.namespace}/pods/{metadata.name}",
        # The uid: another Pod may have the name by now.
        {"metadata": {"uid": metadata.uid, "ownerReferences": [owner]}},
    )


def _pool_of(pod: Pod) -> str:
    return pod.metadata.labels.get(SERVICE, TASKS)


def _head(version: str, kind: str, name: str) -> dict[str, object]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": PART_OF},
    }


def _pool_path(there: OwnedPods, name: str) -> str:
    return f"{GROUP_PATH}/namespaces/{there.namespace}/plimsollpools/{name}"


def _budget_path(there: OwnedPods, name: str) -> str:
    version = there.budget_version
    return f"/apis/{version}/namespaces/{there.namespace}/poddisruptionbudgets/{name}"
