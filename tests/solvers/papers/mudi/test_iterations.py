"""What iterations take: the laws' figure, corrected by what running tasks of the same network report."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solvers.backfill.hosts import make_host
from solvers.backfill.residents import Seats, bound_task
from solvers.laws.operating_rows import OperatingRows
from solvers.papers.mudi.iterations import NOISE, SPREAD, Iterations, learned
from solvers.types.plan import BoundGpu
from solvers.types.state import Task
from tests.solvers.training_beside import POINTS, a_problem, a_task, bound_gpu
from tests.solvers.training_beside import bound_task as a_bound_task

PROBLEM = a_problem()
ASKED = a_task("asked")
Running = tuple[Task, BoundGpu]


def running(
    factor: float, *, number: int = 0, batch: int = 4, replica_percent: float = 30.0
) -> Running:
    """A task on half of a GPU, where by the laws a step takes 200 ms next to a service; here `factor` times as long."""
    task = a_task(f"t{number}", iteration_ms=factor * 200.0)
    gpu = bound_gpu(
        number, a_bound_task(task.name, 50.0), sm_percent=replica_percent, batch=batch
    )
    return task, gpu


def slowness(
    *seen: Running, share: float = 50.0, sm_percent: float = 30.0, asked: Task = ASKED
) -> float:
    seats = Seats(POINTS)
    host = make_host(
        PROBLEM, OperatingRows(PROBLEM), bound_gpu(9, sm_percent=sm_percent, batch=4)
    )
    seat = seats.of_share(asked, host, share)
    assert seat is not None
    host.residents.append((bound_task(asked, seat), seat))
    iterations = Iterations(
        PROBLEM, seats, [task for task, _ in seen], [gpu for _, gpu in seen]
    )
    return iterations.slowness(asked, host, 0)


def test_without_anything_seen_the_laws_speak() -> None:
    assert slowness() == pytest.approx(2.0)  # half of the GPU
    assert slowness(share=20.0) == pytest.approx(5.0)


def test_one_reading_by_hand() -> None:
    # With x = (1, ln 4, 0.3), y = ln 1.5, r = NOISE² / SPREAD²: w = x · y / (|x|² + r), x · w = y · |x|² / (|x|² + r).
    x = np.array([1.0, math.log(4.0), 0.3])
    square, ratio = float(x @ x), NOISE**2 / SPREAD**2
    expected = math.log(1.5) * square / (square + ratio)
    assert float(x @ learned([(x, math.log(1.5))])) == pytest.approx(expected)
    assert slowness(running(1.5)) == pytest.approx(2.0 * math.exp(expected))


def test_what_the_replicas_share_and_batch_do_is_told_from_tasks_on_many_gpus() -> None:
    by_share = [
        running(1.0 + share / 50.0, number=number, replica_percent=share)
        for number, share in enumerate((10.0, 20.0, 30.0, 40.0, 50.0) * 3)
    ]
    narrow, wide = (slowness(*by_share, sm_percent=share) for share in (10.0, 50.0))
    assert 2.0 < narrow < wide < 4.5
    by_batch = [
        running(1.0 + batch / 4.0, number=number, batch=batch)
        for number, batch in enumerate((1, 2, 4) * 4)
    ]
    assert slowness(*by_batch) > slowness(
        *[each for each in by_batch if each[1].replicas[0].batch == 1]
    )


def test_what_has_unknown_surroundings_tells_nothing() -> None:
    task, gpu = running(3.0)
    unusable = (
        (replace(task, iteration_ms=0.0), gpu),
        (task, replace(gpu, replicas=())),
        (task, replace(gpu, replicas=gpu.replicas * 2)),
        (task, replace(gpu, replicas=(replace(gpu.replicas[0], sm_percent=33.0),))),
        (task, replace(gpu, tasks=(a_bound_task(task.name, 55.0),))),
        (task, replace(gpu, tasks=(*gpu.tasks, a_bound_task("stranger", 20.0)))),
        (task, replace(gpu, tasks=(replace(gpu.tasks[0], is_resident=False),))),
    )
    for each in unusable:
        assert slowness(each) == pytest.approx(2.0), each
    assert slowness((task, gpu)) > 2.5


def test_other_networks_and_batches_tell_nothing_of_this_one() -> None:
    assert slowness(running(3.0), asked=a_task("asked", "light")) == pytest.approx(1.0)
