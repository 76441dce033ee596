"""Restore: an earlier plan, bound again to the fleet as it is. It goes every plan's way: checked, recorded, pushed.

What was in force is taken as it was: GPUs, SM percents, batches, clocks and rates. Physical rules decide whether it may
be in force again; promises that it cannot keep today are said to the person who asks, and are theirs to weigh.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.loop.fill import with_tasks_of
from app.loop.forecast import make_demands
from app.loop.leftovers import ModelsApart
from app.loop.make_problem import PlannedPoints, make_problem
from app.loop.observe import usable_state
from app.loop.plan import Decision, check_and_bind, check_plan, make_record
from app.solver.process import PlanAnswer
from app.store.store import PlanRecord, Snapshot
from solvers.laws.cost import cost_usd_per_hour
from solvers.predict.data.samples import LayerCounts
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundPlan, Plan, anonymous
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came of it; nothing is written yet."""

    decision: Decision
    """Proposed, kept (nothing would change) or refused, with the reason."""
    problem: Problem
    demands: tuple[Demand, ...]

    def record(self, snapshot: Snapshot, reason: str) -> PlanRecord:
        """As it is written down: approved, since a person asks for it."""
        decision = replace(self.decision, state="approved", reason=reason)
        return make_record(snapshot, decision, self.demands, self.problem)


async def restore(
    snapshot: Snapshot, earlier: BoundPlan, *, layers: Sequence[LayerCounts] = ()
) -> Restored:
    """The earlier plan on the present fleet, with the tasks of now on what it leaves over."""
    state = usable_state(snapshot)
    # Demands are recorded with the plan, though the plan is not made from them: they show what it would leave unserved.
    demands = make_demands(snapshot)
    problem = await asyncio.to_thread(_problem, snapshot, state, demands)
    decision = await _decide(snapshot, state, problem, _plan(earlier, problem))
    apart = ModelsApart(snapshot, decision, state)
    filled = await asyncio.to_thread(
        with_tasks_of,
        replace(snapshot, target=apart.target),
        apart.decision,
        problem,
        apart.state,
        layers=layers,
        promises_may_break=True,
    )
    decision = apart.again(filled)
    return Restored(decision=decision, problem=problem, demands=demands)


def _problem(
    snapshot: Snapshot, state: ClusterState, demands: tuple[Demand, ...]
) -> Problem:
    # Not the loop's own PlannedPoints: this runs in the API's process.
    points = PlannedPoints().of(snapshot)
    return make_problem(
        state,
        points,
        demands,
        snapshot.settings,
        target=snapshot.target,
        at=snapshot.at,
        llm_points=snapshot.llm_points,
    )


def _plan(earlier: BoundPlan, problem: Problem) -> Plan:
    """Without what it left unserved of services that are gone."""
    names = {service.name for service in problem.all_services}
    plan = anonymous(earlier)
    return replace(
        plan, unserved=tuple(entry for entry in plan.unserved if entry.service in names)
    )


async def _decide(
    snapshot: Snapshot, state: ClusterState, problem: Problem, plan: Plan
) -> Decision:
    broken = await check_plan(problem, plan, governor=snapshot.settings.governor)
    physical = [entry for entry in broken if entry.severity == "physical"]
    if physical:
        # A rule is broken once per GPU or replica; five different sentences are as many as a person reads.
        details = dict.fromkeys(entry.detail for entry in physical)
        # The problem may have no price for what is gone: the cost is unknown, and 0 stands for it.
        report = PlanReport(status="kept", cost_usd_per_hour=0.0, method="restore")
        return Decision(
            state="refused",
            plan=plan,
            report=report,
            violations=broken,
            reason="; ".join([*details][:5]),
        )
    cost = cost_usd_per_hour(problem, plan)
    return await check_and_bind(
        problem,
        state,
        PlanAnswer(
            plan=plan,
            report=PlanReport(
                status="feasible", cost_usd_per_hour=cost, method="restore"
            ),
            memory=None,
        ),
        settings=snapshot.settings,
        target=snapshot.target,
        memory=None,
        promises_may_break=True,
    )
