"""Groups: which problem each policy gets, what the merged plan says, and what no group may do to another."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.laws.cost import cost_usd_per_hour
from solvers.policies.grouping import METHOD, GroupPlan, PlanGroup, merged, part_problem
from solvers.policies.registry import policy
from solvers.types.llm import LlmReplicaPlan
from solvers.types.outcome import Budget, PlanReport, SolveReport, SolveStatus
from solvers.types.plan import GpuPlan, Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.examples import examples
from tests.solvers.instances import (
    a_problem,
    a_service,
    a_type,
    gpu_plan,
    random_problem,
    replica_on,
)
from tests.solvers.llm.models import (
    CLOCK_MHZ,
    make_points,
    make_problem,
    make_service,
    make_type,
)

QUICK = Budget(seconds=10.0, work=0.2)


def a_gpu(
    *services: str, count: int = 1, gpu_type: str = "gpu", rate_rps: float = 40.0
) -> GpuPlan:
    """Halves of a GPU: each may carry 50 rps."""
    replicas = [replica_on(name, 50.0, rate_rps) for name in services]
    return gpu_plan(*replicas, gpu_type=gpu_type, count=count)


def a_plan(*gpus: GpuPlan, unserved: tuple[Unserved, ...] = ()) -> Plan:
    return Plan(policy="test", gpus=gpus, unserved=unserved)


def three(
    *, count: int | None = 5, current: Plan | None = None, **changes: object
) -> Problem:
    """Services a, b and c on GPUs of one type."""
    services = [a_service(name, rate_rps=40.0) for name in "abc"]
    return a_problem(
        *services, types=(a_type(count=count),), current=current, **changes
    )


def stock(problem: Problem) -> int | None:
    return problem.gpu_types[0].count


def test_a_part_has_its_own_services_and_what_no_plan_before_it_uses() -> None:
    part = part_problem(three(), {"b", "c"}, before=[a_plan(a_gpu("a", count=2))])
    assert [service.name for service in part.services] == ["b", "c"]
    assert stock(part) == 3


def test_gpus_that_later_groups_run_on_are_left_to_them() -> None:
    # Of five: one runs b alone, one c alone, one a and b together, two are free.
    problem = three(current=a_plan(a_gpu("b"), a_gpu("c"), a_gpu("a", "b")))
    assert stock(part_problem(problem, {"a"}, leaving={"b", "c"})) == 3
    # What a shares with b is its own as well; b leaves c's GPU only.
    before = [a_plan(a_gpu("a"))]
    assert stock(part_problem(problem, {"b"}, before=before, leaving={"c"})) == 3
    # Never less than none.
    few = three(count=2, current=a_plan(a_gpu("b", count=2)))
    before = [a_plan(a_gpu("c", count=2))]
    assert stock(part_problem(few, {"a"}, before=before, leaving={"b"})) == 0


def test_a_part_sees_its_own_replicas_on_no_more_gpus_than_there_are() -> None:
    missing = Unserved(service="b", rate_rps=1.0, reason="stock")
    running = a_plan(a_gpu("a", "b"), a_gpu("b"), a_gpu("a"), unserved=(missing,))
    part = part_problem(
        three(count=2, current=running), {"b"}, before=[a_plan(a_gpu("a"))]
    )
    # One GPU is left: of b's two that which b has for itself.
    assert part.current is not None and part.current.gpus == (a_gpu("b"),)
    assert part.current.unserved == (missing,)
    both = part_problem(three(current=running), {"b"})
    assert both.current is not None and sorted(
        len(gpu.replicas) for gpu in both.current.gpus
    ) == [1, 1]


def test_which_gpus_are_kept_does_not_hang_on_their_order() -> None:
    gpus = [a_gpu("b", rate_rps=rate) for rate in (10.0, 20.0, 30.0)]
    parts = [
        part_problem(three(count=2, current=a_plan(*each)), {"b"}).current
        for each in (gpus, list(reversed(gpus)))
    ]
    assert parts[0] is not None and parts[0] == parts[1]
    assert len(parts[0].gpus) == 2


def decided(
    group: str, services: str, plan: Plan, *, status: str = "optimal", cost: float = 1.0
) -> GroupPlan:
    step = SolveReport(
        technique="autoscale", method="cp-sat", status=SolveStatus.OPTIMAL
    )
    report = PlanReport(
        status=status,  # type: ignore[arg-type]
        cost_usd_per_hour=cost,
        lower_bound_usd_per_hour=cost,
        gap_percent=0.0,
        seconds=0.25,
        method="cp-sat",
        messages=("it went well",),
        steps=(step,),
    )
    return GroupPlan(
        part=PlanGroup(group=group, policy="hetsev", services=frozenset(services)),
        plan=plan,
        report=report,
    )


def test_the_merged_plan_is_all_of_them_and_its_report_says_who_decided_what() -> None:
    problem = three()
    short = Unserved(service="c", rate_rps=5.0, reason="stock")
    plan, report = merged(
        problem,
        "joint; web: hetsev",
        [
            decided("web", "a", a_plan(a_gpu("a"))),
            decided("others", "bc", a_plan(a_gpu("b", "c"), unserved=(short,))),
        ],
    )
    assert (plan.policy, plan.gpus, plan.unserved) == (
        "joint; web: hetsev",
        (a_gpu("a"), a_gpu("b", "c")),
        (short,),
    )
    # Two GPUs at $1; each part is optimal, the whole is not proven so, and no bound holds for it.
    assert (
        report.cost_usd_per_hour,
        report.status,
        report.lower_bound_usd_per_hour,
    ) == (2.0, "feasible", None)
    assert (report.method, report.seconds) == (METHOD, 0.5)
    assert report.messages == (
        "web: hetsev decided, optimal at $1.0000 per hour (cp-sat; services 1, GPUs 1)",
        "web: it went well",
        "others: hetsev decided, optimal at $1.0000 per hour (cp-sat; services 2, GPUs 1)",
        "others: it went well",
    )
    assert [step.technique for step in report.steps] == [
        "web: autoscale",
        "others: autoscale",
    ]
    assert report_violations(problem, plan, report) == ()


def test_under_max_goodput_the_whole_s_figures_are_the_checker_s() -> None:
    problem = three(objective="max_goodput")
    plan, report = merged(
        problem,
        "any",
        [decided("web", "a", a_plan(a_gpu("a"))), decided("x", "b", a_plan())],
    )
    # All five GPUs are paid for; 40 rps at priority 1 are served.
    assert (report.cost_usd_per_hour, report.served_weight) == (5.0, 40.0)
    assert not [
        entry
        for entry in report_violations(problem, plan, report)
        if "cost" in entry.where
    ]


def planned_in_groups(
    problem: Problem, first: frozenset[str], names: tuple[str, str]
) -> tuple[Plan, PlanReport]:
    """The first group by one policy, the others by another."""
    found: list[GroupPlan] = []
    others = frozenset(service.name for service in problem.services) - first
    for part in (
        PlanGroup(group="first", policy=names[0], services=first),
        PlanGroup(group="others", policy=names[1], services=others),
    ):
        mine = part_problem(problem, part.services, before=[one.plan for one in found])
        plan, report, _ = policy(part.policy).make_plan(
            mine, Observed(at_s=0.0), None, QUICK
        )
        found.append(GroupPlan(part=part, plan=plan, report=report))
    return merged(problem, "any", found)


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 7),
    names=st.sampled_from(
        [
            ("hetsev_greedy", "k8s_hpa"),
            ("hetsev", "hetsev_greedy"),
            ("k8s_hpa", "hetsev"),
        ]
    ),
)
def test_merged_plans_keep_every_rule_and_groups_share_no_gpu(
    seed: int, size: int, names: tuple[str, str]
) -> None:
    problem = random_problem(seed)
    first = frozenset(service.name for service in problem.services[:size])
    plan, report = planned_in_groups(problem, first, names)
    assert violations(problem, plan) == ()
    assert report.cost_usd_per_hour == pytest.approx(cost_usd_per_hour(problem, plan))
    for gpu in plan.gpus:
        inside = {replica.service in first for replica in gpu.replicas}
        assert len(inside) == 1
    # The same arguments in another order give the same plan, and are planned alike again.
    shuffled = replace(problem, services=tuple(reversed(problem.services)))
    again, _ = planned_in_groups(shuffled, first, names)
    assert sorted(map(repr, again.gpus)) == sorted(map(repr, plan.gpus))


def test_the_first_group_is_served_first_where_gpus_are_short() -> None:
    problem = a_problem(
        a_service("a", rate_rps=100.0),
        a_service("b", rate_rps=100.0),
        types=(a_type(count=1),),
    )
    for first, served in (("a", "a"), ("b", "b")):
        plan, _ = planned_in_groups(problem, frozenset(first), ("joint", "joint"))
        assert {replica.service for gpu in plan.gpus for replica in gpu.replicas} == {
            served
        }
        assert {entry.service for entry in plan.unserved} == {"a", "b"} - {served}


def test_language_models_take_their_gpus_from_later_groups() -> None:
    problem = make_problem(
        llm_services=(make_service("chat"), make_service("code")),
        llm_points=(make_points("chat"), make_points("code")),
    )
    first = part_problem(problem, {"chat"}, leaving={"code"})
    assert [each.name for each in first.llm_services] == ["chat"]
    assert [each.service for each in first.llm_points] == ["chat"]
    replica = LlmReplicaPlan(
        service="chat",
        gpu_type="H100",
        tp=4,
        count=2,
        clock_mhz=CLOCK_MHZ,
        max_num_batched_tokens=1024,
        max_num_seqs=256,
        arrival_rate_rps=5.0,
    )
    plan = Plan(policy="joint", llm_replicas=(replica,))
    stated = replace(
        problem,
        gpu_types=(make_type(free_slots=((2, 8), (4, 4), (8, 2))),),
        power_budget_w=10_000.0,
    )
    second = part_problem(stated, {"code"}, before=[plan])
    (left,) = second.gpu_types
    assert (left.count, left.free_slots) == (8, ((2, 4), (4, 2), (8, 1)))
    assert second.power_budget_w == 10_000.0 - 8 * (70.0 + 400.0)
