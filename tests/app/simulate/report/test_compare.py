"""Policies next to each other, seed by seed: what differs, what chance may explain, and which one is put first."""

import pytest

from app.simulate.report.compare import compare, favourite, is_shown, missed
from app.simulate.report.report import SimulationReport, make_report
from app.simulate.run.results import RunResult
from tests.app.runs import a_run, a_scenario, a_service_result


def a_report(*runs: RunResult) -> SimulationReport:
    return make_report(a_scenario(), runs)


def costing(policy: str, *costs_usd: float, in_slo: int = 100) -> list[RunResult]:
    """A run for each cost, with seeds 1, 2, ..., and `in_slo` of 100 requests in SLO."""
    services = (a_service_result("a", served=100, in_slo=in_slo),)
    return [
        a_run(policy, seed=seed, cost_usd=cost, services=services)
        for seed, cost in enumerate(costs_usd, start=1)
    ]


def test_savings_are_taken_within_each_seed() -> None:
    # One seed costs ten times the other; the ratio is 0.8 and 0.9 all the same.
    found = compare(
        a_report(*costing("one", 0.8, 9.0), *costing("two", 1.0, 10.0)), "one", "two"
    )
    assert found is not None and found.saving is not None
    assert found.saving.mean == pytest.approx(0.15)
    # Student's factor for two values is 12.706; deviation 0.0707, over the root of two.
    assert found.saving.half_width == pytest.approx(12.706 * 0.05, rel=1e-3)
    assert not is_shown(found.saving)


def test_gains_count_requests_in_slo() -> None:
    found = compare(
        a_report(*costing("one", 1.0, in_slo=99), *costing("two", 1.0, in_slo=95)),
        "one",
        "two",
    )
    assert found is not None
    assert found.attainment_gain.mean == pytest.approx(0.04)
    assert not is_shown(found.attainment_gain)


def test_only_common_seeds_are_compared() -> None:
    runs = [a_run("one", seed=1), a_run("two", seed=2)]
    assert compare(a_report(*runs), "one", "two") is None


def test_a_rival_that_cost_nothing_has_no_ratio() -> None:
    found = compare(a_report(*costing("one", 1.0), *costing("two", 0.0)), "one", "two")
    assert found is not None and found.saving is None


@pytest.mark.parametrize("in_slo", [0, 49])
def test_who_leaves_most_requests_unserved_neither_saves_nor_is_preferred(
    in_slo: int,
) -> None:
    # 49 of 100 are served: cheap, since most of the work is not done.
    services = (a_service_result("a", served=49, in_slo=in_slo, rejected=51),)
    report = a_report(
        a_run("lazy", cost_usd=0.5, services=services),
        *costing("busy", 1.0, in_slo=in_slo),
    )
    for pair in (("lazy", "busy"), ("busy", "lazy")):
        found = compare(report, *pair)
        assert found is not None and found.saving is None
    assert favourite(report, ["lazy", "busy"]) == "busy"
    assert favourite(report, ["lazy"]) == "lazy"


def test_who_starts_nothing_at_all_is_no_favourite() -> None:
    unserved = a_service_result("a", served=0, queued=100, overdue=100)
    idle = a_run("idle", cost_usd=0.0, services=(unserved,))
    report = a_report(idle, *costing("good", 2.0))
    assert missed(report, report.policies[0]) == ["a"]
    assert favourite(report, ["idle", "good"]) == "good"


def test_the_cheapest_that_keeps_every_slo_comes_first() -> None:
    report = a_report(
        *costing("cheap", 1.0, in_slo=90), *costing("good", 2.0), *costing("dear", 3.0)
    )
    assert favourite(report, ["cheap", "good", "dear"]) == "good"
    assert favourite(report, ["cheap", "dear"]) == "dear"
    assert [missed(report, each) for each in report.policies] == [["a"], [], []]


def test_where_none_keeps_them_the_one_that_misses_least_comes_first() -> None:
    report = a_report(
        *costing("cheap", 1.0, in_slo=80), *costing("other", 2.0, in_slo=90)
    )
    assert favourite(report, ["cheap", "other"]) == "other"


def test_where_chance_may_explain_who_misses_least_cost_decides() -> None:
    def missing(policy: str, cost_usd: float, *in_slo: int) -> list[RunResult]:
        services = [
            (a_service_result("a", served=100, in_slo=each),) for each in in_slo
        ]
        return [
            a_run(policy, seed=seed, cost_usd=cost_usd, services=each)
            for seed, each in enumerate(services)
        ]

    dear, cheap, bad = (
        missing("dear", 3.0, 90, 80),
        missing("cheap", 2.0, 88, 81),
        missing("bad", 1.0, 60, 50),
    )
    report = a_report(*dear, *cheap, *bad)
    assert favourite(report, ["dear", "cheap", "bad"]) == "cheap"
