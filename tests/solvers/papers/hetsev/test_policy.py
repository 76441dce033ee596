"""The policy as a whole: hand-solved cases, every rule on random problems, and small changes for small reasons."""

import gzip
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from solvers.check import violations
from solvers.check_report import report_violations
from solvers.greedy.arrange import running_carriers, top_up
from solvers.greedy.configure import MAX_REPLICAS, configure
from solvers.laws.cost import cost_usd_per_hour
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.papers.hetsev.policy import make_plan, with_network_labels
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.examples import examples, seeds
from tests.solvers.instances import (
    HALVES,
    a_row,
    a_service,
    a_type,
    random_problem,
    replica_counts,
    started,
    with_rates,
)
from tests.solvers.papers.hetsev.own_networks import a_problem, with_own_networks
from tests.solvers.small_plans import planned_problems

SHARED = Path(__file__).parents[4] / ".." / "shared" / "problems"

HOLD_S = HetsevParameters().consolidation_hold_s


def run(
    problem: Problem, *, at_s: float = 0.0, memory: Json = None, seed: int = 0
) -> tuple[Plan, PlanReport, Json]:
    """A plan that the checker accepts, with a report that it confirms."""
    plan, report, remembered = make_plan(
        problem, Observed(at_s=at_s), memory, Budget(seed=seed)
    )
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    return plan, report, remembered


def plan_of(problem: Problem) -> Plan:
    return run(problem)[0]


def gpus_of(plan: Plan) -> Counter[str]:
    counts: Counter[str] = Counter()
    for gpu in plan.gpus:
        counts[gpu.gpu_type] += gpu.count
    return counts


def after(problem: Problem, plan: Plan) -> Problem:
    """The same problem a tick later."""
    return replace(problem, current=plan)


def is_complete(plan: Plan) -> bool:
    return not plan.unserved


# Cases by hand, on HALVES: half a GPU carries 50 rps, a whole one 100.


def test_two_services_share_a_gpu_by_halves() -> None:
    plan = plan_of(
        a_problem(a_service("chat", rate_rps=40.0), a_service("photo", rate_rps=50.0))
    )
    (gpu,) = plan.gpus
    assert gpu.count == 1
    assert [(each.service, each.sm_percent) for each in gpu.replicas] == [
        ("chat", 50.0),
        ("photo", 50.0),
    ]
    assert [each.arrival_rate_rps for each in gpu.replicas] == pytest.approx(
        [40.0, 50.0]
    )


def test_the_cheaper_type_is_taken_until_it_runs_out() -> None:
    # 250 rps are 2.5 GPUs: two cheap ones, then a dear one.
    types = (
        a_type("cheap", price_usd_per_hour=1.0, count=2),
        a_type("dear", price_usd_per_hour=3.0),
    )
    plan, report, _ = run(a_problem(a_service("chat", rate_rps=250.0), types=types))
    assert gpus_of(plan) == {"cheap": 2, "dear": 1}
    assert report.cost_usd_per_hour == pytest.approx(5.0)


def test_without_demand_nothing_runs_but_the_least_number_of_replicas() -> None:
    plan, report, _ = run(
        a_problem(a_service("chat"), a_service("photo", min_replicas=2))
    )
    assert replica_counts(plan) == {("photo", "gpu", 50.0): 2}
    assert all(
        each.arrival_rate_rps == 0.0 for gpu in plan.gpus for each in gpu.replicas
    )
    assert report.status == "feasible"


@pytest.mark.parametrize(
    ("problem", "unserved"),
    [
        (
            a_problem(a_service("chat", rate_rps=70.0, slo_ms=9.9)),
            [("chat", 70.0, "slo", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0), types=(a_type(count=2),)),
            [("chat", 50.0, "stock", 0)],
        ),
        (
            a_problem(a_service("chat", rate_rps=250.0, max_replicas=2)),
            [("chat", 50.0, "replicas", 0)],
        ),
        (
            a_problem(a_service("chat", min_replicas=3), types=(a_type(count=2),)),
            [("chat", 0.0, "stock", 1)],
        ),
    ],
)
def test_what_cannot_be_served_names_its_rule(
    problem: Problem, unserved: list[tuple[str, float, str, int]]
) -> None:
    entries = [
        (each.service, each.rate_rps, each.reason, each.replicas_missing)
        for each in plan_of(problem).unserved
    ]
    assert entries == [
        (name, pytest.approx(rate, abs=1e-6), *rest) for name, rate, *rest in unserved
    ]


