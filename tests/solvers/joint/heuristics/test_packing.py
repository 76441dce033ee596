"""Packing: plans that split no service."""

import gzip
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from solvers.check import violations
from solvers.joint.heuristics.packing import PackingPlan, is_promising, pack
from solvers.joint.heuristics.packing_parts import Packer, PackingDemand, PartTables
from solvers.joint.patterns.columns import Pattern, make_column
from solvers.joint.solve import solve
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.outcome import Budget, SolveStatus
from solvers.types.problem import OperatingPoints, Problem
from tests.examples import seeds, tried
from tests.shared import SHARED, needs
from tests.solvers.instances import HALVES, LAW, a_problem, a_row, a_service, a_type
from tests.solvers.whole_program import Setting, after, all_columns, set_up


def packed(
    setting: Setting, *, calls: int = 60, seed: int = 0, threads: int = 0
) -> PackingPlan:
    def run(pool: ThreadPoolExecutor | None) -> PackingPlan:
        return pack(
            *(setting.tables, setting.demand),
            seed=seed,
            is_over=after(calls),
            pool=pool,
            on_better=lambda _: None,
        )

    if not threads:
        return run(None)
    with ThreadPoolExecutor(threads) as pool:
        return run(pool)


def parts_problem(
    seed: int, *, services: int = 5, stock: int | None = None, dear: float = 2.0
) -> Problem:
    """Services that need a tenth to nine tenths of one of two GPU types; neighbours, watts and memory all matter."""
    draw = random.Random(seed)
    types = tuple(
        a_type(
            name,
            price_usd_per_hour=price,
            count=stock,
            sm_percent_step=10.0,
            memory_mib=draw.choice((9_000.0, 16_000.0)),
            power_cap_w=draw.choice((150.0, 250.0)),
            launch_per_neighbour=draw.choice((0.0, 0.1)),
        )
        for name, price in (("big", dear), ("small", 1.0))
    )
    points = tuple(
        OperatingPoints(
            network=f"net{number}",
            gpu_type=one.name,
            sensitivity=draw.choice((0.1, 0.5)),
            rows=tuple(
                a_row(
                    *(
                        sm_percent,
                        work_ms
                        / speed
                        * (0.5 + 0.5 * batch)
                        * (100.0 / sm_percent) ** 0.9,
                    ),
                    batch=batch,
                    launch_ms=0.3,
                    memory_mib=2000.0 + 300.0 * batch,
                    power_w=0.8 * sm_percent,
                    pressure=sm_percent / 250.0,
                )
                for sm_percent, batch in ((20.0, 1), (30.0, 4), (50.0, 1), (70.0, 4))
            ),
        )
        for number, work_ms in enumerate(
            (draw.uniform(1.0, 3.0), draw.uniform(2.0, 6.0))
        )
        for one, speed in zip(types, (2.0, 1.0), strict=True)
    )
    return Problem(
        energy_price_usd_per_kwh=draw.choice((0.0, 0.3)),
        max_replicas_per_gpu=draw.choice((2, 4)),
        capacity_law=LAW,
        gpu_types=types,
        services=tuple(
            a_service(
                f"s{number}",
                network=f"net{number % 2}",
                slo_ms=draw.uniform(30.0, 90.0),
                rate_rps=draw.uniform(5.0, 70.0),
                min_replicas=draw.choice((0, 0, 0, 2)),
            )
            for number in range(services)
        ),
        points=points,
    )


def carries_all(setting: Setting, pattern: Pattern) -> bool:
    column = make_column(setting.tables, pattern)
    return bool(
        (column.capacity >= setting.demand.rate[column.service] * (1.0 - 1e-9)).all()
    )


def min_cost(setting: Setting) -> float:
    """Of all plans of patterns whose replicas all carry everything, by an integer program; infinite without any."""
    import highspy  # It takes a while, and collecting does without.

    tables, demand = setting.tables, setting.demand
    columns = [
        column for column in all_columns(tables) if carries_all(setting, column.pattern)
    ]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    numbers = [highs.addIntegral(0.0, 20.0, column.price) for column in columns]
    for service, fewest in enumerate(demand.fewest):
        inside = [
            one
            for one, column in zip(numbers, columns, strict=True)
            if service in column.service
        ]
        highs.addConstr(sum(inside) >= max(1.0, fewest))
    for gpu_type, count in enumerate(demand.stock):
        inside = [
            one
            for one, column in zip(numbers, columns, strict=True)
            if tables.modes[column.pattern.mode].gpu_type == gpu_type
        ]
        if inside and np.isfinite(count):
            highs.addConstr(sum(inside) <= count)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.inf
    return float(highs.getInfo().objective_function_value)


