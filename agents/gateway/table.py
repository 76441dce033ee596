"""What the control plane says of services' nodes, and what HAProxy is to make of it. Pure functions."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from agents.gateway.config import WAITING, GatewaySettings
from agents.router.haproxy.commands import MAX_WEIGHT
from agents.router.haproxy.state import Address


class CarrierNode(msgspec.Struct, frozen=True):
    """A node that takes a service's requests; fields that a later control plane adds are ignored."""

    url: str
    weight_rps: float
    planned_replicas: int
    ready_replicas: int


class CarriedService(msgspec.Struct, frozen=True):
    """One service with its nodes."""

    service: str
    nodes: tuple[CarrierNode, ...]


class EndpointsPage(msgspec.Struct, frozen=True):
    """A part of the list of all services."""

    items: tuple[CarriedService, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTable:
    """Where requests go."""

    weights: Mapping[str, Mapping[Address, int]]
    """Service → node → weight; a node gets requests while it says that it is ready for the service."""
    waiting: Mapping[str, tuple[Address, ...]]
    """Service → nodes that take its requests while none of those is ready: they wait there and are counted."""

    @property
    def nodes(self) -> tuple[Address, ...]:
        """Every node that some service names."""
        found = {each for places in self.waiting.values() for each in places}
        found |= {each for weights in self.weights.values() for each in weights}
        return tuple(sorted(found))


def make_table(
    services: Sequence[CarriedService], settings: GatewaySettings
) -> tuple[GatewayTable, tuple[str, ...]]:
    """The table, and what had to be left out of it, in words."""
    problems: list[str] = []
    weights: dict[str, dict[Address, int]] = {}
    waiting: dict[str, tuple[Address, ...]] = {}
    if len(services) > settings.services:
        left_out = ", ".join(each.service for each in services[settings.services :][:5])
        problems.append(
            f"there are {len(services)} services, but only {settings.services} have a place: {left_out} ... are not "
            "served; raise --services"
        )
    for each in services[: settings.services]:
        nodes = _reachable(each, settings.node_scheme, problems)
        carriers = [
            (address, node)
            for address, node in nodes
            if node.planned_replicas or node.ready_replicas
        ]
        # The largest ones, where there are too many.
        carriers.sort(key=lambda pair: (-pair[1].weight_rps, pair[0]))
        if len(carriers) > settings.nodes:
            problems.append(
                f"service {each.service} has {len(carriers)} nodes, only {settings.nodes} of which have a place; raise "
                "--nodes"
            )
        weights[each.service] = _weights(carriers[: settings.nodes])
        planned = [address for address, node in carriers if node.planned_replicas]
        others = [address for address, _ in nodes]
        waiting[each.service] = tuple((planned or others)[:WAITING])
    return GatewayTable(weights=weights, waiting=waiting), tuple(problems)


def _reachable(
    service: CarriedService, scheme: str, problems: list[str]
) -> list[tuple[Address, CarrierNode]]:
    found = []
    for node in service.nodes:
        # Its router listens on the node's own loopback address only.
        if not node.url:
            continue
        parts = urlsplit(node.url)
        if parts.scheme != scheme:
            hint = (
                "use --node-ca to connect to nodes over TLS"
                if parts.scheme == "https"
                else "with --node-ca, all nodes must accept requests over TLS"
            )
            problems.append(f"{node.url} is not used: {hint}")
            continue
        try:
            host = str(ipaddress.ip_address(parts.hostname or ""))
            port = parts.port
        except ValueError:
            port = None
        if port is None:
            problems.append(f"{node.url} is not used: it has no IP address and port")
            continue
        found.append(((host, port), node))
    return found


def _weights(carriers: Iterable[tuple[Address, CarrierNode]]) -> dict[Address, int]:
    """Whole weights, the largest MAX_WEIGHT. Everyone has at least 1, since it may be the only one that is ready."""
    rates = {address: node.weight_rps for address, node in carriers}
    largest = max(rates.values(), default=0.0)
    # Nodes that only leave, or that are planned without a rate, share the requests evenly.
    if largest <= 0.0:
        return dict.fromkeys(rates, 1)
    return {
        address: max(1, round(MAX_WEIGHT * rate_rps / largest))
        for address, rate_rps in rates.items()
    }
