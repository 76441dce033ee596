"""Which GPUs may take a batch: empty, mostly free, soon ready; the least utilised first."""

import pytest

from solvers.papers.oltunes.schedule import available, is_available
from solvers.types.jobs import JobGpu, fleet_load
from tests.solvers.jobs import a_gpu, a_resident


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (a_gpu(), True),
        (a_gpu("g", a_resident(sm_percent=20.0)), True),
        (a_gpu("g", a_resident(sm_percent=25.0)), False),
        (a_gpu("g", a_resident(sm_percent=25.0, done_share=0.79)), False),
        (a_gpu("g", a_resident(sm_percent=25.0, done_share=0.8)), True),
        (
            a_gpu(
                "g",
                a_resident(done_share=0.9, sm_percent=30.0),
                a_resident(done_share=0.1, sm_percent=30.0),
            ),
            False,
        ),
        (a_gpu("g", a_resident(sm_percent=50.0), has_early_end=True), True),
        (a_gpu("g", a_resident(sm_percent=100.0, done_share=0.9)), False),
        (a_gpu(sm_percent=0.0), False),
        (a_gpu("g", a_resident(sm_percent=8.0), sm_percent=40.0), True),
        (a_gpu("g", a_resident(sm_percent=9.0), sm_percent=40.0), False),
    ],
)
def test_who_may_take_a_batch(gpu: JobGpu, expected: bool) -> None:
    assert is_available(gpu) is expected


def test_the_least_utilised_comes_first_and_ties_go_by_id() -> None:
    busy = a_gpu("a", a_resident(sm_percent=20.0))
    full = a_gpu("b", a_resident(sm_percent=100.0))
    free, other = a_gpu("d"), a_gpu("c")
    assert [gpu.id for gpu in available([busy, full, free, other])] == ["c", "d", "a"]
    assert available([]) == []


def test_the_load_counts_held_sms_and_those_who_wait() -> None:
    # 50 of 200 % are held; 2 of 8 jobs that the fleet may have wait: 0.25 + 0.25.
    assert fleet_load(
        [a_gpu("a", a_resident(sm_percent=50.0)), a_gpu("b")], 2
    ) == pytest.approx(0.5)
    assert fleet_load([a_gpu()], 100) == 1.0
    assert fleet_load([], 0) == 1.0
