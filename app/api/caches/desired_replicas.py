"""How many replicas of each service there should be, for programs that run them by this figure, as KEDA does.

Such a program takes a figure that is absent, or 0, for "stop everything". So advice is repeated until there is newer
advice, and 0 is said only where it is known that nothing is needed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from app.db.base.tables import AnyRow
from app.db.base.transaction import Connection
from app.db.decisions.plans import Advice, newest_advice
from app.db.fleet.windows import load_heard
from app.db.workloads.services import ServiceRow
from app.store.plan_rules import modes_of
from app.store.store import PolicySettings
from solvers.types.state import Mode, Service

NOTHING_RPS = 1e-3
"""Less than a request in a quarter of an hour."""

Desired = dict[tuple[str, str], int]
"""Replicas by service and GPU type."""


async def load_desired(
    connection: Connection,
    rows: Sequence[ServiceRow],
    places: Sequence[AnyRow],
    settings: PolicySettings,
    types: Set[str],
) -> Desired:
    """By the plan in force; of services in mode advise by the newest decision, with 0 of every other GPU type."""
    shown = {row.service.name for row in rows}
    running: Desired = {
        (place.service, place.gpu_type): place.replicas
        for place in places
        if place.service in shown
    }
    advised: list[Service] = [
        row.service for row in rows if Mode.ADVISE in modes_of(row.service, settings)
    ]
    advice = await newest_advice(connection) if advised else None
    if advice is None:
        return running
    names = [service.name for service in advised]
    heard = await load_heard(connection, names)
    wanted = _counts(advice, running)
    desired = dict(running)
    for service in advised:
        if _is_known(service, advice, wanted, heard):
            # What still runs by the plan in force is not what is wanted.
            for key in _keys(service, types, wanted | running):
                desired[key] = wanted[key]
    return desired


def _counts(advice: Advice, running: Desired) -> Counter[tuple[str, str]]:
    if advice.bound is None:
        return Counter(running)
    return Counter(
        (replica.service, gpu.gpu_type)
        for gpu in advice.bound.gpus
        for replica in gpu.replicas
    )


def _is_known(
    service: Service,
    advice: Advice,
    wanted: Mapping[tuple[str, str], int],
    heard: Set[str],
) -> bool:
    """Whether the decision is about the service: 0 of one that was never heard, or cannot be served, is no advice."""
    if any(name == service.name and count for (name, _), count in wanted.items()):
        return True
    rate_rps = advice.rates_rps.get(service.name, math.inf)
    return service.name in heard and rate_rps < NOTHING_RPS


def _keys(
    service: Service,
    types: Set[str],
    counted: Mapping[tuple[str, str], int],
) -> Iterator[tuple[str, str]]:
    """The service with each GPU type on which it runs or may run."""
    allowed = service.allowed_gpu_types
    possible = types if allowed is None else types & set(allowed)
    named = {gpu_type for name, gpu_type in counted if name == service.name}
    for gpu_type in sorted(possible | named):
        yield service.name, gpu_type
