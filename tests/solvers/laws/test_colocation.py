"""The laws of shared GPUs against the contract's worked example, brute force and their own monotonicity."""

import itertools
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.check import violations
from solvers.laws.colocation import (
    ALONE,
    Neighbours,
    capacities_rps,
    capacity_rps,
    execution_ms,
    executions_ms,
    max_execution_ms,
    worst_neighbours,
)
from solvers.types.documents.problem_json import problem_from_json
from solvers.types.plan import Plan
from solvers.types.problem import (
    CapacityLaw,
    OperatingPoint,
    OperatingPoints,
    Problem,
    ServiceDemand,
)
from solvers.types.state import GpuType
from tests.examples import seeds
from tests.solvers.instances import gpu_plan, replica_on

CONTRACT = Path(__file__).parents[4] / "shared" / "contracts"

LAW = CapacityLaw(
    percentiles=(0.95, 0.98),
    batches=(1, 4),
    slo_ratios=(1.5, 2.0, 3.0, 5.0, 10.0),
    max_utilisation=(
        ((0.0, 0.2, 0.45, 0.6, 0.8), (0.1, 0.5, 0.8, 0.9, 0.95)),
        ((0.0, 0.0, 0.4, 0.4, 0.75), (0.0, 0.4, 0.7, 0.9, 0.95)),
    ),
)


def gpu_type(
    *,
    sm_percent_step: float = 10.0,
    launch_per_neighbour: float = 0.1,
    launch_base: float = 0.1,
    overload: float | None = None,
) -> GpuType:
    return GpuType(
        name="big",
        price_usd_per_hour=1.2,
        memory_mib=40_000.0,
        sm_percent_step=sm_percent_step,
        idle_w=50.0,
        power_cap_w=300.0,
        clocks_mhz=(1400.0,),
        launch_per_neighbour=launch_per_neighbour,
        launch_base=launch_base,
        overload=overload,
    )


def row(
    sm_percent: float, *, batch: int = 4, run_ms: float = 18.67, pressure: float = 0.25
) -> OperatingPoint:
    return OperatingPoint(
        sm_percent, batch, 1400.0, 0.2, 1.0, run_ms, 8000.0, 125.0, pressure
    )


def test_the_contracts_example_by_hand() -> None:
    # n = 2, Π = 0.2: 0.2 + 1.0·(1 + 0.1·2 + 0.1) + 18.67·(1 + 0.8·0.2) = 0.2 + 1.3 + 21.6572 = 23.1572.
    execution = execution_ms(
        row(50.0),
        Neighbours(count=1, pressure=0.2),
        sensitivity=0.8,
        gpu_type=gpu_type(),
    )
    assert execution == pytest.approx(23.1572, rel=1e-12)
    # ratio 120 / 23.1572 = 5.18197; ρ = 0.9 + 0.05·0.18197/5 = 0.90182; 1000·4/23.1572·0.90182 = 155.774.
    capacity = capacity_rps(
        LAW, percentile=0.95, batch=4, slo_ms=120.0, execution_ms=execution
    )
    assert capacity == pytest.approx(155.774, abs=5e-4)


def test_a_replica_alone_pays_no_launch_growth() -> None:
    assert execution_ms(
        row(50.0), ALONE, sensitivity=0.8, gpu_type=gpu_type()
    ) == pytest.approx(0.2 + 1.0 + 18.67)


def test_the_contracts_example_file_gives_the_same_figures() -> None:
    path = CONTRACT / "example_problem.json"
    if not path.exists():
        pytest.skip("the contract's examples are not next to this checkout")
    problem = problem_from_json(path.read_text(encoding="utf-8"))
    service = problem.service("chat")
    points = problem.points_of(service.network, "big")
    assert points is not None
    chosen = next(point for point in points.rows if point[:3] == (50.0, 4, 1400.0))
    execution = execution_ms(
        chosen,
        Neighbours(count=1, pressure=0.2),
        sensitivity=points.sensitivity,
        gpu_type=problem.gpu_type("big"),
    )
    capacity = capacity_rps(
        problem.capacity_law,
        percentile=service.percentile,
        batch=chosen.batch,
        slo_ms=service.slo_ms,
        execution_ms=execution,
    )
    assert (round(execution, 4), round(capacity, 3)) == (23.1572, 155.774)


