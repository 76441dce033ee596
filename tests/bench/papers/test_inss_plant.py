"""InSS's plant: its printed rows are hit, and its objective is summed up by hand."""

import pytest

from bench.papers.inss_plant import (
    at_load,
    highest_load,
    inss_curves,
    planned_by,
    plant_problem,
    sum_of_throughputs_rps,
)
from bench.papers.inss_stage import WORKLOADS
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan


@pytest.mark.parametrize(
    ("network", "batch", "sm_percent", "printed_ms", "neighbours"),
    [  # rows of the paper's tables 2 and 3; 9 % for each neighbour that was there
        ("resnet50", 1, 30.0, 8.69, 0),
        ("resnet50", 16, 30.0, 71.456, 0),
        ("alexnet", 8, 30.0, 8.898, 1),
        ("vgg16", 4, 30.0, 62.009, 2),
        ("mnasnet", 4, 24.0, 4.241, 0),
        ("mnasnet", 4, 60.0, 3.409, 0),
    ],
)
def test_the_printed_rows_are_hit(
    network: str, batch: int, sm_percent: float, printed_ms: float, neighbours: int
) -> None:
    found_ms = inss_curves()[network].batch_ms(batch, sm_percent)
    assert found_ms * 1.09**neighbours == pytest.approx(printed_ms, rel=0.04)


def test_the_objective_is_batches_over_their_times_beside_the_neighbours() -> None:
    problem = plant_problem()
    replicas = tuple(
        ReplicaPlan(service=name, sm_percent=percent, batch=8, arrival_rate_rps=1.0)
        for name, percent in (("resnet50", 60.0), ("alexnet", 40.0))
    )
    gpu = GpuPlan(gpu_type="RTX-2060", count=2, clock_mhz=1680.0, replicas=replicas)
    curves = inss_curves()
    by_hand = sum(
        2 * 1000.0 * 8 / (1.09 * curves[each.service].batch_ms(8, each.sm_percent))
        for each in replicas
    )
    plan = Plan(policy="by hand", gpus=(gpu,), unserved=())
    assert sum_of_throughputs_rps(problem, plan) == pytest.approx(by_hand)


def test_mixes_lie_in_the_published_ranges_and_follow_from_the_seed() -> None:
    assert at_load(1.0, 3) == at_load(1.0, 3) != at_load(1.0, 4)
    for each in at_load(2.0, 3).services:
        workload = WORKLOADS[each.name]
        assert workload.lowest_rps <= each.arrival_rate_rps / 2 <= workload.highest_rps


@pytest.mark.thorough
def test_inss_gives_all_sms_away_where_igniter_gives_what_is_needed() -> None:
    problem = at_load(1.0, 1)
    sums = {
        name: sum_of_throughputs_rps(problem, planned_by(name, problem))
        for name in ("inss", "igniter")
    }
    assert sums["inss"] > 2.0 * sums["igniter"]
    used = planned_by("inss", problem)
    free = [100.0 - sum(r.sm_percent for r in gpu.replicas) for gpu in used.gpus]
    # A share that is left cannot be given to anyone who gains by it.
    assert sum(free) < 50.0 and not used.unserved


def test_a_load_that_nobody_can_serve_ends_the_search() -> None:
    found = highest_load("igniter", 1, (0.4, 50.0, 0.6))
    # iGniter sizes for the mean, so the law promises no 99th percentile of it.
    assert (found.believed, found.promised) == (0.4, 0.0)
