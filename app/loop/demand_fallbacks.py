"""Deciding where GPUs are short: with everything first, then without room for losses, reserves, and headroom.

Draining nodes, nodes that come and go, and GPUs on which launches fail are done without, unless something would be
left out for it. Each attempt does without cordoned GPUs where there is no place for them.
"""

import asyncio
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from app.loop.forecast import without_headroom, without_reserves
from app.loop.make_problem import cordoned_gpus, make_problem
from app.loop.observe import observe, usable_state
from app.loop.plan import Decision, decide, with_messages
from app.loop.planning.draining import draining_nodes
from app.loop.planning.reschedule import (
    AvoidedGpus,
    avoided_gpus,
    cordoned,
    with_shared_cordons,
    without_avoided,
    without_starts_on,
)
from app.loop.planning.survival import Limited
from app.loop.planning.tolerance import Tolerated, describe_held, with_tolerance
from app.loop.waking import waking_services
from app.solver.process import Solver
from app.store.store import Snapshot
from solvers.types.llm import LlmDemand
from solvers.types.plan import WANT_OF_GPUS, BoundPlan, Plan
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import ClusterState, Demand, Observed


class DecidedOn(NamedTuple):
    """A decision with the problem and the demands on which it was made in the end."""

    problem: Problem
    decision: Decision
    demands: tuple[Demand, ...]
    state: ClusterState
    """GPUs that were not to be used are not healthy there."""
    without_place: frozenset[str] = frozenset()
    """Services for which a plan found no GPU that they do not avoid; another plan may leave others unserved instead."""


async def decide_with_fallbacks(
    solver: Solver,
    snapshot: Snapshot,
    demands: tuple[Demand, ...],
    *,
    points: tuple[OperatingPoints, ...],
    promises_may_break: bool,
) -> DecidedOn:
    """What is decided without silent and draining nodes, starts on nodes that come and go, and avoided GPUs.

    Draining nodes serve on until their deadline where others cannot; then nodes that come and go are started on; after
    that, what failed stays where it is.
    """

    # Once for all attempts, and in a thread: it goes through the windows of all services.
    observed = await asyncio.to_thread(_observed, snapshot)
    decide_for = partial(
        _decide_for,
        solver,
        snapshot,
        observed=observed,
        demands=demands,
        points=points,
        promises_may_break=promises_may_break,
    )
    avoided = avoided_gpus(snapshot)
    first, *patient = _fleets(snapshot, avoided)
    best = _Attempt(first, await decide_for(first))

    async def improve(best: _Attempt, fleets: Sequence[_Fleet]) -> _Attempt:
        for fleet in fleets:
            if not _is_short(best.outcome.decision):
                break
            relaxed = await decide_for(fleet)
            # Where it would not help, nothing waits, and nothing stays where it fails.
            if _shortage(relaxed.decision) < _shortage(best.outcome.decision):
                best = _Attempt(fleet, relaxed)
        return best

    # At most seven fleets, each with at most three demands and two problems; nearly always one of each.
    best = await improve(best, patient)
    best = await improve(best, _with_some_avoided(best))
    if avoided.closed:
        best = await improve(best, _fleets(snapshot, AvoidedGpus()))
    messages = _describe(snapshot, best.fleet, strictest=first)
    decision = with_messages(best.outcome.decision, messages)
    return best.outcome._replace(decision=decision)


class _Fleet(NamedTuple):
    """What a plan may use."""

    state: ClusterState
    avoided: AvoidedGpus


class _Attempt(NamedTuple):
    """What was decided for a fleet."""

    fleet: _Fleet
    outcome: DecidedOn