def cost(setting: Setting, plan: Counter[Pattern]) -> float:
    return sum(
        count * make_column(setting.tables, pattern).price
        for pattern, count in plan.items()
    )


@pytest.mark.seeded
@pytest.mark.parametrize("stock", [None, 3])
def test_packings_of_few_services_are_hardly_ever_dearer_than_the_best(
    stock: int | None,
) -> None:
    settings = [
        set_up(parts_problem(seed, services=4 if stock else 5, stock=stock))
        for seed in range(tried(25))
    ]
    settings = [setting for setting in settings if np.isfinite(min_cost(setting))]
    costs = np.array([cost(setting, packed(setting).plan) for setting in settings])
    least = np.array([min_cost(setting) for setting in settings])
    assert len(settings) >= 0.8 * tried(25)
    assert (costs >= least - 1e-6).all()
    assert (costs <= least + 1e-6).mean() >= 0.8
    assert (costs <= 1.02 * least).mean() >= 0.9


@pytest.mark.parametrize("seed", seeds(8, first=40))
def test_packings_keep_stock(seed: int) -> None:
    setting = set_up(parts_problem(seed, services=9, stock=2))
    gpus = Counter[int]()
    for pattern, count in packed(setting).plan.items():
        gpus[setting.tables.modes[pattern.mode].gpu_type] += count
    assert all(
        gpus[gpu_type] <= stock for gpu_type, stock in enumerate(setting.demand.stock)
    )


@pytest.mark.parametrize("seed", seeds(6))
def test_every_replica_carries_all_of_its_service(seed: int) -> None:
    setting = set_up(parts_problem(seed, services=12))
    found = packed(setting)
    assert all(carries_all(setting, pattern) for pattern in [*found.plan, *found.start])
    replicas = np.zeros(12)
    for pattern, count in found.plan.items():
        replicas[make_column(setting.tables, pattern).service] += count
    assert (replicas >= np.maximum(1.0, setting.demand.fewest)).all()


def test_the_same_question_has_the_same_answer_with_any_number_of_threads() -> None:
    setting = set_up(parts_problem(3, services=15))
    plans = [packed(setting, seed=5, threads=threads).plan for threads in (0, 0, 2)]
    assert plans[0] == plans[1] == plans[2]


def test_better_plans_are_reported_at_once() -> None:
    setting, seen = set_up(parts_problem(1, services=15)), list[Counter[Pattern]]()
    found = pack(
        *(setting.tables, setting.demand),
        seed=0,
        is_over=after(0),
        on_better=seen.append,
    )
    assert seen
    assert seen[-1] == found.plan


def test_a_single_service_takes_a_single_gpu() -> None:
    setting = set_up(a_problem(a_service(rate_rps=20.0)))
    assert sum(packed(setting).plan.values()) == 1


def test_halves_fill_gpus_two_by_two() -> None:
    # One half carries 25 of the 50 rps that it is busy with: 10 ms at batch 1, half of the time may be used.
    setting = set_up(
        a_problem(*(a_service(f"s{number}", rate_rps=25.0) for number in range(7)))
    )
    assert sum(packed(setting).plan.values()) == 4


def test_what_no_replica_carries_is_left_out() -> None:
    setting = set_up(
        a_problem(a_service("much", rate_rps=500.0), a_service("little", rate_rps=20.0))
    )
    found = packed(setting)
    assert [
        make_column(setting.tables, pattern).service.tolist() for pattern in found.plan
    ] == [[1]]


def test_nothing_is_packed_where_no_service_can_be() -> None:
    assert packed(set_up(a_problem(a_service(rate_rps=500.0)))).plan == Counter()


