"""The headline of the demo's comparison: against whom, and by how much."""

from collections.abc import Mapping

import pytest

from agents.sim.queues.tally import ServiceTotals
from app.simulate.run.accounting import Bill
from bench.closed_runs import ClosedRun
from bench.demo import DemoSeed, headline

JOINT = (1.0, 0.995)


def a_run(usd: float, attained: float) -> ClosedRun:
    totals = ServiceTotals(
        service="chat",
        arrivals=10_000,
        served=10_000,
        in_slo=round(10_000 * attained),
        rejected=0,
        queued=0,
        present_s=0.0,
        sojourn_s=0.0,
        latency_buckets=(),
        replicas=1,
    )
    return ClosedRun(
        bill=Bill(whole_gpu_usd={"chat": usd}, memory_usd={"chat": usd}),
        handover_usd=0.0,
        totals=(totals,),
        plans_pushed=1,
        starts=1,
        wall_s=0.0,
        percentiles={"chat": 0.98},
    )


def seeds(*runs: Mapping[str, tuple[float, float]]) -> list[DemoSeed]:
    """Cost and attainment by policy, one mapping per seed."""
    return [
        DemoSeed(
            seed=number,
            runs={name: a_run(*each) for name, each in policies.items()},
            pods={},
        )
        for number, policies in enumerate(runs)
    ]


def test_the_cheapest_rival_is_another_one_where_it_must_attain_as_much() -> None:
    found = headline(
        seeds(
            {"joint": JOINT, "thrifty": (0.8, 0.985), "good": (1.25, 0.996)},
            {"joint": JOINT, "thrifty": (0.8, 0.985), "good": (2.0, 0.996)},
        )
    )
    assert [(row["rivals"], row["cheapest"]) for row in found] == [
        ("as well attained", "good"),
        ("SLOs kept", "thrifty"),
    ]
    # 1 - 1/1.25 and 1 - 1/2 on the one hand, twice 1 - 1/0.8 on the other: taken within each seed.
    assert [row["joint_saves_percent"] for row in found] == pytest.approx([35.0, -25.0])
    # t(0.975, 1) = 12.706 times the standard error, which is half of 50 - 20.
    assert found[0]["saving_half_interval"] == pytest.approx(12.706 * 15.0, rel=1e-4)
    assert [row["joint_attains_more_points"] for row in found] == pytest.approx(
        [-0.1, 1.0]
    )


def test_who_misses_an_slo_in_one_seed_is_no_rival_however_cheap() -> None:
    found = headline(
        seeds(
            {"joint": JOINT, "cheap": (0.1, 0.979), "good": (1.25, 0.99)},
            {"joint": JOINT, "cheap": (0.1, 0.999), "good": (1.25, 0.99)},
        )
    )
    assert [(row["rivals"], row["cheapest"]) for row in found] == [
        ("SLOs kept", "good")
    ]


def test_what_nobody_knows_beforehand_is_no_rival_and_has_a_line_of_its_own() -> None:
    found = headline(
        seeds(*[{"joint": JOINT, "k8s_hpa": (0.8, 0.999), "other": (2.0, 0.999)}] * 2)
    )
    assert [(row["rivals"], row["cheapest"]) for row in found] == [
        ("as well attained", "other"),
        ("SLOs kept", "other"),
        ("bound", "k8s_hpa"),
    ]
    assert found[-1]["joint_saves_percent"] == pytest.approx(-25.0)
