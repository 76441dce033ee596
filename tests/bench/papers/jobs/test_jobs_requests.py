"""The stream of jobs: patterns, deadlines, seeds."""

from dataclasses import replace

import numpy as np
import pytest

from bench.papers.jobs.requests import Arrivals, JobKind, make_requests
from solvers.types.state import Variant

pytestmark = pytest.mark.thorough

KIND = JobKind(
    name="photo",
    rate_rps=20.0,
    variants=(
        Variant(network="resnet50", accuracy=0.76),
        Variant(network="resnet101", accuracy=0.77),
    ),
    inputs=(8, 16),
    slo_ms=80.0,
    trace="conv",
)
POISSON = Arrivals(pattern="poisson", length_s=100.0, seed=1)


def test_the_deadline_is_the_slo_for_every_eight_inputs_and_an_allowance() -> None:
    # 9 inputs are two times eight: 1 s + 2 · 80 ms.
    assert KIND.deadline_s(9) == pytest.approx(1.16)
    assert KIND.deadline_s(8) == pytest.approx(1.08)


def test_poisson_jobs_come_at_random_at_their_rate() -> None:
    times = np.array([one.submitted_s for one in make_requests([KIND], POISSON)])
    # 2000 are expected, with a standard deviation of 45; gaps of a Poisson stream vary as much as they are long.
    assert 1800 < len(times) < 2200
    gaps = np.diff(times)
    assert 0.9 < gaps.std() / gaps.mean() < 1.1


def test_a_trace_gives_the_shape_and_the_kind_the_mean() -> None:
    arrivals = Arrivals(
        pattern="trace", length_s=40.0, seed=1, traces=(("conv", (0.0, 3.0, 0.0, 1.0)),)
    )
    times = [one.submitted_s for one in make_requests([KIND], arrivals)]
    seconds = np.bincount(np.array(times).astype(int) % 4, minlength=4)
    # 20 rps on average over four seconds: 0, 60, 0 and 20, ten times.
    assert seconds[0] == seconds[2] == 0
    assert 500 < seconds[1] < 700
    assert 140 < seconds[3] < 260


def test_the_same_seed_gives_the_same_jobs_whatever_other_kinds_there_are() -> None:
    other = replace(KIND, name="other", rate_rps=3.0)
    alone = make_requests([KIND], POISSON)
    assert [
        one for one in make_requests([other, KIND], POISSON) if one.kind == "photo"
    ] == list(alone)
    assert make_requests([KIND], replace(POISSON, seed=2)) != alone
