"""What seeds say together, by hand; and reports that come back from their files as they went in."""

import math

import pytest

from app.simulate.report.report import (
    estimate,
    make_report,
    violations,
)
from tests.app.runs import (
    a_run,
    a_scenario,
    a_service_result,
    a_task_result,
)


def test_a_mean_over_seeds_has_students_interval() -> None:
    # Five values of mean 3 and deviation sqrt(2.5): 2.776 · sqrt(2.5 / 5).
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.776 * math.sqrt(0.5), rel=1e-3)


def test_violations_count_late_and_rejected_requests_of_all_services() -> None:
    run = a_run(
        services=(
            a_service_result("a", served=80, in_slo=70, rejected=20),
            a_service_result("b", served=100),
        )
    )
    assert violations(run) == pytest.approx(30 / 200)


def test_who_waits_overdue_at_the_end_was_not_served_in_time() -> None:
    # 100 in SLO of b, 60 overdue of a and 3 of b: 100 of 163. The other 7 that wait for b may yet be in time.
    starved = a_service_result("a", served=0, queued=60, overdue=60)
    served = a_service_result("b", served=100, queued=10, overdue=3)
    run = a_run(services=(starved, served))
    assert (starved.attainment, served.attainment) == (0.0, pytest.approx(100 / 103))
    assert violations(run) == pytest.approx(63 / 163)
    summary = make_report(a_scenario(), [run]).policies[0]
    assert summary.worst_attainment is not None and summary.worst_attainment.mean == 0.0


def test_without_requests_nothing_is_violated_and_attainment_is_unknown() -> None:
    idle = a_service_result("a", served=0)
    run = a_run(services=(idle,))
    assert violations(run) == 0.0
    assert idle.attainment is None
    assert make_report(a_scenario(), [run]).policies[0].worst_attainment is None


def test_policies_are_summed_up_over_their_own_seeds() -> None:
    runs = [
        a_run(
            "one",
            seed=seed,
            cost_usd=cost,
            services=(a_service_result("a", served=100, in_slo=in_slo),),
        )
        for seed, cost, in_slo in ((1, 2.0, 90), (2, 4.0, 100))
    ] + [a_run("two", cost_usd=9.0)]
    one, two = make_report(a_scenario(), runs).policies
    assert (one.policy, two.policy) == ("one", "two")
    assert one.cost_usd.mean == 3.0
    assert (
        one.worst_attainment is not None
        and one.worst_attainment.mean == pytest.approx(0.95)
    )
    assert one.services[0].attainment == one.worst_attainment
    assert two.cost_usd == estimate([9.0])


def test_tasks_are_summed_up_where_every_run_has_them() -> None:
    done = a_task_result("a", finished_s=70.0, deadline_s=90.0)
    open_, late = (
        a_task_result("b", deadline_s=120.0),
        a_task_result("c", deadline_s=50.0),
    )
    runs = [
        a_run("one", seed=1, tasks=(done, open_, late)),
        a_run("one", seed=2, tasks=(done,)),
        a_run("two"),
    ]
    one, two = make_report(a_scenario(), runs).policies
    assert two.tasks is None and one.tasks is not None
    assert one.tasks.finished.mean == pytest.approx((1 / 3 + 1) / 2)
    assert one.tasks.completion_s == estimate([60.0, 60.0])
    # Seed 1: one met, one missed, one has time left; seed 2: one met.
    assert one.tasks.in_time is not None and one.tasks.in_time.mean == pytest.approx(
        0.75
    )
    # In the time that counts 180 + 80 + 80 iterations, and 180, of a hundredth of an hour each.
    assert one.tasks.work_gpu_hours.mean == pytest.approx((3.4 + 1.8) / 2)
    assert one.tasks.undecided.mean == 0.5