def test_when_gpus_are_short_the_important_service_is_served() -> None:
    services = (
        a_service("chat", rate_rps=100.0),
        a_service("photo", rate_rps=100.0, priority=5.0),
    )
    plan = plan_of(a_problem(*services, types=(a_type(count=1),)))
    assert [each.service for gpu in plan.gpus for each in gpu.replicas] == ["photo"]
    assert [each.service for each in plan.unserved] == ["chat"]


def test_goodput_is_maximised_on_the_gpus_that_are_paid_for() -> None:
    rates = {"chat": 100.0, "photo": 50.0, "text": 50.0, "late": 50.0}
    services = (
        a_service(name, rate_rps=rate, priority=2.0 - (name == "late"))
        for name, rate in rates.items()
    )
    problem = a_problem(*services, types=(a_type(count=3),), objective="max_goodput")
    plan, report, _ = run(replace(problem, gpu_types=(a_type(count=2),)))
    # 200 rps fit: chat on a whole GPU, photo and text on half a GPU each.
    assert report.served_weight == pytest.approx(2.0 * 200.0)
    assert report.cost_usd_per_hour == pytest.approx(2.0)
    assert [each.service for each in plan.unserved] == ["late"]
    assert report.lower_bound_usd_per_hour is None
    _, report, _ = run(problem)
    assert report.served_weight == pytest.approx(2.0 * 200.0 + 50.0)


@pytest.mark.parametrize(
    ("seed", "services", "gpus"),
    [
        (18, 20, 3),
        pytest.param(6, 30, 4, marks=pytest.mark.thorough),
        pytest.param(35, 30, 4, marks=pytest.mark.thorough),
    ],
)
def test_nobody_is_left_unserved_beside_room_for_him(
    seed: int, services: int, gpus: int
) -> None:
    problem = with_own_networks(random_problem(seed, services=services, gpus=gpus))
    carriers = running_carriers(after(problem, plan_of(problem)))
    assert top_up(problem, carriers, configure(problem, keep_running=False)) == carriers


def test_names_with_slashes_are_told_apart() -> None:
    types = (a_type("b"), a_type("c/b"))
    services = (
        a_service("a/c", rate_rps=90.0, allowed_gpu_types=("b",)),
        a_service("a", rate_rps=90.0, allowed_gpu_types=("c/b",)),
    )
    assert is_complete(plan_of(a_problem(*services, types=types)))


@pytest.mark.thorough
def test_a_plan_ends_at_the_most_replicas_and_says_that_the_budget_stopped_it() -> None:
    # Each whole GPU carries 100 rps; the more important service gets all of them.
    chat = a_service("chat", rate_rps=1e9, priority=2.0)
    plan = plan_of(a_problem(chat, a_service("photo", rate_rps=100.0), rows=HALVES[1:]))
    assert gpus_of(plan) == {"gpu": MAX_REPLICAS}
    unserved = {each.service: (each.rate_rps, each.reason) for each in plan.unserved}
    assert unserved == {
        "chat": (pytest.approx(1e9 - 100.0 * MAX_REPLICAS), "budget"),
        "photo": (pytest.approx(100.0), "budget"),
    }


# A running plan.


@pytest.mark.parametrize("seed", range(6))
def test_a_little_more_or_less_demand_starts_at_most_one_replica_per_service(
    seed: int,
) -> None:
    problem = random_problem(seed)
    plan = plan_of(problem)
    if not is_complete(plan):
        problem, plan = with_rates(problem, 0.5), plan_of(with_rates(problem, 0.5))
    for factor in (1.03, 0.97):
        changed, report, _ = run(after(with_rates(problem, factor), plan))
        assert report.messages[0].startswith("running arrangement")
        assert max(_started_by_service(plan, changed).values(), default=0) <= 1


