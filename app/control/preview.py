"""Preview: what the loop would decide if things were different. Runs on a live snapshot and writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.control.forecast import make_demands
from app.control.observe import observe, silent_nodes, without_silent_nodes
from app.control.plan import Decision, decide
from app.control.predict import PlannedPoints, make_problem
from app.control.store import Snapshot
from app.control.worker import Solver
from solvers.cost import cost_usd_per_hour
from solvers.errors import InvalidInput
from solvers.plan import Change, Plan, anonymous, diff
from solvers.state import ClusterState, Demand, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What shall be different from what is."""

    services: tuple[Service, ...] = ()
    """Added, or in place of those of the same name."""
    without: tuple[str, ...] = ()
    """Services that shall be gone."""
    demand_factor: Mapping[str, float] = field(default_factory=dict)
    """Multiplies the forecast rate of a service."""
    demand_rps: Mapping[str, float] = field(default_factory=dict)
    """The rate of a service, instead of the forecast; for a new one there is none."""
    policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What would be decided, beside what is in force."""

    decision: Decision
    demands: tuple[Demand, ...]
    changes: tuple[Change, ...]
    cost_before_usd_per_hour: float | None
    """Of the plan in force at today's figures; None when there is none, or when it names what no longer exists."""


async def preview(solver: Solver, snapshot: Snapshot, changes: Changes) -> Preview:
    """What the loop would come to with these changes, whatever its mode.

    The policy starts from nothing: what the next tick keeps for a while (a consolidation that waits, replicas that
    are on their way out) is not what a question of this kind is after.
    """
    changed = _changed(snapshot, changes)
    state = without_silent_nodes(changed.state, silent_nodes(changed))
    demands = _demands(changed, changes)
    problem = make_problem(state, PlannedPoints().of(changed), demands, changed.settings, target=None)
    decision = await decide(
        solver,
        problem,
        state,
        observe(changed),
        settings=changed.settings,
        target=changed.target,
        memory=None,
        promises_may_break=False,
    )
    before = Plan(policy="none") if snapshot.target is None else anonymous(snapshot.target)
    return Preview(
        decision=decision,
        demands=demands,
        changes=diff(before, decision.plan),
        cost_before_usd_per_hour=_cost_now(snapshot, state),
    )


def _changed(snapshot: Snapshot, changes: Changes) -> Snapshot:
    services = {service.name: service for service in snapshot.state.services if service.name not in changes.without}
    services |= {service.name: service for service in changes.services}
    settings = snapshot.settings if changes.policy is None else replace(snapshot.settings, policy=changes.policy)
    return replace(
        snapshot,
        state=replace(snapshot.state, services=tuple(services[name] for name in sorted(services))),
        settings=settings,
    )


def _demands(snapshot: Snapshot, changes: Changes) -> tuple[Demand, ...]:
    return tuple(
        replace(
            demand,
            arrival_rate_rps=changes.demand_rps.get(demand.service, demand.arrival_rate_rps)
            * changes.demand_factor.get(demand.service, 1.0),
        )
        for demand in make_demands(snapshot)
    )


def _cost_now(snapshot: Snapshot, state: ClusterState) -> float | None:
    """The price of the target, also of services that the question leaves out."""
    if snapshot.target is None:
        return None
    everyone = replace(state, services=snapshot.state.services)
    points = PlannedPoints().of(snapshot)
    problem = make_problem(everyone, points, make_demands(snapshot), snapshot.settings, target=None)
    try:
        return cost_usd_per_hour(problem, anonymous(snapshot.target))
    except InvalidInput:
        return None
