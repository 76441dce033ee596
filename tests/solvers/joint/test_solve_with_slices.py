"""GPUs that may be cut into slices, beside those that are shared: best plans, bounds and layouts."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from solvers.joint.patterns.slice_layouts import A100_40GB, MEMORY_SLICES
from solvers.joint.patterns.slice_tables import SliceOffer, SliceRow, with_slices
from solvers.joint.patterns.tables import make_tables
from solvers.joint.solve import solve
from solvers.joint.solve_with_slices import SlicedPlan, solve_with_slices
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from tests.solvers.instances import a_problem, a_row, a_service, a_type
from tests.solvers.joint.oracle import Fleets, best_plan
from tests.solvers.problems import tiny_problem

BUDGET = Budget(work=2.0)
PROFILES = {profile.name: profile for profile in A100_40GB}


def a_slice_row(
    profile: str, execution_ms: float, *, batch: int = 1, **changes: float
) -> SliceRow:
    """1 GB and 20 W."""
    return SliceRow(profile, batch, 1000.0, execution_ms, 1000.0, 20.0)._replace(
        **changes
    )


def an_offer(
    *rows: SliceRow, gpu_type: str = "gpu", network: str = "net"
) -> SliceOffer:
    return SliceOffer(gpu_type=gpu_type, profiles=A100_40GB, rows=((network, rows),))


def random_offer(seed: int) -> SliceOffer:
    """For the type `big` of a tiny problem: three rows for each of its two networks."""
    draw = random.Random(f"slices {seed}")
    return SliceOffer(
        gpu_type="big",
        profiles=A100_40GB,
        rows=tuple(
            (
                f"net{number}",
                tuple(
                    SliceRow(
                        profile=profile,
                        batch=draw.choice((1, 4, 8)),
                        clock_mhz=1000.0,
                        execution_ms=draw.uniform(8.0, 30.0) / int(profile[0]),
                        memory_mib=draw.choice((3_000.0, 4_000.0, 9_000.0)),
                        power_w=draw.choice((15.0, 30.0, 60.0)),
                    )
                    for profile in draw.sample(
                        (
                            "1g.5gb",
                            "1g.10gb",
                            "2g.10gb",
                            "3g.20gb",
                            "4g.20gb",
                            "7g.40gb",
                        ),
                        3,
                    )
                ),
            )
            for number in range(2)
        ),
    )


def sliced_gpus(problem: Problem, offer: SliceOffer) -> Fleets:
    """One GPU with each lawful set of slices, by trial."""
    gpu_type = problem.gpu_type(offer.gpu_type)
    energy = problem.energy_price_usd_per_kwh / 1000.0
    capacity, replicas, cost = [], [], []
    choices = []
    for service in problem.services:
        rows = offer.rows_of(service.network) if service.allows(gpu_type.name) else ()
        choices.append(
            [
                None,
                *(
                    row
                    for row in rows
                    if row.memory_mib <= PROFILES[row.profile].memory_mib
                ),
            ]
        )
    for mix in itertools.product(*choices):
        chosen = [row for row in mix if row is not None]
        watts = gpu_type.idle_w + sum(row.power_w for row in chosen)
        if (
            not 0 < len(chosen) <= problem.max_replicas_per_gpu
            or watts > gpu_type.power_cap_w
        ):
            continue
        if not can_be_placed([row.profile for row in chosen]):
            continue
        carried = []
        for service, row in zip(problem.services, mix, strict=True):
            law, rps = problem.capacity_law, 0.0
            if row is not None:
                ratio = service.slo_ms / row.execution_ms
                rps = (
                    1000.0
                    * row.batch
                    / row.execution_ms
                    * law.utilisation(service.percentile, row.batch, ratio)
                )
            carried.append(rps)
        capacity.append(carried)
        replicas.append([0.0 if row is None else 1.0 for row in mix])
        cost.append(gpu_type.price_usd_per_hour + energy * watts)
    shape = (len(cost), len(problem.services))
    return Fleets(
        np.reshape(capacity, shape),
        np.reshape(replicas, shape),
        np.array(cost),
        np.zeros(len(cost)),
    )


def can_be_placed(names: list[str]) -> bool:
    """By trying every first memory slice of each."""
    for starts in itertools.product(*(PROFILES[name].starts for name in names)):
        taken = [
            start + at
            for name, start in zip(names, starts, strict=True)
            for at in range(PROFILES[name].memory_slices)
        ]
        if len(set(taken)) == len(taken) and max(taken) < MEMORY_SLICES:
            return True
    return False


def served_weight(problem: Problem, plan: SlicedPlan) -> float:
    short = plan.unserved_rps
    return sum(
        one.priority * (one.arrival_rate_rps - short.get(one.name, 0.0))
        for one in problem.services
    )


def replicas_of(plan: SlicedPlan) -> Iterator[str]:
    for gpu in (*plan.shared, *plan.sliced):
        for _ in range(gpu.count):
            yield from (replica.service for replica in gpu.replicas)


@pytest.mark.parametrize("seed", range(60))
def test_the_plan_is_the_best_of_all_and_the_bound_is_no_more(seed: int) -> None:
    problem, offer = tiny_problem(seed), random_offer(seed)
    # What is short has a price here and comes first in the oracle: a least number of replicas could make them differ.
    problem = replace(
        problem,
        services=tuple(replace(one, min_replicas=0) for one in problem.services),
    )
    best = best_plan(problem, {"big": sliced_gpus(problem, offer)})
    plan = solve_with_slices(problem, [offer], BUDGET)
    assert served_weight(problem, plan) == pytest.approx(best.weight, abs=1e-5)
    assert plan.cost_usd_per_hour == pytest.approx(best.cost, rel=1e-5)
    assert plan.cost_bound <= best.cost + 1e-9


def test_slices_never_make_a_plan_dearer() -> None:
    for seed in range(100, 104):
        problem, offer = tiny_problem(seed), random_offer(seed)
        without, with_them = (
            solve_with_slices(problem, [], BUDGET),
            solve_with_slices(problem, [offer], BUDGET),
        )
        more = served_weight(problem, with_them) - served_weight(problem, without)
        assert more >= -1e-5
        if more <= 1e-5:
            assert with_them.cost_usd_per_hour <= without.cost_usd_per_hour + 1e-6


def test_without_offers_the_tables_and_the_plan_are_those_without_slices() -> None:
    problem = tiny_problem(7)
    tables = make_tables(problem)
    assert with_slices(problem, tables, []).modes == tables.modes
    solution, report = solve(problem, BUDGET)
    plan = solve_with_slices(problem, [], BUDGET)
    assert plan.sliced == ()
    assert plan.shared == solution.plan.gpus
    assert plan.cost_usd_per_hour == pytest.approx(report.objective)


# Alone, half a GPU carries 50 rps; beside the other it is slowed down beyond its SLO.
LOUD = tuple(
    row._replace(pressure=1.0) for row in (a_row(50.0, 10.0), a_row(100.0, 5.0))
)
TWO = (
    a_service("one", rate_rps=40.0, slo_ms=30.0),
    a_service("two", rate_rps=40.0, slo_ms=30.0),
)


def test_gpus_are_cut_where_neighbours_are_loud() -> None:
    problem = a_problem(*TWO, rows=LOUD, sensitivity=9.0, types=[a_type(count=4)])
    plan = solve_with_slices(problem, [an_offer(a_slice_row("3g.20gb", 11.0))], BUDGET)
    assert plan.shared == ()
    (gpu,) = plan.sliced
    assert gpu.count == 1
    assert [
        (replica.place.profile, replica.place.start) for replica in gpu.replicas
    ] == [
        ("3g.20gb", 0),
        ("3g.20gb", 4),
    ]
    assert solve_with_slices(problem, [], BUDGET).cost_usd_per_hour == pytest.approx(
        2.0
    )
    assert plan.cost_usd_per_hour == plan.cost_bound == pytest.approx(1.0)


def test_gpus_are_shared_where_neighbours_are_quiet_and_slices_waste() -> None:
    problem = a_problem(*TWO, types=[a_type(count=4)])
    plan = solve_with_slices(problem, [an_offer(a_slice_row("7g.40gb", 5.0))], BUDGET)
    assert plan.sliced == ()
    assert plan.cost_usd_per_hour == pytest.approx(1.0)


def test_one_plan_cuts_some_gpus_and_shares_others_of_the_same_stock() -> None:
    loud = a_problem(*TWO, rows=LOUD, sensitivity=9.0, types=[a_type(count=2)])
    # The quiet ones press on nobody, but suffer from the loud ones.
    network = replace(loud.points[0], network="quiet", rows=(a_row(50.0, 10.0),))
    calm = (
        a_service("three", network="quiet", rate_rps=45.0, slo_ms=30.0),
        a_service("four", network="quiet", rate_rps=45.0, slo_ms=30.0),
    )
    problem = replace(loud, services=(*TWO, *calm), points=(*loud.points, network))
    plan = solve_with_slices(problem, [an_offer(a_slice_row("3g.20gb", 11.0))], BUDGET)
    assert (
        sum(gpu.count for gpu in plan.shared),
        sum(gpu.count for gpu in plan.sliced),
    ) == (1, 1)
    assert plan.unserved_rps == {}
    assert sorted(replicas_of(plan)) == ["four", "one", "three", "two"]
    assert solve_with_slices(problem, [], BUDGET).unserved_rps != {}


def test_a_service_has_one_slice_of_a_gpu_at_most() -> None:
    problem = a_problem(a_service(rate_rps=150.0), types=[a_type(count=9)], rows=())
    plan = solve_with_slices(problem, [an_offer(a_slice_row("1g.5gb", 10.0))], BUDGET)
    assert sum(gpu.count for gpu in plan.sliced) == 3
    assert all(len(gpu.replicas) == 1 for gpu in plan.sliced)


def test_slices_of_a_gpu_draw_no_more_than_its_cap() -> None:
    services = [a_service(f"s{number}", rate_rps=40.0) for number in range(6)]
    problem = a_problem(
        *services,
        types=[a_type(count=6, power_cap_w=50.0 + 65.0)],
        rows=(),
        max_replicas_per_gpu=7,
    )
    plan = solve_with_slices(problem, [an_offer(a_slice_row("1g.5gb", 10.0))], BUDGET)
    # 20 W each: three of them on a GPU.
    assert sum(gpu.count for gpu in plan.sliced) == 2
    assert all(len(gpu.replicas) <= 3 for gpu in plan.sliced)


def test_rates_are_split_over_cut_and_shared_gpus_in_proportion_to_what_they_carry() -> (
    None
):
    problem = a_problem(
        a_service(rate_rps=90.0), types=[a_type(count=2)], rows=(a_row(100.0, 10.0),)
    )
    plan = solve_with_slices(problem, [an_offer(a_slice_row("7g.40gb", 10.0))], BUDGET)
    rates = [
        replica.arrival_rate_rps * gpu.count
        for gpu in (*plan.shared, *plan.sliced)
        for replica in gpu.replicas
    ]
    assert sum(rates) == pytest.approx(90.0)


def test_rows_that_exceed_their_slice_or_miss_their_slo_are_no_candidates() -> None:
    problem = a_problem(
        a_service(rate_rps=10.0, slo_ms=30.0), types=[a_type(count=1)], rows=()
    )
    offer = an_offer(
        a_slice_row("1g.5gb", 10.0, memory_mib=5_000.0),
        a_slice_row("1g.5gb", 40.0),
        a_slice_row("1g.5gb", 10.0, power_w=300.0),
        a_slice_row("1g.5gb", 10.0, clock_mhz=900.0),
    )
    assert with_slices(problem, make_tables(problem), [offer]).modes == ()
