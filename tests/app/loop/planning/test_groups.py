"""Groups in the loop: who is asked what, what is remembered, which mode counts, and how a policy is switched."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.answers.preview import PreviewChanges, preview
from app.loop.make_commands import effective_mode
from app.loop.planning.groups import PlanningRequest, ask, parts_of
from app.solver.process import PlanRequest, SolverUnavailable
from app.store.store import PolicyGroup, PolicySettings
from solvers.policies.grouping import OTHERS
from solvers.types.outcome import Budget
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Mode, Observed, Service
from tests.app.fleets import (
    SETTINGS,
    Answering,
    Fleet,
    a_fleet,
    a_service,
    on_half_gpus,
)
from tests.app.snapshots import a_bound_plan, a_replica, a_snapshot, a_state, windows_of
from tests.solvers.instances import a_problem, a_type
from tests.solvers.instances import a_service as demand

WEB = PolicyGroup(name="web", policy="hetsev", projects=("shop",))
BATCH = PolicyGroup(name="batch", policy="k8s_hpa", labels=(("tier", "low"),))
NOTHING = Observed(at_s=0.0)


def of(name: str, project: str = "default", **labels: str) -> Service:
    return replace(
        a_service(name), project=project, labels=tuple(sorted(labels.items()))
    )


SERVICES = (
    of("cart", "shop"),
    of("mail"),
    of("logs", "shop", tier="low"),
    of("scan", tier="low", team="x"),
)
GROUPED = replace(SETTINGS, groups=(WEB, BATCH))


def on_own_gpus(problem: Problem) -> Plan:
    """One GPU per service while there are any; the others are not served."""
    singles = [
        replace(gpu, replicas=(each,))
        for gpu in on_half_gpus(problem).gpus
        for each in gpu.replicas
    ]
    kept = singles[: problem.gpu_types[0].count]
    served = {gpu.replicas[0].service for gpu in kept}
    short = (s for s in problem.services if s.name not in served)
    unserved = tuple(
        Unserved(service=s.name, rate_rps=s.arrival_rate_rps, reason="stock")
        for s in short
    )
    return Plan(policy="test", gpus=tuple(kept), unserved=unserved)


def a_question(
    count: int = 9, settings: PolicySettings = GROUPED, current: Plan | None = None
) -> PlanningRequest:
    demands = [demand(service.name, rate_rps=20.0) for service in SERVICES]
    problem = a_problem(*demands, types=(a_type("fast", count=count),), current=current)
    return PlanningRequest(
        problem=problem, observed=NOTHING, settings=settings, services=SERVICES
    )


def names(request: PlanRequest) -> Sequence[str]:
    return [service.name for service in request.problem.services]


def answered(solver: Answering, question: PlanningRequest) -> Plan:
    return asyncio.run(ask(solver, question, Budget(seconds=9.0))).plan


def test_a_service_is_of_the_first_group_that_it_fits_and_others_come_last() -> None:
    parts = parts_of(a_question().problem, GROUPED, SERVICES)
    assert [(part.group, part.policy, sorted(part.services)) for part in parts] == [
        ("web", "hetsev", ["cart", "logs"]),
        ("batch", "k8s_hpa", ["scan"]),
        (OTHERS, "joint", ["mail"]),
    ]


def test_a_group_without_services_and_others_without_any_are_left_out() -> None:
    all_of_them = replace(
        GROUPED, groups=(replace(WEB, projects=("default", "shop")), BATCH)
    )
    assert [
        part.group for part in parts_of(a_question().problem, all_of_them, SERVICES)
    ] == ["web"]


@pytest.mark.parametrize(
    ("group", "fits"),
    [
        (WEB, False),
        (replace(WEB, projects=("default",)), True),
        (BATCH, True),
        (replace(BATCH, labels=(("tier", "low"), ("team", "y"))), False),
        (replace(BATCH, projects=("shop",)), False),
    ],
)
def test_a_group_wants_one_of_its_projects_and_all_of_its_labels(
    group: PolicyGroup, fits: bool
) -> None:
    assert group.has(of("scan", tier="low", team="x")) is fits


def test_groups_are_asked_in_order_each_for_its_own_on_what_is_left() -> None:
    solver = Answering(on_own_gpus)
    parameters = {"hetsev": {"queues": 8}, "joint": {}, "morak": {"step_percent": 5.0}}
    settings = replace(GROUPED, parameters=parameters)
    plan = answered(solver, a_question(count=5, settings=settings))
    assert [dict(each.parameters) for each in solver.asked] == [{"queues": 8}, {}, {}]
    assert [(request.policy, names(request)) for request in solver.asked] == [
        ("hetsev", ["cart", "logs"]),
        ("k8s_hpa", ["scan"]),
        ("joint", ["mail"]),
    ]
    assert [request.problem.gpu_types[0].count for request in solver.asked] == [5, 3, 2]
    assert plan.policy == "joint; web: hetsev; batch: k8s_hpa"
    assert len(plan.gpus) == 4 and plan.unserved == ()
    # Nine seconds for three.
    assert [request.budget.seconds for request in solver.asked] == [3.0, 3.0, 3.0]


def test_without_groups_the_one_policy_gets_the_problem_as_it_is() -> None:
    solver, question = (
        Answering(),
        replace(a_question(), settings=SETTINGS, memory={"mine": 1}),
    )
    answered(solver, question)
    (request,) = solver.asked
    assert request.problem is question.problem
    assert (request.policy, request.memory, request.budget.seconds) == (
        "joint",
        {"mine": 1},
        9.0,
    )


def test_a_group_takes_gpus_of_later_ones_only_where_free_ones_do_not_serve_it() -> (
    None
):
    running = Plan(policy="test", gpus=on_own_gpus(a_question().problem).gpus[2:4])
    assert [gpu.replicas[0].service for gpu in running.gpus] == ["logs", "scan"]
    solver = Answering(on_own_gpus)
    # Of three GPUs one is scan's: web may have the two others, which do for it.
    plan = answered(solver, a_question(count=3, current=running))
    assert [request.problem.gpu_types[0].count for request in solver.asked] == [2, 1, 0]
    assert [entry.service for entry in plan.unserved] == ["mail"]
    short = Answering(on_own_gpus)
    answered(short, a_question(count=2, current=running))
    # Of two one is scan's; web needs both, and is asked again with both.
    assert [
        (names(request), request.problem.gpu_types[0].count) for request in short.asked
    ] == [
        (["cart", "logs"], 1),
        (["cart", "logs"], 2),
        (["scan"], 0),
        (["mail"], 0),
    ]


def test_memories_are_kept_by_group_and_reach_their_own_policy_only() -> None:
    solver = Answering(on_own_gpus)
    question = replace(
        a_question(), memory={"of": "joint"}, group_memory={"web": {"of": "hetsev"}}
    )
    answer = asyncio.run(ask(solver, question, Budget(seconds=9.0)))
    assert [request.memory for request in solver.asked] == [
        {"of": "hetsev"},
        None,
        {"of": "joint"},
    ]
    assert answer.group_memory == {"web": {"calls": 1}, "batch": {"calls": 2}}
    assert answer.memory == {"calls": 3}


def test_the_cluster_s_policy_keeps_its_memory_where_every_service_is_of_a_group() -> (
    None
):
    everyone = replace(GROUPED, groups=(replace(WEB, projects=("default", "shop")),))
    question = replace(a_question(settings=everyone), memory={"of": "joint"})
    answer = asyncio.run(ask(Answering(on_own_gpus), question, Budget(seconds=9.0)))
    assert (answer.memory, answer.group_memory) == (
        {"of": "joint"},
        {"web": {"calls": 1}},
    )


def test_where_a_group_s_policy_fails_the_whole_plan_does_and_names_it() -> None:
    class Picky(Answering):
        async def make_plan(self, request: PlanRequest):  # type: ignore[no-untyped-def]
            if request.policy == "k8s_hpa":
                raise SolverUnavailable("it was killed")
            return await super().make_plan(request)

    with pytest.raises(SolverUnavailable, match=r"^group batch: it was killed$"):
        answered(Picky(on_own_gpus), a_question())


def a_grouped_fleet(solver: Answering, **settings: object) -> Fleet:
    fleet = a_fleet(
        of("cart", "shop"), of("mail"), solver=solver, groups=(WEB,), **settings
    )
    fleet.pass_time(rates_rps={"cart": 20.0, "mail": 20.0})
    return fleet


def test_a_tick_pushes_one_plan_of_all_groups_and_its_report_says_whose_policy_spoke() -> (
    None
):
    fleet = a_grouped_fleet(Answering(on_own_gpus))
    outcome = fleet.tick()
    assert (outcome.state, outcome.cost_usd_per_hour) == ("target", 4.0)
    record = fleet.store.plans[1]
    assert record.plan.policy == "joint; web: hetsev"
    assert [words.split(",")[0] for words in record.report.messages] == [
        "web: hetsev decided",
        "others: joint decided",
    ]
    assert len(fleet.store.pushed) == 1 and len(fleet.store.pushed[0][1].gpus) == 2


def test_memory_is_kept_per_group_and_policy_over_a_switch_and_back() -> None:
    solver = Answering(on_own_gpus)
    fleet = a_grouped_fleet(solver)
    fleet.tick()
    for policy in ("igniter", "hetsev"):
        fleet.change_settings(groups=(replace(WEB, policy=policy),))
        fleet.pass_time(rates_rps={"cart": 20.0, "mail": 20.0})
        fleet.tick()
    web = [
        (request.policy, request.memory)
        for request in solver.asked
        if names(request) == ["cart"]
    ]
    # igniter knows nothing of what hetsev remembered; hetsev, back, finds what it wrote down at its first call.
    assert web == [("hetsev", None), ("igniter", None), ("hetsev", {"calls": 1})]


def test_a_refused_plan_leaves_the_groups_memories_alone() -> None:
    solver = Answering(lambda problem: replace(on_own_gpus(problem), gpus=()))
    fleet = a_grouped_fleet(solver)
    assert fleet.tick().state == "refused"
    fleet.pass_time(rates_rps={"cart": 20.0, "mail": 20.0})
    fleet.tick()
    assert [request.memory for request in solver.asked] == [None] * 4


def test_a_plan_that_changes_a_group_s_services_needs_its_mode() -> None:
    state = a_state(services=(of("cart", "shop"), of("mail")))
    settings = replace(SETTINGS, groups=(replace(WEB, mode=Mode.ADVISE),))
    cart, mail = a_replica("r1", service="cart"), a_replica("r2", service="mail")
    both = a_bound_plan([cart], [mail])
    assert effective_mode(settings, state.services, None, both) is Mode.ADVISE
    assert (
        effective_mode(settings, state.services, a_bound_plan([cart]), both)
        is Mode.AUTO
    )
    off = replace(settings, mode=Mode.OFF)
    assert effective_mode(off, state.services, a_bound_plan([cart]), both) is Mode.OFF


def test_where_only_services_want_approval_other_governors_do_and_tasks_do_not() -> (
    None
):
    settings = replace(SETTINGS, mode=Mode.APPROVE, approve="services")
    now = a_bound_plan([a_replica("r1")])
    (gpu,) = now.gpus
    beside = replace(now, gpus=(replace(gpu, tasks=("t1",)),))
    governed = replace(now, governor="morak")
    modes = [
        effective_mode(settings, a_state().services, now, bound)
        for bound in (now, beside, governed)
    ]
    assert modes == [Mode.AUTO, Mode.AUTO, Mode.APPROVE]


@pytest.mark.parametrize(
    ("mode", "before", "effective"),
    [
        (Mode.AUTO, "hetsev", Mode.APPROVE),
        (Mode.AUTO, "test", Mode.AUTO),
        (Mode.ADVISE, "hetsev", Mode.ADVISE),
        (Mode.AUTO, None, Mode.AUTO),
    ],
)
def test_a_switch_that_wants_approval_holds_the_first_plan_of_another_policy(
    mode: Mode, before: str | None, effective: Mode
) -> None:
    settings = replace(SETTINGS, mode=mode, approve_switch=True)
    target = (
        None
        if before is None
        else replace(a_bound_plan([a_replica("r1")]), policy=before)
    )
    assert (
        effective_mode(
            settings, a_state().services, target, a_bound_plan([a_replica("r1")])
        )
        is effective
    )
    assert (
        effective_mode(
            replace(settings, approve_switch=False),
            a_state().services,
            target,
            a_bound_plan(),
        )
        is mode
    )


def test_after_a_switch_is_approved_the_loop_goes_on_by_itself() -> None:
    solver = Answering(on_own_gpus)
    fleet = a_fleet(of("cart"), solver=solver)
    fleet.pass_time(rates_rps={"cart": 20.0})
    assert fleet.tick().state == "target"
    fleet.change_settings(policy="hetsev", approve_switch=True)
    solver.plan = lambda problem: replace(
        on_own_gpus(problem),
        policy="hetsev",
        gpus=tuple(replace(g, count=2) for g in halved(problem).gpus),
    )
    fleet.pass_time(rates_rps={"cart": 20.0})
    proposed = fleet.tick()
    assert (proposed.state, fleet.generation) == ("proposed", 1)
    assert (
        proposed.plan_id is not None and "before a person approves" in proposed.reason
    )
    fleet.store.approve(proposed.plan_id)
    assert fleet.tick().state == "target"
    solver.plan = lambda problem: replace(on_own_gpus(problem), policy="hetsev")
    fleet.pass_time(rates_rps={"cart": 20.0})
    assert fleet.tick().state == "target"


def halved(problem: Problem) -> Plan:
    """The rates of what `on_own_gpus` has, over two."""
    gpus = on_own_gpus(problem).gpus
    return Plan(
        policy="test",
        gpus=tuple(
            replace(
                g,
                replicas=tuple(
                    replace(r, arrival_rate_rps=r.arrival_rate_rps / 2)
                    for r in g.replicas
                ),
            )
            for g in gpus
        ),
    )


def test_a_preview_takes_groups_in_place_of_the_present_ones_and_can_go_from_what_runs() -> (
    None
):
    snapshot = a_snapshot(
        state=a_state(services=(of("cart", "shop"), of("mail"))),
        windows=(*windows_of("cart", [40, 40, 40]), *windows_of("mail", [40, 40, 40])),
        target=a_bound_plan([a_replica("r1", service="mail")]),
    )
    solver = Answering(on_own_gpus)
    asyncio.run(
        preview(solver, snapshot, PreviewChanges(groups=(WEB,), from_running=True))
    )
    assert [(request.policy, names(request)) for request in solver.asked] == [
        ("hetsev", ["cart"]),
        ("joint", ["mail"]),
    ]
    assert (
        solver.asked[1].problem.current is not None
        and len(solver.asked[1].problem.current.gpus) == 1
    )
    plain = Answering(on_own_gpus)
    asyncio.run(preview(plain, snapshot, PreviewChanges()))
    assert [(request.policy, request.problem.current) for request in plain.asked] == [
        ("joint", None)
    ]
