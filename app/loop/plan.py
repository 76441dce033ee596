"""Plan: call the policy, check what it proposes, bind it to GPUs. Solver proposes, checker disposes."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.loop.planning.groups import PlanningRequest, ask
from app.loop.planning.language_models import llm_terms_of
from app.loop.planning.networks import describe_variants
from app.loop.planning.power_caps import holds_power, too_little, with_caps
from app.loop.planning.reschedule import AvoidedGpus, without_avoided
from app.loop.planning.survival import survival_messages
from app.solver.process import PlanAnswer, Solver, SolverUnavailable
from app.store.plan_rules import UNCHANGED
from app.store.plan_states import PlanState
from app.store.store import PlanRecord, PolicySettings, Snapshot
from solvers.check import violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.laws.operating_rows import OperatingRows
from solvers.policies.governor_parameters import GOVERNOR_PARAMETERS
from solvers.policies.registry import usable_parameters
from solvers.tick.bind import bind
from solvers.tick.transition import TransitionStep
from solvers.types.outcome import LeftSms, PlanReport, Violation
from solvers.types.parameters import Setting
from solvers.types.plan import (
    BoundPlan,
    GpuPlan,
    Plan,
    ReplicaPlan,
    anonymous,
    planned_rates_rps,
)
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, Json, Observed

WEIGHT_TOLERANCE = 0.05
"""A replica's routing weight may be off by this fraction before a plan that changes nothing else is pushed."""

RATE_TOLERANCE = 0.25
"""And a service's planned rate by this one: the target's rates are what holds when telemetry is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one tick decided, before anything is written."""

    state: PlanState
    plan: Plan
    report: PlanReport
    bound: BoundPlan | None = None
    steps: tuple[TransitionStep, ...] = ()
    """The way from the target to it."""
    violations: tuple[Violation, ...] = ()
    memory: Json = None
    group_memory: Mapping[str, Json] = field(default_factory=dict)
    """By group; of those whose policy was asked."""
    reason: str = ""
    unplaced: tuple[GpuPlan, ...] = ()
    """GPUs of the plan that found no place in the fleet: only cordoned and avoided ones were left."""
    refused_tasks: tuple[tuple[str, str], ...] = ()
    """(task, broken rule) of those that the checker left out."""


async def decide(
    solver: Solver,
    problem: Problem,
    state: ClusterState,
    observed: Observed,
    *,
    settings: PolicySettings,
    target: BoundPlan | None,
    memory: Json,
    group_memory: Mapping[str, Json] | None = None,
    avoided: AvoidedGpus | None = None,
    promises_may_break: bool,
) -> Decision:
    """The policies' checked and bound plan; else the current plan with the reason why it stays.

    avoided: by service; the problem has nothing of it running on GPUs where it fails.
    """
    question = PlanningRequest(
        problem=problem,
        observed=observed,
        settings=settings,
        services=state.services,
        memory=memory,
        group_memory=group_memory or {},
        left_sms=_left_sms(state, target),
    )
    try:
        answer = await ask(solver, question, question.budget)
    except SolverUnavailable as error:
        return keep(problem, target, reason=str(error), memory=memory)
    messages = describe_variants(problem, state.services, settings)
    return await check_and_bind(
        problem,
        state,
        replace(answer, report=_with_more(answer.report, messages)),
        settings=settings,
        target=target,
        memory=memory,
        avoided=avoided,
        promises_may_break=promises_may_break,
    )


def _left_sms(state: ClusterState, target: BoundPlan | None) -> LeftSms:
    """Services give back what they do not need as soon as a task waits, and leave it to tasks while there are any."""
    if not state.tasks:
        return "services"
    placed = {
        task.name for gpu in (target.gpus if target else ()) for task in gpu.tasks
    }
    return "free" if all(each.name in placed for each in state.tasks) else "tasks"


async def check_and_bind(
    problem: Problem,
    state: ClusterState,
    answer: PlanAnswer,
    *,
    settings: PolicySettings,
    target: BoundPlan | None,
    memory: Json,
    avoided: AvoidedGpus | None = None,
    promises_may_break: bool,
) -> Decision:
    """A policy's plan, checked and bound. `memory`: what is kept where the plan is refused."""
    broken = await check_plan(problem, answer.plan, governor=settings.governor)
    fatal = [
        entry
        for entry in broken
        if entry.severity == "physical" or not promises_may_break
    ]
    if fatal:
        return Decision(
            state="refused",
            plan=answer.plan,
            report=answer.report,
            violations=broken,
            memory=memory,
            reason=f"the checker refused it: {fatal[0].rule} at {fatal[0].where}: {fatal[0].detail}",
        )
    decision = await asyncio.to_thread(
        _bound,
        answer,
        problem,
        state,
        target,
        settings=settings,
        avoided=avoided or AvoidedGpus(),
    )
    return replace(decision, violations=broken)


