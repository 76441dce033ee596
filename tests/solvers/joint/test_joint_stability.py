"""Policy `joint` from tick to tick: what it rearranges, when, by how much, and what it remembers."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from solvers.check import violations
from solvers.joint.past import MUCH_COSTLIER, with_money
from solvers.joint.policy import make_plan
from solvers.laws.cost import cost_usd_per_hour, started
from solvers.types.outcome import Budget, PlanReport, Stability
from solvers.types.plan import Plan
from solvers.types.problem import Problem
from solvers.types.state import Json, Observed
from tests.examples import tried
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    priced,
    random_problem,
    replica_on,
    with_rates,
)

STEADY = Stability(start_price=0.2, min_dwell_s=60.0)


def tick(
    problem: Problem,
    *,
    at_s: float = 0.0,
    memory: Json = None,
    stability: Stability = STEADY,
    waking: tuple[str, ...] = (),
    **budget: Any,
) -> tuple[Plan, PlanReport, Json]:
    """A plan that the checker accepts, and what is remembered."""
    facts: dict[str, Any] = {"work": 0.2, "seconds": math.inf}
    plan, report, memory = make_plan(
        problem,
        Observed(at_s=at_s, waking=waking),
        memory,
        Budget(stability=stability, **facts | budget),
    )
    assert violations(problem, plan) == ()
    return plan, report, memory


def looked_at(at_s: float, *, usd_per_hour: float | None = None) -> Json:
    """A look at that time, which ended with a plan of that cost."""
    return {
        "version": 1,
        "looked_s": at_s,
        "warm": None,
        "settled_usd_per_hour": usd_per_hour,
        "narrowed_s": None,
    }


def on_whole_gpus(*services: str) -> Plan:
    """Each service alone on a GPU, half of which would do."""
    gpus = (gpu_plan(replica_on(name, 100.0, 40.0)) for name in services)
    return Plan(policy="before", gpus=tuple(gpus))


def wasteful(services: int = 2, rate_rps: float = 40.0) -> Problem:
    """Twice the GPUs that are needed; to halve them starts a replica of every service."""
    names = [f"s{number:02}" for number in range(services)]
    return a_problem(
        *(a_service(name, rate_rps=rate_rps) for name in names),
        current=on_whole_gpus(*names),
    )


def gpus_of(plan: Plan) -> int:
    return sum(gpu.count for gpu in plan.gpus)


def test_a_cheaper_arrangement_waits_until_the_dwell_has_passed() -> None:
    problem = wasteful()
    early, _, memory = tick(problem, at_s=100.0, memory=looked_at(41.0))
    assert (gpus_of(early), started(problem, early)) == (2, 0)
    assert isinstance(memory, dict)
    assert memory["looked_s"] == 41.0
    late, _, memory = tick(problem, at_s=101.0, memory=looked_at(41.0))
    assert gpus_of(late) == 1
    assert isinstance(memory, dict)
    assert memory["looked_s"] == 101.0


def test_what_became_much_dearer_than_it_need_be_does_not_wait() -> None:
    # Two GPUs at 1 USD/h where one would do, which is what the last look ended with.
    plan, _, memory = tick(
        wasteful(), at_s=1.0, memory=looked_at(0.0, usd_per_hour=1.0)
    )
    assert gpus_of(plan) == 1
    assert isinstance(memory, dict)
    assert (memory["looked_s"], memory["settled_usd_per_hour"]) == (1.0, 1.0)


def test_what_costs_what_the_load_needs_is_not_looked_at_again() -> None:
    # Each service fills its GPU: two are needed, though the last look ended with one.
    problem = wasteful(rate_rps=100.0)
    plan, _, memory = tick(problem, at_s=1.0, memory=looked_at(0.0, usd_per_hour=1.0))
    assert (gpus_of(plan), started(problem, plan)) == (2, 0)
    assert isinstance(memory, dict)
    assert (memory["looked_s"], memory["settled_usd_per_hour"]) == (0.0, 2.0)


@pytest.mark.parametrize(("before", "now"), [(1e-9, 1e-9), (900.0, 1100.0), (1e6, 1.0)])
def test_what_is_remembered_of_costs_is_in_usd_whatever_the_prices(
    before: float, now: float
) -> None:
    # The last look ended with one GPU at the prices of then, in a unit that today's may not have.
    single = priced(wasteful(services=1, rate_rps=40.0), before)
    plan, report, memory = tick(replace(single, current=None))
    assert isinstance(memory, dict)
    assert (gpus_of(plan), memory["looked_s"]) == (1, 0.0)
    settled = memory["settled_usd_per_hour"]
    assert settled == pytest.approx(report.cost_usd_per_hour) == pytest.approx(before)

    # Two where one would do: what they cost is compared with that in the same money.
    plan, _, memory = tick(priced(wasteful(), now), at_s=1.0, memory=memory)
    assert isinstance(memory, dict)
    is_dearer = 2.0 * now > MUCH_COSTLIER * before
    assert (gpus_of(plan), memory["looked_s"]) == ((1, 1.0) if is_dearer else (2, 0.0))
    assert memory["settled_usd_per_hour"] == pytest.approx(now if is_dearer else before)


def test_money_of_the_softened_problem_is_in_usd_too() -> None:
    medians = {"settled_usd_per_hour": 2.0, "looked_s": 5.0}
    memory = {"version": 1, "settled_usd_per_hour": None, "medians": medians}
    changed = with_money(memory, 1e3)
    assert changed == {**memory, "medians": {**medians, "settled_usd_per_hour": 2e3}}
    assert with_money(None, 1e3) is None and with_money("of another", 1e3)


def test_a_load_that_grows_is_answered_before_costs_are_looked_at() -> None:
    problem = with_rates(wasteful(), 3.0)
    _, _, memory = tick(problem, at_s=1.0, memory=looked_at(0.0, usd_per_hour=1.0))
    assert isinstance(memory, dict)
    assert (memory["looked_s"], memory["settled_usd_per_hour"]) == (0.0, 1.0)


@pytest.mark.parametrize("pause_s", [1.0, 30.0])
def test_services_that_come_one_after_the_other_share_gpus(pause_s: float) -> None:
    # A quarter of a GPU would do for each; alone on one, each of the four would take a whole one.
    services = [a_service(f"s{number}", rate_rps=20.0) for number in range(4)]
    problem = a_problem(*services[:1])
    plan, _, memory = tick(problem)
    for count in range(2, 5):
        problem = a_problem(*services[:count], current=plan)
        plan, _, memory = tick(problem, at_s=pause_s * (count - 1), memory=memory)
    together, _, _ = tick(a_problem(*services))
    assert cost_usd_per_hour(problem, plan) == cost_usd_per_hour(problem, together)


def test_a_clock_that_went_back_does_not_make_it_wait() -> None:
    plan, _, _ = tick(wasteful(), at_s=5.0, memory=looked_at(1000.0))
    assert gpus_of(plan) == 1


def test_demand_is_served_at_once_whatever_the_dwell() -> None:
    problem = with_rates(wasteful(), 3.0)
    plan, _, _ = tick(problem, at_s=1.0, memory=looked_at(0.0))
    assert plan.unserved == ()
    # 120 rps of each: one more half GPU or whole one each.
    assert 1 <= started(problem, plan) <= 2


def test_superfluous_gpus_go_at_once() -> None:
    problem = a_problem(
        a_service("chat", rate_rps=40.0), current=on_whole_gpus("chat", "chat", "chat")
    )
    plan, report, _ = tick(problem, at_s=1.0, memory=looked_at(0.0))
    assert (gpus_of(plan), started(problem, plan), report.status) == (1, 0, "kept")


@pytest.mark.parametrize(("start_price", "gpus"), [(0.4, 1), (0.6, 2)])
def test_a_rearrangement_must_save_what_its_launches_count_for(
    start_price: float, gpus: int
) -> None:
    # It saves one GPU of two, each with one replica, by two launches.
    plan, _, _ = tick(wasteful(), stability=replace(STEADY, start_price=start_price))
    assert gpus_of(plan) == gpus


def test_a_rearrangement_must_save_the_price_of_its_starts_too() -> None:
    # It saves 1 USD per hour by two starts, whose launches count for 0.2 each beyond their price.
    for price, gpus in ((0.25, 1), (0.35, 2)):
        plan, _, _ = tick(replace(wasteful(), migration_cost_usd_per_hour=price))
        assert gpus_of(plan) == gpus


def test_many_ticks_come_to_rest() -> None:
    problem, memory, plans = random_problem(5), None, []
    for number in range(6):
        plan, _, memory = tick(problem, at_s=100.0 * number, memory=memory)
        problem = replace(problem, current=plan)
        plans.append(plan)
    assert started(replace(problem, current=plans[-2]), plans[-1]) == 0


def test_noise_in_the_rates_moves_nothing_that_it_need_not() -> None:
    problem = random_problem(2)
    first, _, memory = tick(with_rates(problem, 1.05))
    current, starts = first, 0
    for number, factor in enumerate((1.0, 1.04, 0.98, 1.05, 1.01)):
        now = replace(with_rates(problem, factor), current=current)
        plan, _, memory = tick(now, at_s=5.0 * number, memory=memory)
        starts += started(now, plan)
        current = plan
    assert starts == 0


def test_without_a_limit_of_seconds_plans_follow_from_the_arguments_alone() -> None:
    problem = random_problem(4)
    first, _, memory = tick(problem)
    assert memory == looked_at(0.0, usd_per_hour=cost_usd_per_hour(problem, first))
    now = with_rates(replace(problem, current=first), 1.1)
    once, again = (tick(now, at_s=5.0, memory=memory)[0] for _ in range(2))
    assert once == again


@pytest.mark.seeded
def test_warm_plans_keep_every_rule_and_serve_what_cold_ones_serve() -> None:
    for seed in range(tried(6)):
        problem = random_problem(seed)
        first, _, memory = tick(problem, seconds=60.0)
        now = with_rates(replace(problem, current=first), 1.1)
        warm, _, memory = tick(now, at_s=5.0, memory=memory, seconds=60.0)
        cold, _, _ = tick(now, at_s=5.0, memory=looked_at(0.0), seconds=60.0)
        assert [each.service for each in warm.unserved] == [
            each.service for each in cold.unserved
        ]


def test_a_token_that_is_not_known_means_a_cold_start() -> None:
    problem = wasteful()
    plan, _, memory = tick(
        problem,
        at_s=1.0,
        memory={"version": 1, "looked_s": 0.0, "warm": "gone"},
        seconds=60.0,
    )
    assert gpus_of(plan) == 2
    assert isinstance(memory, dict)
    assert memory["warm"] not in (None, "gone")


@pytest.mark.parametrize(
    "memory",
    [None, 7, "text", {"version": 0}, {"version": 1, "looked_s": "x", "warm": 3}],
)
def test_memory_that_is_not_its_own_counts_as_none(memory: Json) -> None:
    plan, _, _ = tick(wasteful(), memory=memory)
    assert gpus_of(plan) == 1


def test_a_row_that_is_gone_takes_its_replica_along() -> None:
    problem = wasteful()
    (points,) = problem.points
    less = replace(problem, points=(replace(points, rows=points.rows[:1]),))
    plan, _, _ = tick(less, at_s=1.0, memory=looked_at(0.0))
    assert plan.unserved == ()
    assert {each.sm_percent for gpu in plan.gpus for each in gpu.replicas} == {50.0}


def best_by_hand(problem: Problem, price: float) -> float:
    """Least cost with starts of all plans of the two services on up to four GPUs of one type."""
    patterns = [
        (a, b) for a, b in itertools.product((0, 50, 100), repeat=2) if 0 < a + b <= 100
    ]
    names = ("chat", "photo")
    best = float("inf")
    for count in range(1, 5):
        for mix in itertools.combinations_with_replacement(patterns, count):
            gpus = (
                gpu_plan(
                    *(
                        replica_on(name, float(percent))
                        for name, percent in zip(names, pattern, strict=True)
                        if percent
                    )
                )
                for pattern in mix
            )
            carried = [sum(pattern[at] for pattern in mix) for at in range(2)]
            if all(
                rps >= each.arrival_rate_rps
                for rps, each in zip(carried, problem.services, strict=True)
            ):
                best = min(
                    best,
                    count
                    + price * started(problem, Plan(policy="hand", gpus=tuple(gpus))),
                )
    return best


@pytest.mark.parametrize(
    "price",
    [0.3, 0.7, *(pytest.param(usd, marks=pytest.mark.thorough) for usd in (0.05, 2.0))],
)
@pytest.mark.parametrize(
    "rates", [(40.0, 40.0), (90.0, 45.0), (120.0, 30.0), (140.0, 95.0), (10.0, 160.0)]
)
@pytest.mark.parametrize("shares", [(100, 0), (50, 50)])
def test_cost_and_starts_together_are_least(
    price: float, rates: tuple[float, float], shares: tuple[int, int]
) -> None:
    # One GPU runs; a replica carries 1 rps per percent.
    replicas = (
        replica_on(name, float(share), 1.0)
        for name, share in zip(("chat", "photo"), shares, strict=True)
        if share
    )
    gpu = gpu_plan(*replicas)
    before = Plan(policy="before", gpus=(gpu,))
    services = (
        a_service("chat", rate_rps=rates[0]),
        a_service("photo", rate_rps=rates[1]),
    )
    problem = a_problem(*services, current=before, migration_cost_usd_per_hour=price)
    plan, _, _ = make_plan(problem, Observed(at_s=0.0), None, Budget(work=0.2))
    assert plan.unserved == ()
    total = cost_usd_per_hour(problem, plan) + price * started(problem, plan)
    assert total == pytest.approx(best_by_hand(problem, price))


def test_calls_of_a_series_go_on_with_warm_state_without_a_limit_of_seconds() -> None:
    problem = wasteful()

    def tokens(**budget: Any) -> list[Any]:
        _, _, first = tick(problem, **budget)
        _, _, second = tick(problem, at_s=5.0, memory=first, **budget)
        return [
            memory["warm"] for memory in (first, second) if isinstance(memory, dict)
        ]

    assert tokens() == [None, None]
    assert None not in tokens(is_series=True)


def test_two_series_of_the_same_problems_make_the_same_plans() -> None:
    first = random_problem(3)

    def series() -> list[Plan]:
        plans: list[Plan] = []
        memory: Json = None
        for number, factor in enumerate((1.0, 1.3, 1.1)):
            problem = replace(
                with_rates(first, factor), current=plans[-1] if plans else None
            )
            plan, _, memory = tick(
                problem, at_s=60.0 * number, memory=memory, is_series=True
            )
            plans.append(plan)
        return plans

    assert series() == series()


def test_one_request_to_a_service_at_rest_moves_nothing_else_and_neither_does_its_end() -> (
    None
):
    idle = tuple(f"idle{number}" for number in range(3))
    cheap = a_type("cheap", price_usd_per_hour=0.5, count=1)
    # The woken service may run on this type alone, which has room for all of them.
    dear = a_type("dear", price_usd_per_hour=0.8, count=1)
    running = gpu_plan(*(replica_on(name, 25.0) for name in idle))
    plan = before = Plan(policy="joint", gpus=(replace(running, gpu_type="cheap"),))

    def at(at_s: float, *waking: str, current: Plan, memory: Json) -> Any:
        problem = a_problem(
            *(a_service(name, min_replicas=1) for name in idle),
            a_service(
                "doze",
                rate_rps=1.0 / 60.0 if waking else 0.0,
                allowed_gpu_types=("dear",),
            ),
            types=(cheap, dear),
            rows=[a_row(share, 500.0 / share) for share in (25.0, 50.0, 100.0)],
            current=current,
        )
        found, _, memory = tick(
            problem, at_s=at_s, memory=memory, waking=waking, is_series=True
        )
        return found, memory

    # It is started, is ready after 75 s, and stays for another 60 s.
    memory = looked_at(900.0, usd_per_hour=0.5)
    for at_s in (1000.0, 1005.0, 1080.0, 1130.0):
        plan, memory = at(at_s, "doze", current=plan, memory=memory)
        assert {gpu.gpu_type: len(gpu.replicas) for gpu in plan.gpus} == {
            "cheap": 3,
            "dear": 1,
        }
    plan, _ = at(1140.0, current=plan, memory=memory)
    assert [gpu.gpu_type for gpu in plan.gpus] == ["cheap"]
    # One that stays awake is arranged for after a while.
    plan, _ = at(1600.0, "doze", current=before, memory=memory)
    assert [gpu.gpu_type for gpu in plan.gpus] == ["dear"]
