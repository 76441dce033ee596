"""What iterations take: the laws' figure, corrected by paces that were seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solvers.fill.hosts import Host, make_host
from solvers.fill.residents import Seats, bound_task
from solvers.policies.iterations import NOISE, SPREAD, Iterations, learned
from solvers.rows import OperatingRows
from solvers.state import Pace, Task
from tests.solvers.policies.training_beside import POINTS, a_gpu, a_problem, a_task, bound_gpu

PROBLEM = a_problem()
GPU = bound_gpu(0, sm_percent=30.0, batch=4)


def a_pace(factor: float, *, share: float = 50.0, batch: int = 4, replica_percent: float = 30.0) -> Pace:
    """A step of `train` takes 10,000 / p ms beside services by the laws; this one took so many times as long."""
    return Pace(
        gpu=a_gpu().id,
        sm_percent=share,
        iteration_ms=factor * 10_000.0 / share,
        replicas=(("web", replica_percent, batch),),
    )


def slowness(task: Task, share: float = 50.0, *, sm_percent: float = 30.0) -> float:
    seats = Seats(POINTS)
    host = make_host(PROBLEM, OperatingRows(PROBLEM), bound_gpu(0, sm_percent=sm_percent, batch=4))
    seat = seats.of_share(task, host, share)
    assert seat is not None
    seated = Host(
        gpu=host.gpu, gpu_type=host.gpu_type, replicas=host.replicas, residents=[(bound_task(task, seat), seat)]
    )
    return Iterations(PROBLEM, seats, [GPU]).slowness(task, seated, 0)


def test_without_paces_the_laws_speak() -> None:
    assert slowness(a_task()) == pytest.approx(2.0)  # half of the GPU
    assert slowness(a_task(), 20.0) == pytest.approx(5.0)


def test_one_pace_by_hand() -> None:
    # With x = (1, ln 4, 0.3) and ln 1.5 seen: w = x · y / (|x|² + NOISE² / SPREAD²), so x · w = y · |x|² / (|x|² + ratio).
    x = np.array([1.0, math.log(4.0), 0.3])
    square, ratio = float(x @ x), NOISE**2 / SPREAD**2
    expected = math.log(1.5) * square / (square + ratio)
    assert float(x @ learned([(x, math.log(1.5))])) == pytest.approx(expected)
    assert slowness(a_task(paces=(a_pace(1.5),))) == pytest.approx(2.0 * math.exp(expected))


def test_paces_that_agree_with_the_laws_change_nothing() -> None:
    paces = tuple(a_pace(1.0, replica_percent=share) for share in (10.0, 30.0, 60.0))
    assert slowness(a_task(paces=paces)) == pytest.approx(2.0)


def test_what_the_replica_beside_does_to_an_iteration_is_told_from_its_share() -> None:
    paces = tuple(a_pace(1.0 + share / 50.0, replica_percent=share) for share in (10.0, 20.0, 30.0, 40.0, 50.0) * 3)
    narrow, wide = (slowness(a_task(paces=paces), sm_percent=share) for share in (10.0, 50.0))
    assert 2.0 < narrow < wide < 4.5


def test_paces_without_known_surroundings_tell_nothing() -> None:
    good = a_pace(3.0)
    unusable = (
        replace(good, gpu=a_gpu(7).id),
        replace(good, replicas=()),
        replace(good, replicas=(("web", 30.0, 4), ("web", 30.0, 4))),
        replace(good, replicas=(("gone", 30.0, 4),)),
        replace(good, replicas=(("web", 33.0, 4),)),
        replace(good, tasks=(("light", 10.0, 64),)),
        replace(good, sm_percent=55.0),
        replace(good, iteration_ms=0.0),
    )
    for pace in unusable:
        assert slowness(a_task(paces=(pace,))) == pytest.approx(2.0), pace
    assert slowness(a_task(paces=(*unusable, good))) == slowness(a_task(paces=(good,)))


def test_beside_several_replicas_the_laws_speak() -> None:
    seats = Seats(POINTS)
    host = make_host(PROBLEM, OperatingRows(PROBLEM), GPU)
    task = a_task(paces=(a_pace(3.0),))
    seat = seats.of_share(task, host, 20.0)
    assert seat is not None
    crowded = Host(
        gpu=host.gpu,
        gpu_type=host.gpu_type,
        replicas=(*host.replicas, *host.replicas),
        residents=[(bound_task(task, seat), seat)],
    )
    assert Iterations(PROBLEM, seats, [GPU]).slowness(task, crowded, 0) == pytest.approx(5.0)
