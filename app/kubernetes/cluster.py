"""The cluster in which this process is a Pod."""

import os
from dataclasses import dataclass

from agents.base.device import DeviceError
from agents.kubernetes.api import ApiAddress
from app.base.errors import PlimsollError
from app.base.settings import Settings


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where its API is, and what of it is Plimsoll's."""

    address: ApiAddress
    namespace: str
    """The one in which agents, replicas and tasks are."""


def own_cluster(settings: Settings) -> Cluster | None:
    """The cluster; None: the settings name none of its namespaces. Raises PlimsollError where this is no Pod."""
    if settings.kubernetes_namespace is None:
        return None
    try:
        address = ApiAddress.in_cluster(os.environ)
    except DeviceError as error:
        raise PlimsollError(
            f"PLIMSOLL_KUBERNETES_NAMESPACE is set, but {error}"
        ) from error
    return Cluster(address, settings.kubernetes_namespace)
