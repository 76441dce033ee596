"""PlimsollService and PlimsollPolicy: what is written here for one, and what its status says. Pure functions.

A service's project is the namespace of its object: who may create objects there, the cluster's roles say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agents.kubernetes.manifest import SERVICE, label_value
from app.answers.conditions import Condition
from app.answers.status import ServiceStatus
from app.api.http.objects import OWNER
from app.kubernetes.objects import CustomResource, Document

FINALIZER = "gpu.plimsoll/drained"
"""An object whose service still runs is kept until it does not."""
MAX_LABEL = 63
STABLE = (
    "observedGeneration",
    "replicas",
    "plannedReplicas",
    "selector",
    "endpoint",
)
"""A change of these is written at once; all else changes with every request."""
LIMITS = ("min_replicas", "max_replicas", "minReplicas", "maxReplicas")
"""What an exact number takes the place of."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of an object's specification here."""

    status: str
    """True, False, or Unknown where it will be tried again soon."""
    reason: str
    """CamelCase, for programs."""
    message: str
    """For people: which field is wrong, and the remedy."""


ACCEPTED = Acceptance("True", "Applied", "it is in force as written")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """What is known of a service."""

    status: ServiceStatus | None
    """None: the loop does not know it yet."""
    ready: int
    """Pods that are ready."""
    cost_usd_per_hour: float
    endpoint: str | None = None


def owner_of(resource: CustomResource, kind: str) -> str:
    """Who keeps what is written for the object, for people and as its mark."""
    metadata = resource.metadata
    place = f"{metadata.namespace}/" if metadata.namespace else ""
    return f"{kind} {place}{metadata.name}"


def service_manifest(resource: CustomResource) -> Document:
    """The manifest of kind Service."""
    spec = dict(resource.spec)
    scaling = dict(spec.get("scaling") or {})
    replicas = scaling.pop("replicas", None)
    if replicas is not None:
        # `kubectl scale` must not fail for limits that stand there already, in either spelling.
        for name in LIMITS:
            scaling.pop(name, None)
        scaling |= {"min_replicas": replicas, "max_replicas": replicas}
    if scaling:
        spec["scaling"] = scaling
    metadata = resource.metadata
    # A cluster's may have longer names.
    labels = {
        name: value for name, value in metadata.labels.items() if len(name) <= MAX_LABEL
    }
    return {
        "metadata": {
            "name": metadata.name,
            "project": metadata.namespace,
            "labels": labels,
            "annotations": {OWNER: owner_of(resource, "PlimsollService")},
        },
        "spec": spec,
    }


def policy_manifest(resource: CustomResource) -> Document:
    """The manifest of kind Policy."""
    return {
        "metadata": {
            "name": resource.metadata.name,
            "annotations": {OWNER: owner_of(resource, "PlimsollPolicy")},
        },
        "spec": dict(resource.spec),
    }


def service_status(
    resource: CustomResource,
    accepted: Acceptance,
    facts: ServiceFacts,
    at: datetime,
) -> Document:
    """The status of a PlimsollService."""
    status = facts.status
    planned = 0
    conditions: tuple[Condition, ...] = ()
    reading = None
    if status is not None:
        planned = sum(count for _, count in status.replicas)
        conditions = status.conditions
        reading = status.reading
    attainment = None if reading is None else reading.attainment
    rate = 0.0 if reading is None else reading.arrival_rate_rps
    return {
        "observedGeneration": resource.metadata.generation,
        "replicas": facts.ready,
        "plannedReplicas": planned,
        "selector": f"{SERVICE}={label_value(resource.metadata.name)}",
        "endpoint": facts.endpoint,
        # As precise as anybody reads it: a status is written when it changes.
        "requestsPerSecond": float(f"{rate:.3g}"),
        "met": "" if attainment is None else f"{attainment:.1%}",
        "costUsdPerHour": f"{facts.cost_usd_per_hour:.2f}",
        "conditions": conditions_of(resource, accepted, conditions, at),
    }


def conditions_of(
    resource: CustomResource,
    accepted: Acceptance,
    others: Iterable[Condition],
    at: datetime,
) -> list[Document]:
    """As a cluster has them, each with the time since when its status is what it is."""
    before = {each["type"]: each for each in resource.status.get("conditions") or ()}
    said: list[tuple[str, Acceptance | Condition]] = [("Accepted", accepted)]
    said += [(each.type, each) for each in others]
    found: list[Document] = []
    now = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    for name, each in said:
        # The list is replaced as a whole: what is as it was keeps its time.
        known = before.get(name, {})
        since = now
        if known.get("status") == each.status:
            since = known.get("lastTransitionTime", now)
        found.append(
            {
                "type": name,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "lastTransitionTime": since,
                "observedGeneration": resource.metadata.generation,
            }
        )
    return found


def has_news(before: Mapping[str, Any], after: Document) -> bool:
    """Whether more has changed than figures of the moment."""
    return _stable(before) != _stable(after)


def _stable(status: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    # Without messages, which hold figures of the moment.
    conditions = [
        (each["type"], each["status"], each.get("reason"))
        for each in status.get("conditions") or ()
    ]
    return [status.get(name) for name in STABLE], conditions