def test_replicas_of_one_service_stand_on_different_gpus() -> None:
    setting = set_up(a_problem(a_service(rate_rps=20.0, min_replicas=3)))
    assert sum(packed(setting).plan.values()) == 3


def test_missing_replicas_are_counted() -> None:
    setting = set_up(
        a_problem(*(a_service(f"s{number}", rate_rps=25.0) for number in range(4)))
    )
    parts = PartTables(setting.tables, setting.demand.rate)
    wanted = PackingDemand(
        np.ones(4, np.int32), np.array([1.0]), np.ones(4), np.zeros(1)
    )
    found = Packer(parts).pack(wanted)
    assert (len(found.plan), found.missing) == (1, 2)


def test_a_packing_ends_as_soon_as_it_is_late() -> None:
    setting = set_up(
        a_problem(*(a_service(f"s{number}", rate_rps=60.0) for number in range(4)))
    )
    parts = PartTables(setting.tables, setting.demand.rate)
    wanted = PackingDemand(
        np.ones(4, np.int32), np.array([4.0]), np.ones(4), np.zeros(1)
    )
    found = Packer(parts).pack(wanted, after(3))
    assert (len(found.plan), found.missing) == (3, 1)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (
            a_problem(*(a_service(f"s{number}", rate_rps=20.0) for number in range(4))),
            True,
        ),
        (
            a_problem(
                a_service("much", rate_rps=500.0), a_service("little", rate_rps=20.0)
            ),
            False,
        ),
        (a_problem(a_service(rate_rps=80.0)), False),
        (
            a_problem(
                a_service(rate_rps=20.0), types=(a_type(price_usd_per_hour=0.0),)
            ),
            False,
        ),
        (a_problem(a_service(rate_rps=0.0)), False),
        (a_problem(), False),
    ],
    ids=[
        "parts",
        "more than one GPU",
        "a whole GPU",
        "free GPUs",
        "nothing wanted",
        "no services",
    ],
)
def test_packing_is_promising_where_parts_of_gpus_carry_nearly_everything(
    problem: Problem, expected: bool
) -> None:
    setting = set_up(problem)
    assert is_promising(setting.tables, setting.demand) is expected


@pytest.mark.parametrize("seed", seeds(3))
def test_plans_that_begin_with_a_packing_keep_every_rule(seed: int) -> None:
    problem = parts_problem(seed, services=12)
    solution, report = solve(problem, Budget(work=0.2))
    assert not violations(problem, solution.plan)
    assert not solution.plan.unserved
    setting = set_up(problem)
    assert report.objective is not None
    assert report.objective <= cost(setting, packed(setting).plan) + 1e-6
    assert solution.cost_bound is not None
    assert solution.cost_bound <= report.objective


def test_a_packing_may_leave_replicas_to_services_that_no_gpu_carries() -> None:
    few = [a_service(f"s{number}", rate_rps=20.0) for number in range(30)]
    problem = a_problem(a_service("much", rate_rps=60.0), *few, rows=HALVES)
    setting = set_up(problem)
    assert is_promising(setting.tables, setting.demand)
    solution, _ = solve(problem, Budget(work=1.0))
    assert not violations(problem, solution.plan)
    assert not solution.plan.unserved


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        pytest.param(name, gpus, marks=needs(f"problems/v100_3models_{name}.json.gz"))
        for name, gpus in (
            ("n12_half", 3),
            ("n12_p98", 4),
            ("n50_half", 10),
            ("n50_p98", 13),
        )
    ],
)
def test_measured_problems_are_packed_into_the_fewest_gpus_known(
    name: str, gpus: int
) -> None:
    text = gzip.decompress(
        (SHARED / "problems" / f"v100_3models_{name}.json.gz").read_bytes()
    )
    problem = problem_from_json(text)
    assert sum(packed(set_up(problem)).plan.values()) == gpus


def test_a_proven_optimum_of_many_parts() -> None:
    problem = a_problem(
        *(a_service(f"s{number}", rate_rps=25.0) for number in range(11))
    )
    solution, report = solve(problem, Budget(work=1.0))
    assert report.status is SolveStatus.OPTIMAL
    assert sum(gpu.count for gpu in solution.plan.gpus) == 6
