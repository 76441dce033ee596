"""Knees fill GPUs, partitions give all of them away, the cap decides the clock, requests widen."""

import json
from dataclasses import replace
from functools import partial

import pytest

from solvers.check import violations
from solvers.papers.morak.parameters import MorakParameters
from solvers.papers.morak.policy import MEMORY_VERSION, make_plan
from solvers.types.outcome import Budget, PlanReport
from solvers.types.plan import Plan
from solvers.types.problem import (
    Problem,
)
from solvers.types.state import Json, Observed
from tests.examples import seeds
from tests.solvers.instances import (
    a_row,
    a_service,
    problem_of_networks,
    random_problem,
    shares_by_gpu,
)

# 20 ms at 20 %, 11 at 40 %, and hardly less beyond: the knee of three segments' two lines lies at 40 %.
BENT = tuple(
    a_row(share, time_ms)
    for share, time_ms in ((20.0, 20.0), (40.0, 11.0), (60.0, 10.6), (80.0, 10.2))
)
BENT += (a_row(100.0, 9.8),)

SETTLING_S = MorakParameters().settling_s


a_problem = partial(problem_of_networks, sm_percent_step=20.0, sensitivity=0.0)


def planned(
    problem: Problem,
    *,
    memory: Json = None,
    at_s: float = 0.0,
    asking: tuple[str, ...] = (),
) -> tuple[Plan, PlanReport, Json]:
    plan, report, after = make_plan(
        problem, Observed(at_s=at_s, repartition=asking), memory, Budget()
    )
    assert violations(problem, plan) == ()
    return plan, report, json.loads(json.dumps(after, allow_nan=False))


def test_two_knees_of_40_percent_share_a_gpu_and_a_third_needs_another() -> None:
    # The law lets half of 1000 / 11 ms = 90.9 rps be used, 45 rps; with 60 % of the SMs 47 rps.
    two = a_problem(
        *(a_service(name, rate_rps=40.0) for name in "ab"), networks={"net": BENT}
    )
    assert shares_by_gpu(planned(two)[0]) == [{"a": 60.0, "b": 40.0}]
    three = a_problem(
        *(a_service(name, rate_rps=40.0) for name in "abc"), networks={"net": BENT}
    )
    assert shares_by_gpu(planned(three)[0]) == [{"a": 60.0, "b": 40.0}, {"c": 100.0}]


def test_a_rate_beyond_one_replica_is_split_and_neighbours_fill_the_same_gpus() -> None:
    problem = a_problem(
        a_service("a", rate_rps=85.0),
        a_service("b", rate_rps=85.0),
        networks={"net": BENT},
    )
    assert shares_by_gpu(planned(problem)[0]) == [{"a": 60.0, "b": 40.0}] * 2


def test_the_batch_is_the_largest_within_half_the_slo_at_its_own_knee() -> None:
    rows = (*BENT, *(row._replace(batch=4, run_ms=4.0 * row.run_ms) for row in BENT))
    # Four at 40 % take 44 ms, within half of 100 ms, not within half of 80 ms.
    for slo_ms, batch in ((100.0, 4), (80.0, 1)):
        plan, _, _ = planned(
            a_problem(a_service(rate_rps=20.0, slo_ms=slo_ms), networks={"net": rows})
        )
        assert [gpu.replicas[0].batch for gpu in plan.gpus] == [batch]


def test_the_clock_is_the_highest_at_which_the_partition_keeps_the_cap() -> None:
    # At 1000 MHz a SM percent draws 1 W, at 800 MHz half of it and takes 1.2 times as long; idle power is 50 W.
    slower = tuple(
        row._replace(
            clock_mhz=800.0, run_ms=1.2 * row.run_ms, power_w=0.5 * row.power_w
        )
        for row in BENT
    )
    services = [a_service(name, rate_rps=30.0) for name in "ab"]
    for cap_w, clock_mhz in (
        (250.0, 1000.0),
        (150.0, 1000.0),
        (149.0, 800.0),
        (100.0, 800.0),
    ):
        problem = a_problem(
            *services,
            networks={"net": (*BENT, *slower)},
            power_cap_w=cap_w,
            clocks_mhz=(800.0, 1000.0),
        )
        (gpu,) = planned(problem)[0].gpus
        assert (gpu.clock_mhz, len(gpu.replicas)) == (clock_mhz, 2)


def test_under_a_cap_that_no_whole_partition_keeps_each_has_its_knee() -> None:
    # All of the SMs would draw 150 W, two knees of 40 % draw 130 W and one 90 W.
    services = [a_service(name, rate_rps=30.0) for name in "ab"]
    for cap_w, expected in (
        (130.0, [{"a": 40.0, "b": 40.0}]),
        (90.0, [{"a": 40.0}, {"b": 40.0}]),
    ):
        problem = a_problem(*services, networks={"net": BENT}, power_cap_w=cap_w)
        assert shares_by_gpu(planned(problem)[0]) == expected


def test_who_asks_counts_as_wider_until_fewer_share_a_gpu() -> None:
    problem = a_problem(
        *(a_service(name, rate_rps=40.0) for name in "ab"), networks={"net": BENT}
    )
    plan, _, memory = planned(problem)
    running = replace(problem, current=plan)
    assert planned(running, memory=memory, at_s=100.0)[0] == plan
    after, report, memory = planned(
        running, memory=memory, at_s=200.0, asking=("a", "b")
    )
    # 50 and 50 still fit; from 60 and 60 on they do not.
    assert shares_by_gpu(after) == [{"a": 60.0, "b": 40.0}]
    assert report.messages == ("another partition for a, b",)
    after, _, memory = planned(
        running, memory=memory, at_s=200.0 + SETTLING_S, asking=("a", "b")
    )
    assert shares_by_gpu(after) == [{"a": 100.0}, {"b": 100.0}]
    assert memory == {
        "version": MEMORY_VERSION,
        "wider": {"a": 2, "b": 2},
        "heard_at_s": 200.0 + SETTLING_S,
    }


def test_requests_are_not_heard_while_the_last_one_settles() -> None:
    problem = a_problem(a_service("a", rate_rps=40.0), networks={"net": BENT})
    _, _, memory = planned(problem, at_s=100.0, asking=("a",))
    _, report, later = planned(
        problem, memory=memory, at_s=100.0 + SETTLING_S - 1.0, asking=("a",)
    )
    assert (later, report.messages) == (memory, ())


@pytest.mark.parametrize("seed", seeds(10))
def test_its_plans_keep_every_promise(seed: int) -> None:
    problem = random_problem(
        seed, services=4 + seed % 9, types=1 + seed % 3, gpus=1 + seed % 6
    )
    plan, _, memory = planned(problem)
    planned(
        replace(problem, current=plan),
        memory=memory,
        at_s=60.0,
        asking=(problem.services[0].name,),
    )


def test_where_gpus_are_short_everybody_gets_the_same_part() -> None:
    services = [a_service(name, rate_rps=400.0) for name in "abc"]
    plan, _, _ = planned(a_problem(*services, networks={"net": BENT}, count=3))
    # Each wants nine of 45 rps. One each is a ninth, on two GPUs; then a and b fit once more, on the third.
    assert sorted(map(sorted, shares_by_gpu(plan))) == [["a", "b"], ["a", "b"], ["c"]]
    assert {entry.service for entry in plan.unserved} == {"a", "b", "c"}
