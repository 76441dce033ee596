"""Best effort where GPUs are too few: none is left out whom a little lateness of all would let in."""

from dataclasses import replace

import pytest

from solvers.check import violations
from solvers.joint.policy import make_plan
from solvers.joint.shortage import (
    STRETCH,
    as_promised,
    at_medians,
    is_short,
    keeps_medians,
    softened_keys,
)
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.outcome import Budget, Stability
from solvers.types.plan import GpuPlan, Plan, Unserved
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import Json, Observed
from tests.solvers.instances import (
    a_problem,
    a_row,
    a_service,
    a_type,
    gpu_plan,
    replica_on,
)

LOOP = Budget(
    work=1.0,
    stability=Stability(start_price=0.2, min_dwell_s=60.0),
    is_series=True,
)


def two_gpus(*, light_rps: float = 118.0, light_priority: float = 1.0) -> Problem:
    """`light` is served 100 rps by a GPU and `heavy`, which fits on nothing less than one, 50 rps.

    By the percentile `light` takes both GPUs for its 118 rps: that serves more than 100 of it and 9 of `heavy`.
    """
    problem = a_problem(
        a_service("light", rate_rps=light_rps, priority=light_priority),
        a_service("heavy", rate_rps=9.0, network="big"),
        types=(a_type(count=2),),
    )
    big = OperatingPoints(
        network="big", gpu_type="gpu", sensitivity=0.0, rows=(a_row(100.0, 10.0),)
    )
    return replace(problem, points=(*problem.points, big))


def whole(service: str, rate_rps: float) -> GpuPlan:
    replica = replica_on(service, 100.0, rate_rps)
    return gpu_plan(replica)


def one_each() -> Plan:
    return Plan(
        policy="joint",
        gpus=(whole("light", 100.0), whole("heavy", 9.0)),
        unserved=(Unserved(service="light", rate_rps=18.0, reason="stock"),),
    )


def without_heavy() -> Plan:
    return Plan(
        policy="joint",
        gpus=(whole("light", 59.0), whole("light", 59.0)),
        unserved=(Unserved(service="heavy", rate_rps=9.0, reason="stock"),),
    )


def served(plan: Plan) -> dict[str, float]:
    """Requests per second by service."""
    found: dict[str, float] = {}
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            found[replica.service] = (
                found.get(replica.service, 0.0) + gpu.count * replica.arrival_rate_rps
            )
    return found


def test_medians_hold_where_everybody_is_served_within_the_stretch() -> None:
    # light: 100 rps by the percentile, 120 stretched, 118 wanted.
    assert keeps_medians(two_gpus(), one_each())
    assert not keeps_medians(two_gpus(light_rps=121.0), one_each())
    assert not keeps_medians(two_gpus(), without_heavy())


def allowed(problem: Problem, service: str, batch: int, ratio: float) -> float:
    """The utilisation that the problem's law allows the service."""
    return problem.capacity_law.utilisation(
        problem.service(service).percentile, batch, ratio
    )


def test_the_stretch_bounds_what_a_median_may_add() -> None:
    problem = at_medians(two_gpus(), one_each())
    # At nine times its execution time nearly every utilisation has its median in time, so that the stretch decides.
    assert allowed(problem, "light", 1, 9.0) == pytest.approx(STRETCH * 0.5)
    assert problem.capacity_law.utilisation(0.95, 1, 9.0) == 0.5
    assert allowed(problem, "light", 1, 1.9) == 0.0


def test_a_median_stays_between_the_law_of_medians_and_its_percentile() -> None:
    strict = two_gpus()
    rows = (((0.7, 0.99), (0.8, 0.8)),)
    problem = at_medians(
        replace(
            strict, capacity_law=replace(strict.capacity_law, max_utilisation=rows)
        ),
        one_each(),
    )
    # Batch 1, ratio 2: the law of medians allows 0.768, less than 1.2 · 0.7 = 0.84; at ratio 9 less than this row's.
    assert 0.76 < allowed(problem, "light", 1, 2.0) < 0.78
    assert allowed(problem, "light", 1, 9.0) == 0.99


PERCENTILES = {"lax": 0.9, "strict": 0.99}


def of_three_percentiles() -> Problem:
    """Services at the median, at p90 and at p99 under the real law; each lacks some rate in `all_short`."""
    services = [
        a_service(name, rate_rps=9.0, percentile=one)
        for name, one in {"half": 0.5, **PERCENTILES}.items()
    ]
    return a_problem(
        *services, capacity_law=make_capacity_law([0.5, 0.9, 0.99], [1, 8])
    )


def all_short(problem: Problem) -> Plan:
    entries = tuple(
        Unserved(service=each.name, rate_rps=1.0, reason="stock")
        for each in problem.services
    )
    return Plan(policy="joint", gpus=(), unserved=entries)