def _started_by_service(before: Plan, later: Plan) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (service, _, _), count in (
        replica_counts(later) - replica_counts(before)
    ).items():
        counts[service] += count
    return counts


def test_one_gpu_less_starts_only_what_ran_there() -> None:
    services = tuple(a_service(name, rate_rps=90.0) for name in ("a", "b", "c"))
    problem = a_problem(*services, types=(a_type(count=4),))
    plan = plan_of(problem)
    assert gpus_of(plan) == {"gpu": 3}
    alive = replace(plan, gpus=tuple(replace(gpu, count=1) for gpu in plan.gpus)[:2])
    less = replace(problem, gpu_types=(a_type(count=3),), current=alive)
    later = plan_of(less)
    assert is_complete(later)
    assert started(alive, later) == 1


def test_a_lower_power_cap_is_obeyed_by_the_next_plan() -> None:
    problem = a_problem(a_service("a", rate_rps=40.0), a_service("b", rate_rps=40.0))
    plan = plan_of(problem)
    assert gpus_of(plan) == {"gpu": 1}
    capped = replace(problem, gpu_types=(a_type(power_cap_w=149.0),))
    later = plan_of(after(capped, plan))
    assert gpus_of(later) == {"gpu": 2}
    assert is_complete(later)
    assert started(plan, later) == 0


def test_a_cheaper_arrangement_waits_for_its_hold_and_then_comes() -> None:
    problem = a_problem(a_service("a", rate_rps=100.0), a_service("b", rate_rps=100.0))
    plan = plan_of(problem)
    assert gpus_of(plan) == {"gpu": 2}
    quiet = after(with_rates(problem, 0.4), plan)
    said: list[str] = []
    memory: Json = None
    for at_s in (
        1000.0,
        1000.0 + 0.5 * HOLD_S,
        1000.0 + HOLD_S,
    ):
        later, report, memory = run(quiet, at_s=at_s, memory=memory)
        said.append(report.messages[0])
        assert gpus_of(later) == {"gpu": 1 if at_s == 1000.0 + HOLD_S else 2}
    assert said[0].endswith(" waits, 0 of 60 s")
    assert said[1].endswith(" waits, 30 of 60 s")
    assert said[2].startswith("consolidation: ")


def test_no_consolidation_pays_more_for_restarts_than_it_saves() -> None:
    problem = a_problem(a_service("a", rate_rps=100.0), a_service("b", rate_rps=100.0))
    plan = plan_of(problem)
    quiet = replace(
        with_rates(problem, 0.4), current=plan, migration_cost_usd_per_hour=0.5
    )
    _, report, memory = run(quiet, at_s=0.0)
    later, report, _ = run(quiet, at_s=10 * HOLD_S, memory=memory)
    assert later.gpus != () and gpus_of(later) == {"gpu": 2}
    assert report.messages[0] == "running arrangement, changed"


def test_without_time_the_running_arrangement_is_changed() -> None:
    problem = a_problem(a_service("a", rate_rps=100.0), a_service("b", rate_rps=100.0))
    quiet = after(with_rates(problem, 0.4), plan_of(problem))
    _, _, waiting = run(quiet, at_s=1000.0)
    late = Budget(elapsed=lambda: 2.0)
    plan, report, memory = make_plan(
        quiet, Observed(at_s=1000.0 + HOLD_S), waiting, late
    )
    assert violations(quiet, plan) == ()
    assert is_complete(plan)
    assert "no time was left" in report.messages[0]
    assert memory == waiting
    first, _, _ = make_plan(problem, Observed(at_s=0.0), None, late)
    assert is_complete(first)


# Random problems.