async def check_plan(
    problem: Problem, plan: Plan, *, governor: str | None
) -> tuple[Violation, ...]:
    """The rules that the plan breaks, by the independent checker of `solvers.check`."""
    # Where a governor holds power, shares of the budget are caps that it keeps; a plan need not fit in it.
    checked = (
        replace(problem, power_budget_w=None) if holds_power(governor) else problem
    )
    # In a thread: it takes long on a large fleet, and the API's process, which checks plans too, has agents to answer.
    return await asyncio.to_thread(violations, checked, plan)


def _bound(
    answer: PlanAnswer,
    problem: Problem,
    state: ClusterState,
    target: BoundPlan | None,
    *,
    settings: PolicySettings,
    avoided: AvoidedGpus,
) -> Decision:
    # Generations only grow, so that agents can tell a stale command by its number.
    generation = 1 if target is None else target.generation + 1
    result = bind(
        problem,
        answer.plan,
        state.gpus,
        state.nodes,
        running=without_avoided(target, avoided),
        generation=generation,
        avoided=avoided.closed,
        llm_terms=llm_terms_of(state.services),
    )
    bound = replace(
        result.plan, governor=settings.governor, governor_tuning=_tuning(settings)
    )
    decision = Decision(
        state="proposed",
        plan=answer.plan,
        report=_with_more(answer.report, survival_messages(problem, bound, state)),
        bound=bound,
        steps=result.steps,
        memory=answer.memory,
        group_memory=answer.group_memory,
    )
    # Only cordoned and avoided GPUs can be missing here: the checker has counted the stock.
    if result.unplaced:
        missing = ", ".join(f"{gpu.count} × {gpu.gpu_type}" for gpu in result.unplaced)
        refused = _refused(decision, f"no free GPU for {missing} of the plan")
        return replace(refused, unplaced=result.unplaced)
    capped = with_caps(problem, bound, state.nodes)
    if capped is None:
        return _refused(decision, too_little(problem, bound, state.nodes))
    # Compared after the caps are known: a change of caps alone must reach the nodes.
    if target is not None and same_state(capped, target):
        return replace(decision, state="kept", bound=None, reason=UNCHANGED)
    return replace(decision, bound=capped)


def _refused(decision: Decision, reason: str) -> Decision:
    return replace(decision, state="refused", bound=None, reason=reason)


def keep(
    problem: Problem, target: BoundPlan | None, *, reason: str, memory: Json
) -> Decision:
    """The current plan stays; the report says why."""
    plan = Plan(policy="none") if target is None else anonymous(target)
    cost = cost_usd_per_hour(problem, _known(problem, plan))
    report = PlanReport(
        status="kept", cost_usd_per_hour=cost, method="keep", messages=(reason,)
    )
    return Decision(
        state="kept", plan=plan, report=report, memory=memory, reason=reason
    )


def renewed(snapshot: Snapshot, decision: Decision) -> Decision:
    """The decision; the target itself as a new proposal where it is kept, and nodes may follow what is unknown."""
    target = snapshot.target
    if not snapshot.must_renew or target is None or decision.state != "kept":
        return decision
    return again(decision, target, "nodes hold commands of unknown generations")


def again(decision: Decision, target: BoundPlan, reason: str) -> Decision:
    """The decision that keeps the target, with the target itself as a new proposal."""
    # Why nothing else was decided, as where no solver answers.
    why = "" if decision.reason == UNCHANGED else decision.reason
    bound = replace(target, generation=target.generation + 1, parent=target.generation)
    return replace(
        decision,
        state="proposed",
        bound=bound,
        reason="; ".join(filter(None, (why, f"the same plan again: {reason}"))),
    )