@pytest.mark.parametrize("has_medians", [True, False])
@pytest.mark.parametrize("batch", [1, 8])
def test_everybody_is_stretched_by_their_own_percentile_whoever_else_there_is(
    *, has_medians: bool, batch: int
) -> None:
    problem = of_three_percentiles()
    if not has_medians:
        problem = replace(
            problem,
            services=problem.services[1:],
            capacity_law=make_capacity_law([0.9, 0.99], [1, 8]),
        )
    softened = at_medians(problem, all_short(problem))
    median = make_capacity_law([0.5], [1, 8])
    for name, percentile in PERCENTILES.items():
        for ratio in (1.0, 1.05, 1.2, 1.5, 1.9, 2.0, 2.3, 3.0, 4.5, 6.0, 20.0):
            own = problem.capacity_law.utilisation(percentile, batch, ratio)
            found = allowed(softened, name, batch, ratio)
            assert own <= found <= STRETCH * own + 1e-12, (name, ratio)
            # Between the ratios of two tables chords differ by 0.01 at most.
            assert found <= max(own, median.utilisation(0.5, batch, ratio)) + 0.01, (
                name,
                ratio,
            )


def test_who_asks_for_a_median_keeps_that_row_beside_softened_ones() -> None:
    problem = of_three_percentiles()
    softened = at_medians(problem, all_short(problem))
    law = softened.capacity_law
    assert (
        softened.service("half").percentile,
        law.max_utilisation[law.percentiles.index(0.5)],
    ) == (
        0.5,
        problem.capacity_law.max_utilisation[0],
    )
    # A row for each of p90 and p99 besides, in the order of percentiles, and none of them twice.
    assert list(law.percentiles) == sorted(
        {0.5, 0.9, 0.99} | {one.percentile for one in softened.services}
    )
    assert len(law.percentiles) == len(law.max_utilisation) == 5


def test_who_is_more_important_than_all_left_out_keeps_their_percentile() -> None:
    key = softened_keys(two_gpus().capacity_law)[0.95]
    problem = at_medians(two_gpus(light_priority=2.0), without_heavy())
    assert {one.name: one.percentile for one in problem.services} == {
        "light": 0.95,
        "heavy": key,
    }
    problem = at_medians(two_gpus(light_priority=2.0), one_each())
    assert {one.percentile for one in problem.services} == {key}


def test_nothing_changes_where_nobody_is_left_out() -> None:
    full = replace(one_each(), unserved=())
    assert not is_short(full)
    assert at_medians(two_gpus(), full) == two_gpus()


def test_what_other_reasons_leave_out_is_no_want_of_gpus() -> None:
    slow = replace(
        one_each(), unserved=(Unserved(service="light", rate_rps=10.0, reason="slo"),)
    )
    assert not is_short(slow)


def test_the_promise_is_what_the_percentile_allows() -> None:
    stretched = replace(
        one_each(), gpus=(whole("light", 118.0), whole("heavy", 9.0)), unserved=()
    )
    promised = as_promised(two_gpus(), stretched)
    assert served(promised) == pytest.approx({"light": 100.0, "heavy": 9.0})
    assert [(entry.service, entry.reason) for entry in promised.unserved] == [
        ("light", "stock")
    ]
    assert promised.unserved[0].rate_rps == pytest.approx(18.0)
    assert violations(two_gpus(), promised) == ()


def test_joint_leaves_no_service_out_where_a_little_lateness_lets_all_in() -> None:
    plan, report, memory = make_plan(two_gpus(), Observed(at_s=0.0), None, LOOP)
    assert served(plan) == pytest.approx({"light": 100.0, "heavy": 9.0})
    assert report.messages[0].startswith("arranged so that every median is in time")
    again, _, _ = make_plan(
        replace(two_gpus(), current=plan), Observed(at_s=10.0), memory, LOOP
    )
    assert again.gpus == plan.gpus


def test_a_single_plan_serves_most_as_its_contract_says() -> None:
    plan, _, _ = make_plan(two_gpus(), Observed(at_s=0.0), None, Budget(work=1.0))
    assert served(plan) == pytest.approx({"light": 118.0})


def test_goodput_as_the_objective_serves_most_in_the_loop_too() -> None:
    problem = replace(two_gpus(), objective="max_goodput")
    plan, _, _ = make_plan(problem, Observed(at_s=0.0), None, LOOP)
    assert served(plan) == pytest.approx({"light": 118.0})


def test_ends_and_goes_back_when_there_are_gpus_again() -> None:
    memory: Json = None
    plan, _, memory = make_plan(two_gpus(), Observed(at_s=0.0), memory, LOOP)
    more = replace(two_gpus(), gpu_types=(a_type(count=3),), current=plan)
    plan, report, _ = make_plan(more, Observed(at_s=10.0), memory, LOOP)
    assert plan.unserved == ()
    assert not report.messages[0].startswith("arranged")