def _fleets(snapshot: Snapshot, avoided: AvoidedGpus) -> list[_Fleet]:
    """Without draining nodes, with them, and with starts on nodes that come and go; mostly all of them are one."""
    patient = usable_state(snapshot, is_patient=True)
    states = [without_starts_on(usable_state(snapshot), snapshot.flapping)]
    # What a draining node serves is there already; what starts on a node that falls silent again is lost.
    for state in (without_starts_on(patient, snapshot.flapping), patient):
        if state != states[-1]:
            states.append(state)
    return [_Fleet(state, avoided) for state in states]


def _with_some_avoided(best: _Attempt) -> list[_Fleet]:
    """The fleet where only services that have other places avoid GPUs; none where that changes nothing."""
    # One service without another place must not keep the others where they fail.
    unserved = {entry.service for entry in best.outcome.decision.plan.unserved}
    short = best.outcome.without_place or unserved
    some = best.fleet.avoided.without(short)
    is_between = some.closed and some != best.fleet.avoided
    return [best.fleet._replace(avoided=some)] if is_between else []


def _describe(
    snapshot: Snapshot, chosen: _Fleet, *, strictest: _Fleet
) -> Sequence[str]:
    """What the plan's report says of GPUs that it should have done without, and of those that it did without."""
    messages = []
    if any(
        gpu.healthy and not strict.healthy
        for gpu, strict in zip(chosen.state.gpus, strictest.state.gpus, strict=True)
    ):
        nodes = ", ".join(draining_nodes(snapshot))
        messages.append(
            f"draining waits for room on other nodes, at most until the deadline: {nodes}"
        )
    opened = {
        gpu.node
        for gpu, strict in zip(chosen.state.gpus, strictest.state.gpus, strict=True)
        if strict.cordoned and not gpu.cordoned
    }
    if opened:
        messages.append(
            f"replicas may start on unstable nodes, as there is too little room without them: "
            f"{', '.join(sorted(opened))}"
        )
    for service, closed in sorted(strictest.avoided.closed.items()):
        gpus = ", ".join(sorted(closed))
        messages.append(
            f"{service}: its launches fail; it avoids {gpus}"
            if service in chosen.avoided.closed
            else f"{service}: its launches fail; it may still start on {gpus}, as there is too little room without them"
        )
    messages += (
        f"task {task.name}: its launches fail; it avoids {', '.join(sorted(task.avoided_gpus))}"
        for task in chosen.state.tasks
        if task.avoided_gpus
    )
    return messages


async def _decide_for(
    solver: Solver,
    snapshot: Snapshot,
    fleet: _Fleet,
    *,
    observed: Observed,
    demands: tuple[Demand, ...],
    points: tuple[OperatingPoints, ...],
    promises_may_break: bool,
) -> DecidedOn:
    """What is decided on which problem and demands.

    Where GPUs are short it is decided again, without limits for losses, then without reserves, then without headroom:
    what is kept for losses or bursts must not take room from what is there, nor one service's headroom what another
    will need.
    """

    async def decide_on(
        demands: tuple[Demand, ...], *, limited: Limited = "nobody"
    ) -> DecidedOn:
        """Cordoned GPUs are left out only where a plan with them finds no place: what runs there may run on."""
        avoided = fleet.avoided
        state = with_shared_cordons(fleet.state, avoided)
        without_place: set[str] = set()
        for without_cordoned in (False, True):
            # The problem knows GPU types alone: where a plan finds no place, avoided GPUs are none for anybody.
            if without_cordoned:
                state = cordoned(state, frozenset().union(*avoided.closed.values()))
            made_for = _MadeFor(
                state,
                points,
                without_avoided(snapshot.target, avoided),
                without_cordoned,
                limited,
            )
            problem, planned, held = await asyncio.to_thread(
                _problem_for, snapshot, made_for, demands
            )
            decision = await decide(
                solver,
                problem,
                state,
                observed,
                settings=snapshot.settings,
                target=snapshot.target,
                memory=snapshot.memory,
                group_memory=snapshot.group_memory,
                avoided=avoided,
                promises_may_break=promises_may_break,
            )
            without_place |= {
                each.service for gpu in decision.unplaced for each in gpu.replicas
            }
            if not (decision.unplaced and (avoided.closed or cordoned_gpus(state))):
                break
        decision = with_messages(decision, describe_held(held))
        return DecidedOn(problem, decision, planned, state, frozenset(without_place))

    outcome = await decide_on(demands, limited="all")
    # To serve comes before to survive: replicas for losses go before anything that is asked for today. Those of
    # language models go first, which are whole GPUs: what one of them lacks is no reason for others not to survive.
    if _has_limits(outcome.problem.llm_services) and _is_short(outcome.decision):
        outcome = await decide_on(demands, limited="all but models")
    if _has_limits(outcome.problem.services) and _is_short(outcome.decision):
        outcome = await decide_on(demands)
    # Reserves go next: they are for bursts that may never come.
    if givers := _reserve_givers(outcome.decision, demands):
        outcome = await decide_on(without_reserves(demands, givers))
    # Headroom goes last: it is for the load that is forecast.
    if _lacks_foreseen(outcome.decision.plan, outcome.demands):
        outcome = await decide_on(without_headroom(outcome.demands))
    return outcome


