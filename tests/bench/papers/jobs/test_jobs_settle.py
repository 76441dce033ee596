"""From request to job: settings by what is predicted now, found again when predictions or load have changed."""

from collections.abc import Mapping, Sequence

import pytest

from app.dispatch.foresight import Foresight
from bench.papers.jobs.requests import JobRequest
from bench.papers.jobs.settle import Grid, Settler
from bench.papers.jobs.world import Done, SimGpu
from solvers.papers.oltunes.tuning_score import tune
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.types.jobs import JobDemand, JobOption, JobSetting, PowerFacts
from solvers.types.state import GpuId, Variant

pytestmark = pytest.mark.thorough

GPUS = tuple(
    SimGpu(
        id=GpuId(f"{gpu_type}-{number}"),
        gpu_type=gpu_type,
        memory_mib=8000.0,
        clock_mhz=1500.0,
    )
    for gpu_type in ("big", "small")
    for number in range(2)
)
GRID = Grid(
    sm_percents=(25.0, 50.0, 100.0), batches=(1, 4), memory_mib={1: 1000.0, 4: 1300.0}
)


class Counting:
    """The tuner, and the wishes that it was asked for."""

    def __init__(self) -> None:
        self.wishes: list[JobDemand] = []
        self.options: Sequence[JobOption] = ()

    def __call__(
        self,
        options: Sequence[JobOption],
        boards: Mapping[str, PowerFacts],
        wish: JobDemand,
    ) -> tuple[JobSetting, ...]:
        self.wishes.append(wish)
        self.options = options
        return tune(options, boards, wish)


def a_settler(tuner: Counting) -> Settler:
    """`big` takes 10 ms for an input on the whole GPU, `small` 20 ms."""
    foresight = Foresight()
    foresight.learn(
        (
            ServedConditions("net", gpu_type, batch, percent),
            ms * batch * 100.0 / percent,
        )
        for gpu_type, ms in (("big", 10.0), ("small", 20.0))
        for batch in (1.0, 4.0)
        for percent in (25.0, 50.0, 100.0)
        for _ in range(10)
    )
    return Settler(
        tune=tuner,
        foresight=foresight,
        gpus=GPUS,
        tdp_w={"big": 300.0, "small": 200.0},
        grids={"net": GRID, "other": GRID},
    )


def a_request(name: str = "a", **changes: object) -> JobRequest:
    facts: dict[str, object] = {
        "kind": "k",
        "submitted_s": 1.0,
        "deadline_s": 9.0,
        "inputs": 8,
        "weight": 0.75,
        "variants": (Variant(network="net", accuracy=0.7),),
    }
    return JobRequest(name=name, **facts | changes)  # type: ignore[arg-type]


def done(settler: Settler, count: int) -> None:
    """`count` jobs are done, at the predicted time."""
    job = settler.job(a_request(), 0.0)
    assert job is not None
    setting = next(
        each
        for each in job.settings
        if (each.gpu_type, each.sm_percent, each.batch) == ("big", 100.0, 4)
    )
    each = Done(
        job=job,
        setting=setting,
        gpu=GPUS[0].id,
        at_s=2.0,
        ran_s=0.1,
        batch_ms=40.0,
        epc=61.0,
    )
    settler.learn([each] * count)


def test_a_job_has_the_settings_of_all_gpu_types_and_its_best_two() -> None:
    settler = a_settler(Counting())
    job = settler.job(a_request(), 0.0)
    assert job is not None
    assert (job.queued_s, job.deadline_s, job.inputs, job.weight) == (1.0, 9.0, 8, 0.75)
    # 2 GPU types × 3 shares × 2 batches; eight inputs are two batches of four at what is foreseen.
    assert len(job.settings) == 12
    assert set(job.best_types) == {"big", "small"}
    best = {
        (each.gpu_type, each.sm_percent, each.batch): each.latency_s
        for each in job.settings
    }
    for (gpu_type, percent, batch), latency_s in best.items():
        (foreseen_ms,) = settler.foresight.predict_ms(
            [ServedConditions("net", gpu_type, float(batch), percent)]
        )
        assert latency_s == pytest.approx(8 / batch * foreseen_ms / 1000.0)
    assert best["big", 100.0, 4] < best["small", 100.0, 4]


def test_equal_requests_share_what_was_found_and_unequal_ones_do_not() -> None:
    tuner = Counting()
    settler = a_settler(tuner)
    settler.job(a_request("a"), 0.0)
    settler.job(a_request("b", submitted_s=2.0, deadline_s=10.0), 0.04)
    assert len(tuner.wishes) == 1
    for changes, load in (
        ({"inputs": 16}, 0.0),
        ({"weight": 0.25}, 0.0),
        ({"deadline_s": 8.0}, 0.0),
        ({}, 0.5),
    ):
        settler.job(a_request("c", **changes), load)
    assert len(tuner.wishes) == 5
    assert [wish.load for wish in tuner.wishes] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert tuner.wishes[0].left_s == 8.0


def test_a_batch_that_was_not_full_teaches_nothing() -> None:
    settler = a_settler(Counting())
    job = settler.job(a_request(inputs=2), 0.0)
    assert job is not None
    setting = next(each for each in job.settings if each.batch == 4)
    before = settler.foresight.revision
    settler.learn(
        [
            Done(
                job=job,
                setting=setting,
                gpu=GPUS[0].id,
                at_s=2.0,
                ran_s=0.1,
                batch_ms=40.0,
                epc=61.0,
            )
        ]
    )
    assert settler.foresight.revision == before