@settings(max_examples=examples(12), derandomize=True)
@given(planned_problems())
def test_every_plan_is_lawful_and_the_order_of_the_input_changes_nothing(
    case: tuple[Problem, Plan],
) -> None:
    problem, drawn = case
    turned = {
        "services": problem.services[::-1],
        "gpu_types": problem.gpu_types[::-1],
        "points": tuple(
            replace(each, rows=each.rows[::-1]) for each in problem.points[::-1]
        ),
    }
    for current in (None, drawn):
        posed = replace(problem, current=current)
        plan, report, memory = run(posed)
        assert run(posed) == (plan, report, memory)
        assert run(replace(posed, **turned))[0] == plan  # type: ignore[arg-type]
        if is_complete(plan):
            assert plan_of(after(problem, plan)) == plan
        # Replicas of one network may not stay on one GPU, which the plan that was drawn knows nothing of.
        is_lawful = violations(with_network_labels(problem), drawn) == ()
        is_kept = current is not None and is_lawful and is_complete(drawn)
        if is_kept and started(drawn, plan):
            assert cost_usd_per_hour(problem, plan) < cost_usd_per_hour(problem, drawn)


def _changed(problem: Problem, draw: random.Random) -> Problem:
    """Something happened to the fleet, the services or the rules."""
    match draw.choice(
        ("rates", "service", "type", "stock", "allowed", "power", "places", "goodput")
    ):
        case "rates":
            return with_rates(problem, draw.choice((0.5, 0.97, 1.03, 1.5)))
        case "service":
            return replace(problem, services=problem.services[1:])
        case "type" if len(problem.gpu_types) > 1:
            services = (
                replace(each, allowed_gpu_types=None) for each in problem.services
            )
            return replace(
                problem, gpu_types=problem.gpu_types[1:], services=tuple(services)
            )
        case "stock":
            types = (
                replace(each, count=max(0, (each.count or 0) - 1))
                for each in problem.gpu_types
            )
            return replace(problem, gpu_types=tuple(types))
        case "allowed":
            allowed = (draw.choice(problem.gpu_types).name,)
            services = (
                replace(each, allowed_gpu_types=allowed)
                if draw.random() < 0.4
                else each
                for each in problem.services
            )
            return replace(problem, services=tuple(services))
        case "power":
            types = (
                replace(each, power_cap_w=0.8 * each.power_cap_w)
                for each in problem.gpu_types
            )
            return replace(problem, gpu_types=tuple(types))
        case "places":
            return replace(
                problem, max_replicas_per_gpu=max(1, problem.max_replicas_per_gpu - 1)
            )
        case _:
            return replace(problem, objective="max_goodput")


@pytest.mark.parametrize("seed", seeds(10))
def test_whatever_happens_while_a_plan_runs_the_next_one_is_lawful(seed: int) -> None:
    draw = random.Random(seed)
    problem = random_problem(
        seed,
        services=draw.choice((3, 8)),
        types=draw.choice((1, 2, 3)),
        gpus=draw.choice((1, 3, 6)),
    )
    plan, _, memory = run(problem)
    for tick in range(1, 6):
        problem = _changed(replace(problem, objective="min_cost"), draw)
        plan, _, memory = run(after(problem, plan), at_s=15.0 * tick, memory=memory)


def test_when_gpus_are_short_services_share_what_each_alone_would_take_whole() -> None:
    # At half utilisation a whole GPU serves 100 rps of the one service, both its halves 70 of each: 140.
    rows = (a_row(50.0, 1000.0 / 140.0), a_row(100.0, 5.0))
    services = (a_service("a", rate_rps=200.0), a_service("b", rate_rps=200.0))
    plan = plan_of(a_problem(*services, types=(a_type(count=2),), rows=rows))
    served = Counter[str]()
    for gpu in plan.gpus:
        served.update(
            {
                replica.service: gpu.count * replica.arrival_rate_rps
                for replica in gpu.replicas
            }
        )
    assert {name: round(rate_rps, 6) for name, rate_rps in served.items()} == {
        "a": 140.0,
        "b": 140.0,
    }


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.name.removesuffix(".json.gz"),
            marks=() if "n12" in path.name else pytest.mark.thorough,
        )
        for path in sorted(SHARED.glob("*.json.gz"))
    ],
)
def test_shared_problems_are_served_completely(path: Path) -> None:
    problem = problem_from_json(gzip.decompress(path.read_bytes()).decode())
    assert is_complete(plan_of(problem))