def _observed(snapshot: Snapshot) -> Observed:
    return replace(observe(snapshot), waking=waking_services(snapshot))


class _MadeFor(NamedTuple):
    """What a problem is made of, but for the demands."""

    state: ClusterState
    points: tuple[OperatingPoints, ...]
    target: BoundPlan | None
    without_cordoned: bool
    limited: Limited


def _problem_for(
    snapshot: Snapshot, made_for: _MadeFor, demands: tuple[Demand, ...]
) -> Tolerated:
    """The problem, in which nothing is asked for that what runs nearly carries."""
    problem = make_problem(
        made_for.state,
        made_for.points,
        demands,
        snapshot.settings,
        target=made_for.target,
        without_cordoned=made_for.without_cordoned,
        limited=made_for.limited,
        at=snapshot.at,
        llm_points=snapshot.llm_points,
    )
    services = made_for.state.services
    return with_tolerance(problem, demands, services, snapshot.settings)


def _has_limits(
    services: Iterable[ServiceDemand | LlmDemand],
) -> bool:
    """Whether any of them is limited for losses."""
    return any(each.max_replica_rps for each in services)


def _reserve_givers(decision: Decision, demands: tuple[Demand, ...]) -> Set[str]:
    """Services that should be planned without their reserves: all where GPUs are short.

    Where a service's own SLO or limit of replicas leaves its demand unserved, the others keep theirs.
    """
    holders = {demand.service for demand in demands if demand.reserve_rps}
    if _is_short(decision):
        return holders
    return holders & {entry.service for entry in decision.plan.unserved}


def unserved_rps(plan: Plan) -> float:
    """All that a plan leaves out."""
    return sum(entry.rate_rps for entry in plan.unserved)


def _is_short(decision: Decision) -> bool:
    """Whether something is left out for want of GPUs."""
    return bool(decision.unplaced) or any(
        entry.reason in WANT_OF_GPUS for entry in decision.plan.unserved
    )


def _shortage(decision: Decision) -> tuple[bool, float, int]:
    """Orders decisions by what they leave out: rates first, then replicas that get no requests yet."""
    missing = sum(entry.replicas_missing for entry in decision.plan.unserved)
    return bool(decision.unplaced), unserved_rps(decision.plan), missing


def _lacks_foreseen(plan: Plan, demands: tuple[Demand, ...]) -> bool:
    """Whether a plan leaves out more than headroom for want of GPUs, and there is headroom to give."""
    headroom_rps = {demand.service: demand.headroom_rps for demand in demands}
    return any(headroom_rps.values()) and any(
        entry.reason in WANT_OF_GPUS
        and entry.rate_rps > headroom_rps.get(entry.service, 0.0)
        for entry in plan.unserved
    )
