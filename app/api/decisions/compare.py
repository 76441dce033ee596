"""Policies side by side on the live state. Nothing is written but a line in the audit."""

import asyncio
from dataclasses import replace
from typing import Annotated

from pydantic import Field, StringConstraints

from app.answers.compare_policies import compare_policies, present_problem
from app.api.http.answers import problems
from app.api.http.auth import ClusterOperator
from app.api.http.body import resource_router
from app.api.http.known_names import check_known
from app.api.http.views import View
from app.db.decisions import actors
from app.loop.planning.llm_rows import SizedModels
from app.manifests.parts import Strict
from app.store.trained_actors import fleet_fingerprint
from solvers.policies.cards import in_order
from solvers.policies.registry import needs_actor
from solvers.policies.registry import policies as known_policies
from solvers.types.outcome import Budget, Solution

router = resource_router("plans", prefix="/plans")

PolicyWord = Annotated[str, StringConstraints(max_length=63)]


class CompareRequest(Strict):
    """Which policies shall plan the same problem."""

    policies: list[PolicyWord] = Field(
        default_factory=list, max_length=50, description="Empty: all policies"
    )
    time_limit_s: float = Field(
        default=30.0,
        ge=0.1,
        le=60.0,
        description="How long all plans may take together",
    )


class PolicyPlanView(View):
    """What the plan of one policy comes to."""

    policy: str
    solution: Solution | None = Field(
        description="How good the policy says that its plan is; null: it stayed with what runs, or has none"
    )
    reason: str = Field(description="Why there is none")
    cost_usd_per_hour: float | None
    lower_bound_usd_per_hour: float | None
    gpus: int
    gpus_by_type: dict[str, int]
    replicas: int
    starts: int = Field(description="Replicas that are not yet running")
    unserved_percent: float = Field(description="Of Σ priority · arrival rate")
    worst_slack_percent: float | None = Field(
        description="Room of the fullest replica within its SLO, in percent of what it may carry; below 0: it is "
        "overloaded; null: nothing runs"
    )
    worst_service: str = Field(description="Whose replica that is")
    violations: int = Field(description="Rules that the plan breaks")
    first_violation: str
    seconds: float


class CompareView(View):
    """The policies side by side."""

    in_force: str = Field(description="The policy in force")
    policies: list[PolicyPlanView] = Field(
        description="In the order of the request; all of them: the main ones first"
    )


@router.post("/compare", responses=problems(400, 413, 415))
async def compare_plans(
    context: ClusterOperator, wanted: CompareRequest
) -> CompareView:
    """What each policy would make of what runs and of the present rates.

    One of these or of the previews at a time; another one waits some seconds for its turn, else 429.
    """
    check_known(wanted.policies, known_policies(), what="policy", field="policies")
    # Each once, in the order of the request.
    names = tuple(dict.fromkeys(wanted.policies)) or in_order(known_policies())
    # The same turn as previews: each occupies a core, and the machine may have only one.
    async with context.parts.solver_turn.taken(context.caller.root):
        snapshot = await SizedModels().sized(
            context.parts.solver, await context.snapshot()
        )
        # In a thread: the problem of a large fleet takes a while, for which the server must not wait.
        problem, observed = await asyncio.to_thread(present_problem, snapshot)
        # Weights are large, and read only where one of the policies was trained.
        if any(map(needs_actor, names)):
            async with context.transaction() as connection:
                weights = await actors.load_newest(
                    connection, fleet_fingerprint(snapshot.state)
                )
            observed = replace(observed, actor=weights)
        settings = snapshot.settings
        budget = Budget(
            seconds=wanted.time_limit_s,
            work=settings.solve_work,
            seed=settings.seed,
            stability=settings.stability,
        )
        found = await compare_policies(
            context.parts.solver,
            problem,
            observed,
            names,
            budget,
            parameters=settings.parameters,
        )
    async with context.transaction() as connection:
        await context.audit(
            connection,
            "PoliciesCompared",
            "plan/compare",
            before={"policies": list(names)},
        )
    return CompareView(
        in_force=settings.policy,
        policies=[PolicyPlanView.model_validate(one) for one in found],
    )
