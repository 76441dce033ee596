"""Deciding where GPUs are short: with everything first, then without reserves, then without headroom.

Draining nodes are done without, unless something would be left out for it before their deadline.
Each attempt does without cordoned GPUs where there is no place for them.
"""

import asyncio
from typing import NamedTuple

from app.loop.forecast import without_headroom, without_reserves
from app.loop.make_problem import cordoned_gpus, make_problem
from app.loop.observe import draining_nodes, observe, usable_state
from app.loop.plan import Decision, decide, with_messages
from app.solver.process import Solver
from app.store.store import Snapshot
from solvers.types.plan import WANT_OF_GPUS, Plan
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import ClusterState, Demand


class DecidedOn(NamedTuple):
    """A decision with the problem and the demands on which it was made in the end."""

    problem: Problem
    decision: Decision
    demands: tuple[Demand, ...]
    state: ClusterState
    """GPUs that were not to be used are not healthy there."""


async def decide_with_fallbacks(
    solver: Solver,
    snapshot: Snapshot,
    demands: tuple[Demand, ...],
    *,
    points: tuple[OperatingPoints, ...],
    promises_may_break: bool,
) -> DecidedOn:
    """What is decided without silent and draining nodes; these serve on until their deadline where others cannot."""

    async def decide_for(state: ClusterState) -> DecidedOn:
        return await _decide_for(
            solver,
            snapshot,
            state,
            demands,
            points=points,
            promises_may_break=promises_may_break,
        )

    outcome = await decide_for(usable_state(snapshot))
    patient = usable_state(snapshot, is_patient=True)
    if patient == outcome.state or not _lacks_gpus(outcome.decision.plan):
        return outcome
    waits = await decide_for(patient)
    # Where the draining nodes would not help, they need not wait.
    if unserved_rps(waits.decision.plan) >= unserved_rps(outcome.decision.plan):
        return outcome
    nodes = ", ".join(draining_nodes(snapshot))
    message = f"draining waits for room elsewhere, at most until its deadline: {nodes}"
    return waits._replace(decision=with_messages(waits.decision, [message]))


async def _decide_for(
    solver: Solver,
    snapshot: Snapshot,
    state: ClusterState,
    demands: tuple[Demand, ...],
    *,
    points: tuple[OperatingPoints, ...],
    promises_may_break: bool,
) -> DecidedOn:
    """What is decided on which problem and demands; where GPUs are short without reserves, and then without headroom.

    What is kept for bursts must not take room from what is there, nor one service's headroom what another will need.
    """

    async def decide_on(demands: tuple[Demand, ...]) -> DecidedOn:
        """Cordoned GPUs are left out only where a plan with them finds no place: what runs there may run on."""
        for without_cordoned in (False, True):
            problem = await asyncio.to_thread(
                make_problem,
                state,
                points,
                demands,
                snapshot.settings,
                target=snapshot.target,
                without_cordoned=without_cordoned,
                at=snapshot.at,
            )
            decision = await decide(
                solver,
                problem,
                state,
                observe(snapshot),
                settings=snapshot.settings,
                target=snapshot.target,
                memory=snapshot.memory,
                group_memory=snapshot.group_memory,
                promises_may_break=promises_may_break,
            )
            if not (decision.is_without_place and cordoned_gpus(state)):
                break
        return DecidedOn(problem, decision, demands, state)

    outcome = await decide_on(demands)
    # Reserves go first: they are for bursts that may never come.
    if outcome.decision.plan.unserved and any(demand.reserve_rps for demand in demands):
        outcome = await decide_on(without_reserves(demands))
    # Headroom goes last: it is for the load that is forecast.
    if _lacks_foreseen(outcome.decision.plan, outcome.demands):
        outcome = await decide_on(without_headroom(outcome.demands))
    return outcome


def unserved_rps(plan: Plan) -> float:
    """All that a plan leaves out."""
    return sum(entry.rate_rps for entry in plan.unserved)


def _lacks_gpus(plan: Plan) -> bool:
    """Whether a plan leaves something out for want of GPUs."""
    return any(entry.reason in WANT_OF_GPUS for entry in plan.unserved)


def _lacks_foreseen(plan: Plan, demands: tuple[Demand, ...]) -> bool:
    """Whether a plan leaves out more than headroom for want of GPUs, and there is headroom to give."""
    headroom_rps = {demand.service: demand.headroom_rps for demand in demands}
    return any(headroom_rps.values()) and any(
        entry.reason in WANT_OF_GPUS
        and entry.rate_rps > headroom_rps.get(entry.service, 0.0)
        for entry in plan.unserved
    )
