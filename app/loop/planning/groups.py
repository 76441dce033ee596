"""Groups of services: each is planned by its own policy (`solvers.policies.grouping`), in one request after the other.

Without groups this is one request, as it ever was.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.solver.process import PlanAnswer, PlanRequest, Solver, SolverUnavailable
from app.store.store import PolicySettings
from solvers.policies.grouping import OTHERS, GroupPlan, PlanGroup, merged, part_problem
from solvers.types.outcome import Budget, LeftSms
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed, Service


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRequest:
    """What is to be planned, and what the policies remember."""

    problem: Problem
    observed: Observed
    settings: PolicySettings
    services: Sequence[Service]
    """As their teams submitted them: of which group each is."""
    memory: Json = None
    group_memory: Mapping[str, Json] = field(default_factory=dict)
    """By group."""
    left_sms: LeftSms = "free"

    @property
    def budget(self) -> Budget:
        """What solving the entire plan may take, by the settings."""
        settings = self.settings
        return Budget(
            seconds=settings.solve_seconds,
            work=settings.solve_work,
            seed=settings.seed,
            stability=settings.stability,
            left_sms=self.left_sms,
        )


async def ask(solver: Solver, question: PlanningRequest, budget: Budget) -> PlanAnswer:
    """The plan of the whole problem. Raises SolverUnavailable, which names the group whose policy failed.

    Groups share the seconds evenly. One that its own and the free GPUs do not serve is planned a second time, with
    those that later groups run on.
    """
    parts = parts_of(question.problem, question.settings, question.services)
    if not question.settings.groups:
        policy = question.settings.policy
        return await solver.make_plan(
            _request(policy, question, question.problem, question.memory, budget)
        )
    # Solved in turn, all groups together must not take longer than one policy may.
    share = replace(budget, seconds=budget.seconds / max(1, len(parts)))
    decided: list[GroupPlan] = []
    memories: dict[str, Json] = {}
    # In order: what earlier groups took is gone for later ones.
    for place, part in enumerate(parts):
        answer = await _ask_part(
            solver, question, parts[place:], [one.plan for one in decided], share
        )
        decided.append(GroupPlan(part=part, plan=answer.plan, report=answer.report))
        memories[part.group] = answer.memory
    plan, report = merged(question.problem, question.settings.planner, decided)
    # Services of no group are planned by the cluster's own policy, whose memory is kept apart from those of groups.
    memory = memories.pop(OTHERS, question.memory)
    return PlanAnswer(plan=plan, report=report, memory=memory, group_memory=memories)


def parts_of(
    problem: Problem, settings: PolicySettings, services: Sequence[Service]
) -> tuple[PlanGroup, ...]:
    """The groups that have services in the problem, in their order; what is of none comes last."""
    group_of = {service.name: settings.group_of(service) for service in services}
    chosen = {each.name: group_of.get(each.name) for each in problem.all_services}
    groups = [
        PlanGroup(
            group=group.name,
            policy=group.policy,
            services=frozenset(
                name
                for name, own in chosen.items()
                if own is not None and own.name == group.name
            ),
        )
        for group in settings.groups
    ]
    rest = frozenset(name for name, own in chosen.items() if own is None)
    return tuple(
        part
        for part in (
            *groups,
            PlanGroup(group=OTHERS, policy=settings.policy, services=rest),
        )
        if part.services
    )


async def _ask_part(
    solver: Solver,
    question: PlanningRequest,
    undecided: Sequence[PlanGroup],
    before: Sequence[Plan],
    budget: Budget,
) -> PlanAnswer:
    """The answer for the first of the groups that are not decided."""
    part, *later = undecided
    memory = (
        question.memory
        if part.group == OTHERS
        else question.group_memory.get(part.group)
    )
    answer: PlanAnswer | None = None
    # The second problem has the GPUs of later groups, which is a last resort for the group.
    for problem in _problems(question.problem, part, later, before):
        try:
            answer = await solver.make_plan(
                _request(part.policy, question, problem, memory, budget)
            )
        except SolverUnavailable as error:
            raise SolverUnavailable(f"group {part.group}: {error}") from error
        if not answer.plan.unserved:
            break
    assert answer is not None, "there is a problem to plan"
    return answer


def _problems(
    problem: Problem,
    part: PlanGroup,
    later: Sequence[PlanGroup],
    before: Sequence[Plan],
) -> Iterator[Problem]:
    """That of the part without the GPUs that later ones run on; then with them, where that is any more."""
    others = frozenset(name for one in later for name in one.services)
    first = part_problem(problem, part.services, before=before, leaving=others)
    yield first
    second = part_problem(problem, part.services, before=before)
    # The same stock would give the same answer, at the price of another solve.
    if second.gpu_types != first.gpu_types:
        yield second


def _request(
    policy: str,
    question: PlanningRequest,
    problem: Problem,
    memory: Json,
    budget: Budget,
) -> PlanRequest:
    return PlanRequest(
        policy=policy,
        problem=problem,
        observed=question.observed,
        memory=memory,
        budget=budget,
        parameters=question.settings.parameters.get(policy, {}),
    )
