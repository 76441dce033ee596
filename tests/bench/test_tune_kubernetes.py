"""The search for the best settings of `k8s_hpa`: as good as trying everything, bounded, and what the demo has."""

from collections.abc import Mapping
from itertools import product

import pytest

from agents.sim.queues.tally import ServiceTotals
from app.demo.baseline import (
    TUNED_PODS,
    with_quarters,
)
from app.demo.scenario import DURATION_S, demo_cluster
from app.simulate.run.accounting import Bill
from bench.closed_runs import ClosedRun
from bench.tune_kubernetes import MAX_STEPS, PARTS, KubernetesSearch, Pods, search
from solvers.baselines.k8s_pods import PodOptions

SLOS = {"chat": 0.98, "photo": 0.98}
PRICES_USD = {"cheap": 1.0, "fast": 5.0}
FINISHED = 1000
SEED = 1
"""Of the requests that the demo's settings were found for, and that it has unless it is told otherwise."""


def a_run(attained: Mapping[str, float], usd: Mapping[str, float]) -> ClosedRun:
    return ClosedRun(
        bill=Bill(whole_gpu_usd=usd, memory_usd={}),
        handover_usd=0.0,
        totals=tuple(
            ServiceTotals(
                service=name,
                arrivals=FINISHED,
                served=FINISHED,
                in_slo=round(FINISHED * share),
                rejected=0,
                queued=0,
                present_s=0.0,
                sojourn_s=0.0,
                latency_buckets=(),
                replicas=1,
            )
            for name, share in attained.items()
        ),
        plans_pushed=1,
        starts=1,
        wall_s=0.0,
        percentiles=SLOS,
    )


class World:
    """A made-up cluster, where what a service attains and costs follows from its own settings alone."""

    def __init__(self) -> None:
        self.trials = 0

    def __call__(self, pods: Pods) -> ClosedRun:
        self.trials += 1
        return a_run(
            {name: self.attained(name, option) for name, option in pods.items()},
            {name: self.usd(option) for name, option in pods.items()},
        )

    @staticmethod
    def attained(name: str, option: PodOptions) -> float:
        # Each part and each tenth of the target takes some; photo misses its SLO on anything but the fast type.
        lost = 0.003 * option.parts * 10.0 * max(0.0, option.target - 0.7)
        slow = 0.5 if (name, option.gpu_type) == ("photo", "cheap") else 0.0
        return max(0.0, 1.0 - lost - slow)

    @staticmethod
    def usd(option: PodOptions) -> float:
        assert option.gpu_type is not None
        return round(PRICES_USD[option.gpu_type] / option.parts / option.target, 4)


def every_setting() -> list[PodOptions]:
    targets = [round(0.4 + 0.1 * step, 2) for step in range(13)]
    return [
        PodOptions(gpu_type=gpu_type, parts=parts, target=target, scale_down_s=60.0)
        for gpu_type, parts, target in product(PRICES_USD, PARTS, targets)
    ]


@pytest.mark.parametrize("required", [0.98, 0.99, 0.997])
def test_no_setting_of_a_small_cluster_is_cheaper_than_the_one_that_is_found(
    required: float,
) -> None:
    world = World()
    found = KubernetesSearch(world, dict.fromkeys(SLOS, 60.0), list(PRICES_USD)).best(
        dict.fromkeys(SLOS, required)
    )
    # Services do not touch each other here, so that each one's cheapest setting is part of the best.
    cheapest_usd = sum(
        min(
            World.usd(option)
            for option in every_setting()
            if World.attained(name, option) >= required
        )
        for name in SLOS
    )
    assert found.run.bill.total_usd == pytest.approx(cheapest_usd)
    assert found.is_complete
    assert found.runs == world.trials


def test_where_no_setting_keeps_the_slo_the_one_that_comes_nearest_is_found() -> None:
    world = World()
    delays_s = dict.fromkeys(SLOS, 60.0)
    found = KubernetesSearch(world, delays_s, ["cheap"]).best(SLOS)
    assert found.run.attained["photo"] == pytest.approx(0.5)
    assert found.run.attained["chat"] >= SLOS["chat"]


def test_a_search_is_cut_short_after_its_steps_and_says_so() -> None:
    world = World()

    def ever_cheaper(pods: Pods) -> ClosedRun:
        world.trials += 1
        return a_run(dict.fromkeys(pods, 1.0), dict.fromkeys(pods, 1.0 / world.trials))

    names = [f"s{number}" for number in range(20)]
    searched = KubernetesSearch(ever_cheaper, dict.fromkeys(names, 60.0), ["cheap"])
    found = searched.best(dict.fromkeys(names, 0.98))
    assert not found.is_complete
    assert found.runs <= len(PARTS) * 4 + 4 + MAX_STEPS


def test_a_quarter_is_as_fast_as_work_over_share_says() -> None:
    (points, *_) = with_quarters(demo_cluster("k8s_hpa", 1).points)
    rows = {(row.sm_percent, row.batch, row.clock_mhz): row for row in points.rows}
    quarters = [key for key in rows if key[0] == 25.0]
    assert quarters
    for _, batch, clock_mhz in quarters:
        low, mid, high = (
            rows[share, batch, clock_mhz].run_ms for share in (20.0, 25.0, 30.0)
        )
        # run = a + b / share through both ends: at 25 % it is 0.4 of the way up.
        assert mid == pytest.approx(high + 0.4 * (low - high))


@pytest.mark.thorough
def test_no_step_is_better_than_the_settings_that_the_demo_has() -> None:
    plan = demo_cluster("k8s_hpa", SEED)
    slos = {each.name: each.slo.percentile for each in plan.services}
    # The whole search, from all settings alike, is the bench's.
    found = search(plan, DURATION_S).improved(TUNED_PODS, slos)
    assert dict(found.pods) == dict(TUNED_PODS)
    assert found.is_complete
    assert found.run.missed == ()
    # A T4 for each of the four services all the time: what no setting without shared GPUs comes below.
    unshared_usd = 4 * 0.526 * DURATION_S / 3600.0
    assert found.run.bill.total_usd < 0.7 * unshared_usd