def make_record(
    snapshot: Snapshot,
    decision: Decision,
    demands: tuple[Demand, ...],
    problem: Problem | None,
) -> PlanRecord:
    """The decision as it is written down."""
    return PlanRecord(
        at=snapshot.at,
        state=decision.state,
        policy_version=snapshot.settings.version,
        catalogue_revision=snapshot.state.catalogue_revision,
        plan=decision.plan,
        report=decision.report,
        bound=decision.bound,
        demands=demands,
        problem=problem,
        violations=decision.violations,
        reason=decision.reason,
    )


def new_memory(snapshot: Snapshot, decision: Decision) -> Mapping[str, Json]:
    """What policies want to remember, where it is not what they remembered."""
    memory = {}
    if decision.memory != snapshot.memory:
        memory[snapshot.settings.policy] = decision.memory
    for group in snapshot.settings.groups:
        before = snapshot.group_memory.get(group.name)
        after = decision.group_memory.get(group.name, before)
        if after != before:
            memory[group.memory_key] = after
    return memory


def with_messages(decision: Decision, messages: Sequence[str]) -> Decision:
    """The decision with more to say in its report."""
    return replace(decision, report=_with_more(decision.report, messages))


def _with_more(report: PlanReport, messages: Sequence[str]) -> PlanReport:
    return replace(report, messages=(*report.messages, *messages))


def _known(problem: Problem, plan: Plan) -> Plan:
    """The part of the plan that can be priced: services, GPU types and rows may have gone since it was made."""
    rows = OperatingRows(problem)
    services = {service.name: service.network for service in problem.services}
    # A price for what is gone does not exist, and the loop must not fail for the sake of a figure.
    types = {gpu_type.name for gpu_type in problem.gpu_types}

    def is_known(gpu: GpuPlan, replica: ReplicaPlan) -> bool:
        network = services.get(replica.service)
        row = (replica.sm_percent, replica.batch, gpu.clock_mhz)
        return network is not None and bool(rows.find(network, gpu.gpu_type, row))

    gpus = (
        replace(
            gpu, replicas=tuple(each for each in gpu.replicas if is_known(gpu, each))
        )
        for gpu in plan.gpus
        if gpu.gpu_type in types
    )
    models = (each for each in plan.llm_replicas if problem.llm_row(each))
    return replace(plan, gpus=tuple(gpus), llm_replicas=tuple(models))


def _tuning(settings: PolicySettings) -> tuple[tuple[str, Setting], ...]:
    """What operators changed of the governor, if it has parameters."""
    name = settings.governor or ""
    if name not in GOVERNOR_PARAMETERS:
        return ()
    parameters, _ = usable_parameters(name, settings.parameters.get(name, {}))
    return tuple(sorted(parameters.changed.items()))


def same_state(new: BoundPlan, old: BoundPlan) -> bool:
    """Whether both plans want the same replicas, settings and governor, and nearly the same weights and rates.

    How much of a short service's rate stays unserved moves with the demand and alone pushes nothing.
    """
    return (
        _shape(new) == _shape(old)
        and new.governing == old.governing
        and _shortages(new) == _shortages(old)
        and _close(_weights(new), _weights(old), WEIGHT_TOLERANCE)
        and _close(planned_rates_rps(new), planned_rates_rps(old), RATE_TOLERANCE)
    )


def _close(
    new: Mapping[str, float], old: Mapping[str, float], tolerance: float
) -> bool:
    return all(
        # Relative to the larger of the two, so that both directions are judged alike.
        abs(value - old[key]) <= tolerance * max(value, old[key])
        for key, value in new.items()
    )


def _shortages(plan: BoundPlan) -> frozenset[tuple[str, int]]:
    return frozenset((entry.service, entry.replicas_missing) for entry in plan.unserved)


def _shape(plan: BoundPlan) -> frozenset[tuple[object, ...]]:
    return frozenset(
        (
            gpu.id,
            gpu.clock_mhz,
            gpu.power_cap_w,
            replica.id,
            replica.sm_percent,
            replica.batch,
        )
        for gpu in plan.gpus
        for replica in gpu.replicas
    )


def _weights(plan: BoundPlan) -> dict[str, float]:
    """Each replica's share of its service's planned rate; equal shares where the plan routes nothing."""
    replicas = [replica for gpu in plan.gpus for replica in gpu.replicas]
    totals = planned_rates_rps(plan)
    counts = Counter(replica.service for replica in replicas)
    return {
        replica.id: replica.arrival_rate_rps / totals[replica.service]
        if totals[replica.service] > 0
        else 1.0 / counts[replica.service]
        for replica in replicas
    }
