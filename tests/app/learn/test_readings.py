"""What replicas executed against what their operating points state, with figures worked out by hand."""

import math
from dataclasses import replace

import pytest

from app.learn.readings import (
    BATCH_CV,
    FILL_SIGMA,
    NEIGHBOUR_SHARE,
    StatedTimes,
    make_readings,
)
from app.store.store import Execution
from solvers.predict.data.samples import Group
from solvers.predict.learn.online import ExecutionReading, RowKey
from solvers.types.plan import BoundGpu
from solvers.types.problem import OperatingPoint, OperatingPoints
from tests.app.fleets import FAST
from tests.app.snapshots import a_bound_plan, a_replica

# Solo 12 ms at batch 1 and 40 ms at batch 8.
ROWS = (
    OperatingPoint(50.0, 8, 1000.0, 8.0, 4.0, 28.0, 4000.0, 60.0, 0.2),
    OperatingPoint(50.0, 1, 1000.0, 1.0, 4.0, 7.0, 4000.0, 60.0, 0.2),
)
POINTS = OperatingPoints(network="net", gpu_type="fast", sensitivity=0.5, rows=ROWS)
GROUP = Group("net", "fast")
TYPE = replace(FAST, launch_per_neighbour=0.5, launch_base=0.25)
KEY = RowKey(50.0, 8, 1000.0)


def a_gpu(*names: str) -> BoundGpu:
    return a_bound_plan([a_replica(name, batch=8) for name in names]).gpus[0]


def an_execution(name: str = "r1", **changes: object) -> Execution:
    seen = Execution(
        replica=name,
        gpu="n1/gpu-0",
        service="chat",
        sm_percent=50.0,
        batch=8,
        is_steady=True,
        batches=100,
        requests=800,
        execution_ms=44.0,
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


def readings_of(
    gpu: BoundGpu, *executions: Execution, points: OperatingPoints = POINTS
) -> list[ExecutionReading]:
    stated = StatedTimes({GROUP: points}, {"fast": TYPE})
    return make_readings([gpu], executions, stated).get(GROUP, [])


def test_a_full_batch_alone_is_compared_with_its_row() -> None:
    (reading,) = readings_of(a_gpu("r1"), an_execution())
    assert (reading.replica, reading.row) == ("r1", KEY)
    assert reading.log_ratio == pytest.approx(math.log(44.0 / 40.0))
    assert reading.variance == pytest.approx(BATCH_CV**2 / 100)


def test_smaller_batches_are_compared_with_what_lies_between_the_rows() -> None:
    # Batch 4.5 is half way from 1 to 8: 4.5 + 4 + 17.5 = 26 ms.
    (reading,) = readings_of(a_gpu("r1"), an_execution(requests=450, execution_ms=26.0))
    assert reading.log_ratio == pytest.approx(0.0)
    assert reading.variance == pytest.approx(
        BATCH_CV**2 / 100 + (FILL_SIGMA * math.log2(8 / 4.5)) ** 2
    )


def test_neighbours_are_reckoned_with_by_the_contracts_law() -> None:
    # Two replicas: 8 + 4 · (1 + 0.5 · 2 + 0.25) + 28 · (1 + 0.5 · 0.2) = 47.8 ms.
    both = readings_of(
        a_gpu("r1", "r2"),
        an_execution(execution_ms=47.8),
        an_execution("r2", execution_ms=95.6),
    )
    assert [reading.log_ratio for reading in both] == pytest.approx(
        [0.0, math.log(2.0)]
    )
    assert both[0].variance == pytest.approx(
        BATCH_CV**2 / 100 + (NEIGHBOUR_SHARE * math.log(47.8 / 40.0)) ** 2
    )


def test_what_is_faster_next_to_neighbours_is_put_down_to_them_first() -> None:
    # The neighbour adds ln(47.8 / 40) = 0.178, of which a quarter, 0.045, may be too much.
    neighbours = NEIGHBOUR_SHARE * math.log(47.8 / 40.0)
    seen = (
        an_execution(execution_ms=47.8 * 0.98),
        an_execution("r2", execution_ms=47.8 * 0.8),
    )
    ratios = [reading.log_ratio for reading in readings_of(a_gpu("r1", "r2"), *seen)]
    assert ratios == pytest.approx([0.0, math.log(0.8) + neighbours])


@pytest.mark.parametrize(
    "executions",
    [
        (),
        (an_execution(is_steady=False),),
        (an_execution(batch=4),),
        (an_execution(sm_percent=40.0),),
        (an_execution(), an_execution("somebody-else")),
        (an_execution(batches=4, requests=32),),
        (an_execution(execution_ms=0.0),),
        (an_execution(requests=0),),
        (an_execution(batches=100, requests=900),),
    ],
    ids=[
        "silent",
        "unsteady",
        "batch",
        "share",
        "neighbours",
        "few",
        "no time",
        "empty",
        "more than the batch",
    ],
)
def test_what_did_not_run_as_planned_says_nothing(
    executions: tuple[Execution, ...],
) -> None:
    assert readings_of(a_gpu("r1"), *executions) == []


def test_a_neighbour_that_nobody_profiled_leaves_nothing_to_compare_with() -> None:
    gpu = a_gpu("r1", "r2")
    stranger = replace(gpu.replicas[1], network="unknown")
    gpu = replace(gpu, replicas=(gpu.replicas[0], stranger))
    assert readings_of(gpu, an_execution(), an_execution("r2")) == []


def test_a_row_without_smaller_ones_speaks_of_full_batches_only() -> None:
    single = replace(POINTS, rows=ROWS[:1])
    assert len(readings_of(a_gpu("r1"), an_execution(), points=single)) == 1
    assert readings_of(a_gpu("r1"), an_execution(requests=450), points=single) == []