def shared_gpu(rates_rps: tuple[float, float]) -> tuple[Problem, Plan]:
    """Two services on one GPU, 50 % each, with those arrival rates."""
    services = tuple(
        ServiceDemand(
            name=name, network=name, slo_ms=80.0, percentile=0.98, arrival_rate_rps=rate
        )
        for name, rate in zip(("chat", "photo"), rates_rps, strict=True)
    )
    problem = Problem(
        max_replicas_per_gpu=4,
        capacity_law=LAW,
        gpu_types=(gpu_type(),),
        services=services,
        points=tuple(
            OperatingPoints(
                network=name,
                gpu_type="big",
                sensitivity=0.8,
                rows=(row(50.0, pressure=pressure),),
            )
            for name, pressure in (("chat", 0.3), ("photo", 0.1))
        ),
    )
    replicas = tuple(
        replica_on(one.name, 50.0, one.arrival_rate_rps, batch=4) for one in services
    )
    return problem, Plan(
        policy="test",
        gpus=(gpu_plan(*replicas, gpu_type="big", clock_mhz=1400.0),),
    )


def test_capacities_next_to_neighbours_are_those_of_the_checker() -> None:
    capacities = []
    for own, other in ((0.3, 0.1), (0.1, 0.3)):
        neighbours = Neighbours(count=1, pressure=other)
        execution = execution_ms(
            row(50.0, pressure=own), neighbours, sensitivity=0.8, gpu_type=gpu_type()
        )
        capacities.append(
            capacity_rps(
                LAW, percentile=0.98, batch=4, slo_ms=80.0, execution_ms=execution
            )
        )
    assert violations(*shared_gpu((capacities[0], capacities[1]))) == ()
    broken = violations(*shared_gpu((capacities[0] * 1.00001, capacities[1] * 1.00001)))
    assert [violation.rule for violation in broken] == ["capacity", "capacity"]


def test_many_rows_at_once_agree_with_one_by_one() -> None:
    rows = [
        row(sm, batch=batch, run_ms=400.0 / sm + batch)
        for sm in (10.0, 30.0, 80.0)
        for batch in (1, 4)
    ]
    neighbours = Neighbours(count=3, pressure=0.7)
    executions = executions_ms(rows, neighbours, sensitivity=0.5, gpu_type=gpu_type())
    assert executions == pytest.approx(
        [
            execution_ms(one, neighbours, sensitivity=0.5, gpu_type=gpu_type())
            for one in rows
        ],
        rel=1e-14,
    )
    expected = [
        capacity_rps(
            LAW,
            percentile=0.98,
            batch=one.batch,
            slo_ms=60.0,
            execution_ms=float(execution),
        )
        for one, execution in zip(rows, executions, strict=True)
    ]
    assert capacities_rps(
        LAW, rows, executions, percentile=0.98, slo_ms=60.0
    ) == pytest.approx(expected, rel=1e-12)


@given(
    rate_rps=st.floats(1e-6, 1e6),
    slo_ms=st.floats(0.1, 1e4),
    percentile=st.sampled_from(LAW.percentiles),
    batch=st.sampled_from(LAW.batches),
)
def test_the_longest_execution_serves_the_rate_and_a_slightly_longer_one_does_not(
    rate_rps: float, slo_ms: float, percentile: float, batch: int
) -> None:
    def capacity(execution: float) -> float:
        return capacity_rps(
            LAW,
            percentile=percentile,
            batch=batch,
            slo_ms=slo_ms,
            execution_ms=execution,
        )

    longest = max_execution_ms(
        LAW, percentile=percentile, batch=batch, slo_ms=slo_ms, rate_rps=rate_rps
    )
    assert capacity(longest) >= rate_rps
    assert capacity(longest * (1 + 1e-9)) < rate_rps


def test_rate_zero_needs_no_speed_and_an_impossible_law_has_none() -> None:
    nothing = CapacityLaw(
        percentiles=(0.98,),
        batches=(1,),
        slo_ratios=(1.0, 2.0),
        max_utilisation=(((0.0, 0.0),),),
    )
    assert (
        max_execution_ms(LAW, percentile=0.98, batch=1, slo_ms=50.0, rate_rps=0.0)
        == math.inf
    )
    assert (
        max_execution_ms(nothing, percentile=0.98, batch=1, slo_ms=50.0, rate_rps=1.0)
        == 0.0
    )


def test_a_percentile_that_the_law_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        max_execution_ms(LAW, percentile=0.9, batch=1, slo_ms=50.0, rate_rps=1.0)


def all_neighbour_sets(
    candidates: list[list[OperatingPoint]], free: float, most: int
) -> list[Neighbours]:
    """Every set of neighbours, at most one row per candidate, within the free SM percent."""
    options: list[list[OperatingPoint | None]] = [[None, *rows] for rows in candidates]
    chosen = [
        [one for one in choice if one is not None]
        for choice in itertools.product(*options)
    ]
    return [
        Neighbours(count=len(rows), pressure=sum(one.pressure for one in rows))
        for rows in chosen
        if len(rows) <= most and sum(one.sm_percent for one in rows) <= free
    ]


