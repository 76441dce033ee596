"""Policies side by side on the live state. Nothing is written but a line in the audit."""

from dataclasses import replace

from app.api.answers import problems
from app.api.auth import ClusterOperator
from app.api.body import resource_router
from app.api.compare_schemas import CompareRequest, CompareView, PolicyPlanView
from app.api.conversions import check_known
from app.control.actors import POLICIES, fleet_fingerprint
from app.control.compare_policies import compare_policies, present_problem
from app.db import actors
from app.errors import Unavailable
from solvers.outcome import Budget
from solvers.policies import policies as known_policies

router = resource_router("plans", prefix="/plans")


@router.post("/compare", responses=problems(400, 413, 415))
async def compare_plans(context: ClusterOperator, wanted: CompareRequest) -> CompareView:
    """What each policy would make of what runs and of the present rates.

    One of these or of the previews at a time, else 503.
    """
    check_known(wanted.policies, known_policies(), what="policy", field="policies")
    names = tuple(dict.fromkeys(wanted.policies)) or known_policies()
    if context.parts.preview_turn.locked():
        raise Unavailable("a preview runs; repeat this in a moment")
    async with context.parts.preview_turn:
        snapshot = await context.snapshot()
        problem, observed = present_problem(snapshot)
        if not POLICIES.isdisjoint(names):
            async with context.transaction() as connection:
                weights = await actors.load_newest(connection, fleet_fingerprint(snapshot.state))
            observed = replace(observed, actor=weights)
        settings = snapshot.settings
        budget = Budget(
            seconds=wanted.time_limit_s, work=settings.solve_work, seed=settings.seed, stability=settings.stability
        )
        found = await compare_policies(context.parts.solver, problem, observed, names, budget)
    async with context.transaction() as connection:
        await context.audit(connection, "PoliciesCompared", "plan/compare", before={"policies": list(names)})
    return CompareView(in_force=settings.policy, policies=[PolicyPlanView.model_validate(one) for one in found])
