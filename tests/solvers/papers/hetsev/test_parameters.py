"""What HetSev's parameters change: worst fit as printed, waits in the fair queues, and when it consolidates."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.greedy import policy as hetsev_greedy
from solvers.greedy.scaling_rules import SaturationRule
from solvers.papers.hetsev.instance_scheduling import (
    SchedulingState,
    schedule_instances,
)
from solvers.papers.hetsev.parameters import HetsevParameters
from solvers.papers.hetsev.past import HetsevPast, dump_past, load_past
from solvers.papers.hetsev.policy import make_plan
from solvers.types.outcome import Budget
from solvers.types.parameters import PolicyParameters
from solvers.types.plan import Plan, Unserved
from solvers.types.problem import Problem
from solvers.types.state import Observed
from tests.solvers.instances import HALVES, a_service, a_type, with_types
from tests.solvers.papers.hetsev.own_networks import a_problem

AS_PRINTED = HetsevParameters(placement="as printed")


def four_halves(**of_type: object) -> Problem:
    """Four services with half a GPU each."""
    services = (a_service(name, rate_rps=40.0) for name in "abcd")
    return a_problem(*services, types=(a_type(**of_type),))


def used(plan: Plan) -> int:
    return sum(gpu.count for gpu in plan.gpus)


def plan_with(problem: Problem, parameters: PolicyParameters) -> Plan:
    plan, _, _ = make_plan(
        problem, Observed(at_s=0.0), None, Budget(parameters=parameters)
    )
    assert violations(problem, plan) == ()
    return plan


@pytest.mark.parametrize("count", [4, 3, 2])
def test_worst_fit_as_printed_takes_unused_gpus_first(count: int) -> None:
    problem = four_halves(count=count)
    assert used(plan_with(problem, HetsevParameters())) == 2
    plan = plan_with(problem, AS_PRINTED)
    assert plan.unserved == ()
    assert used(plan) == count


def test_new_replicas_beside_running_ones_go_by_worst_fit_too() -> None:
    problem = four_halves(count=4)
    running = plan_with(replace(problem, services=problem.services[:2]), AS_PRINTED)
    assert used(running) == 2
    later = replace(problem, current=running)
    assert used(plan_with(later, AS_PRINTED)) == 4
    # Two GPUs have a half left, which the fullest fit takes.
    assert used(plan_with(later, HetsevParameters())) == 2


def test_the_greedy_controller_spreads_as_printed() -> None:
    problem = four_halves(count=4)
    for parameters, gpus in (
        (SaturationRule(), 2),
        (SaturationRule(placement="as printed"), 4),
    ):
        budget = Budget(parameters=parameters)
        plan, _, _ = hetsev_greedy.make_plan(problem, Observed(at_s=0.0), None, budget)
        assert violations(problem, plan) == ()
        assert used(plan) == gpus


def test_of_two_that_want_the_last_place_the_one_that_waited_longer_gets_it() -> None:
    problem = four_halves(count=1)
    counts = {(each.name, "gpu"): 1 for each in problem.services}
    rows = dict.fromkeys(counts, HALVES[0])
    budget = Budget(parameters=AS_PRINTED)
    for waited_s, first in (
        ({}, {"a", "b"}),
        ({"c": 5.0, "d": 30.0}, {"c", "d"}),
        ({"d": 30.0}, {"a", "d"}),
    ):
        waiting = SchedulingState(running={}, waited_s=waited_s, launch_s={})
        carriers, left_out, _ = schedule_instances(
            problem, counts, rows, waiting, budget
        )
        assert {seat.service for seat in carriers[0].seats} == first
        assert {key[0] for key, _ in left_out} == set("abcd") - first


def test_replicas_that_run_have_not_waited() -> None:
    problem = four_halves(count=1)
    counts = {("a", "gpu"): 1, ("b", "gpu"): 1, ("c", "gpu"): 1}
    rows = dict.fromkeys(counts, HALVES[0])
    # None of `c` waits: its only replica runs.
    waiting = SchedulingState(
        running={("c", "gpu"): 1}, waited_s={"c": 60.0}, launch_s={}
    )
    carriers, _, _ = schedule_instances(
        problem, counts, rows, waiting, Budget(parameters=AS_PRINTED)
    )
    assert {seat.service for seat in carriers[0].seats} == {"a", "b"}


def test_waits_are_remembered_as_long_as_there_are_too_few_gpus() -> None:
    short = replace(
        four_halves(count=1),
        services=(
            a_service("a", network="a on net", rate_rps=90.0),
            a_service("b", network="b on net", rate_rps=90.0),
        ),
    )
    _, _, first = make_plan(short, Observed(at_s=100.0), None, Budget())
    waiting = load_past(first).waiting_since_s
    assert waiting
    assert set(waiting.values()) == {100.0}
    _, _, second = make_plan(short, Observed(at_s=160.0), first, Budget())
    assert load_past(second).waiting_since_s == waiting
    assert load_past(second).waited_s(160.0) == dict.fromkeys(waiting, 60.0)
    enough = with_types(short, count=9)
    _, _, third = make_plan(enough, Observed(at_s=170.0), second, Budget())
    assert load_past(third).waiting_since_s == {}


def test_a_clock_that_was_set_back_makes_nobody_wait_for_less_than_no_time() -> None:
    past = HetsevPast(waiting_since_s={"a": 100.0})
    assert past.waited_s(40.0) == {"a": 0.0}
    plan = Plan(
        policy="hetsev",
        gpus=(),
        unserved=(Unserved(service="a", rate_rps=1.0, reason="stock"),),
    )
    assert past.after(plan, None, 40.0).waiting_since_s == {"a": 40.0}


@pytest.mark.parametrize(
    "memory", [None, 3, {"version": 1}, {"version": 2, "waiting_since_s": [1]}]
)
def test_what_another_version_remembered_is_forgotten(memory: object) -> None:
    assert load_past(memory) == HetsevPast()  # type: ignore[arg-type]
    assert load_past(dump_past(HetsevPast(since_s=3.0))).since_s == 3.0