@pytest.mark.parametrize("seed", seeds(10))
def test_the_worst_neighbours_are_the_worst_of_all_sets(seed: int) -> None:
    draw = random.Random(seed)
    kind = gpu_type(sm_percent_step=draw.choice((5.0, 10.0, 20.0)))
    widths = [
        kind.sm_percent_step * step
        for step in range(1, int(100 / kind.sm_percent_step) + 1)
    ]
    candidates = [
        [
            row(draw.choice(widths), pressure=draw.random())
            for _ in range(draw.randint(0, 4))
        ]
        for _ in range(draw.randint(0, 4))
    ]
    max_replicas = draw.randint(1, 4)
    rows = [row(width, run_ms=draw.uniform(1, 50)) for width in widths]
    bounds = worst_neighbours(
        candidates, gpu_type=kind, max_replicas=max_replicas
    ).executions_ms(rows, sensitivity=0.9)
    for one, bound in zip(rows, bounds, strict=True):
        neighbour_sets = all_neighbour_sets(
            candidates, 100.0 - one.sm_percent, max_replicas - 1
        )
        worst = max(
            execution_ms(one, neighbours, sensitivity=0.9, gpu_type=kind)
            for neighbours in neighbour_sets
        )
        assert bound == pytest.approx(worst, rel=1e-12)


def test_a_service_sends_at_most_one_neighbour() -> None:
    # 80 % are free. `a` with 40 % brings 1.0; with 20 % it leaves room for `b`, together 0.5 + 0.1; never both of a's.
    candidates = [
        [row(20.0, pressure=0.5), row(40.0, pressure=1.0)],
        [row(60.0, pressure=0.1)],
    ]
    kind = gpu_type(launch_per_neighbour=0.0, launch_base=0.0)
    worst = worst_neighbours(candidates, gpu_type=kind, max_replicas=6)
    assert worst.executions_ms([row(20.0)], sensitivity=0.8) == pytest.approx(
        [0.2 + 1.0 + 18.67 * (1 + 0.8 * 1.0)]
    )


def test_a_step_finer_than_any_gpu_needs_costs_no_memory() -> None:
    # 66.667 % are free: both neighbours of 33.3335 % just fit in, and 2 · 1.0 is the worst.
    kind = gpu_type(sm_percent_step=1e-9, launch_per_neighbour=0.0, launch_base=0.0)
    worst = worst_neighbours(
        [[row(33.3335, pressure=1.0)]] * 2, gpu_type=kind, max_replicas=3
    )
    assert worst.pressure.size <= 3 * 10_001
    assert worst.executions_ms([row(33.333)], sensitivity=0.5) == pytest.approx(
        [0.2 + 1.0 + 18.67 * (1 + 0.5 * 2.0)]
    )


def test_a_replica_that_takes_the_whole_gpu_has_no_neighbours() -> None:
    worst = worst_neighbours(
        [[row(10.0, pressure=5.0)]] * 5, gpu_type=gpu_type(), max_replicas=6
    )
    assert worst.executions_ms([row(100.0)], sensitivity=0.8) == pytest.approx(
        [0.2 + 1.0 + 18.67]
    )


UNCAPPED = gpu_type(launch_per_neighbour=0.0, launch_base=0.0, overload=0.9)


@pytest.mark.parametrize(
    ("own", "others", "beyond"),
    [
        (0.4, 0.5, 0.0),
        (0.4, 0.6, 0.0),
        (0.4, 0.9, 0.3),
        (1.0, 0.25, 0.25),
        # What was read alone holds alone, even of kernels that would fill more than the GPU.
        (1.2, 0.0, 0.0),
        (1.2, 0.25, 0.25),
    ],
)
def test_without_sm_limits_replicas_take_turns_once_the_gpu_is_full(
    own: float, others: float, beyond: float
) -> None:
    one = row(100.0, run_ms=10.0, pressure=own)
    neighbours = Neighbours(count=1 if others else 0, pressure=others)
    found_ms = execution_ms(one, neighbours, sensitivity=0.1, gpu_type=UNCAPPED)
    assert found_ms == pytest.approx(1.2 + 10.0 * (1.0 + 0.1 * others + 0.9 * beyond))
    assert executions_ms(
        [one, one], neighbours, sensitivity=0.1, gpu_type=UNCAPPED
    ) == pytest.approx([found_ms] * 2)


def test_without_sm_limits_only_the_number_of_neighbours_has_a_limit() -> None:
    candidates = [[row(100.0, pressure=each)] for each in (0.2, 0.9, 0.5)]
    worst = worst_neighbours(candidates, gpu_type=UNCAPPED, max_replicas=3)
    one = row(100.0, run_ms=10.0, pressure=0.4)
    # The two heaviest, 0.9 and 0.5, with 0.4: 0.8 beyond a whole GPU.
    assert worst.executions_ms([one], sensitivity=0.1) == pytest.approx(
        [1.2 + 10.0 * (1.0 + 0.1 * 1.4 + 0.9 * 0.8)]
    )
