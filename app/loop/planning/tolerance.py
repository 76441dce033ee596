"""Tolerance: nothing starts for a service while what runs carries all but a little of what it asks for.

A start costs its launch and the handover, and the rate that is planned for is a forecast with room on it. So a service
whose replicas carry `1 / (1 + TOLERANCE)` of it or more is planned for what they carry; where that turns out to be too
little, its requests are late, its room grows (`solvers.forecast.room`), and the shortage is beyond the tolerance soon.

Only services that `joint` plans: the published systems have their own rules, and the Kubernetes HPA its own tolerance.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from app.loop.planning.groups import parts_of
from app.store.store import PolicySettings
from solvers.greedy.arrange import running_carriers
from solvers.greedy.routing import SAFE, Carrier, true_capacities
from solvers.types.problem import Problem
from solvers.types.state import Demand, Service

TOLERANCE = 0.12
"""A larger one saves starts and costs attainment."""
JOINT = "joint"
_MAX_NAMES = 10
"""In one sentence."""


class Tolerated(NamedTuple):
    """What is planned for in the end."""

    problem: Problem
    demands: tuple[Demand, ...]
    services: tuple[str, ...]
    """Those that are planned for less than they ask."""


def with_tolerance(
    problem: Problem,
    demands: tuple[Demand, ...],
    services: Sequence[Service],
    settings: PolicySettings,
) -> Tolerated:
    """Problem and demands with the rates lowered to what runs carries, where that is nearly all."""
    parts = parts_of(problem, settings, services)
    names = {name for part in parts if part.policy == JOINT for name in part.services}
    # Ticks of other policies need not price what runs.
    if not names:
        return Tolerated(problem, demands, ())
    carried = _carried_rps(problem)
    lowered = {
        each.name: SAFE * carried[each.name]
        for each in problem.services
        if each.name in names
        and carried[each.name]
        < each.arrival_rate_rps
        <= (1.0 + TOLERANCE) * carried[each.name]
    }
    if not lowered:
        return Tolerated(problem, demands, ())
    asked = tuple(
        replace(each, arrival_rate_rps=lowered.get(each.name, each.arrival_rate_rps))
        for each in problem.services
    )
    return Tolerated(
        replace(problem, services=asked),
        tuple(_lowered(each, lowered.get(each.service)) for each in demands),
        tuple(sorted(lowered)),
    )


def describe_held(services: Sequence[str]) -> tuple[str, ...]:
    """What the plan's report says of these services."""
    if not services:
        return ()
    names = ", ".join(services[:_MAX_NAMES])
    more = len(services) - _MAX_NAMES
    others = f" and {more} more" if more > 0 else ""
    return (f"nothing starts for {names}{others}: what runs carries nearly all of it",)


def _carried_rps(problem: Problem) -> dict[str, float]:
    """What the running replicas of each service carry."""
    priced: dict[Carrier, list[float]] = {}
    carried: dict[str, float] = defaultdict(float)
    limits = {each.name: each.max_replica_rps or math.inf for each in problem.services}
    for carrier in running_carriers(problem):
        if carrier not in priced:
            priced[carrier] = true_capacities(problem, carrier)
        for seat, capacity in zip(carrier.seats, priced[carrier], strict=True):
            carried[seat.service] += min(capacity, limits[seat.service])
    return carried


def _lowered(demand: Demand, rate_rps: float | None) -> Demand:
    """The demand of that rate: what is missing comes off its reserve first, then off its headroom."""
    if rate_rps is None:
        return demand
    missing_rps = demand.arrival_rate_rps - rate_rps
    beyond_rps = max(0.0, missing_rps - demand.reserve_rps)
    return replace(
        demand,
        arrival_rate_rps=rate_rps,
        reserve_rps=max(0.0, demand.reserve_rps - missing_rps),
        headroom_rps=max(0.0, demand.headroom_rps - beyond_rps),
    )
