"""The bench of Mudi's experiments: its scenarios, and its cases against what cannot be better."""

from collections import Counter
from dataclasses import replace

import pytest

from app.catalogue.catalogue import load_profiles
from app.simulate.run.results import RunResult, TaskResult
from app.simulate.scenario.parts import TaskWork
from app.simulate.scenario.tasks import iteration_ms
from bench.papers.mudi_cases import compare
from bench.papers.mudi_metrics import (
    mean_normalised_completion,
    normalised_completion,
    request_ms,
    trained_percent,
    used_percent,
)
from bench.papers.mudi_scenario import (
    GPU_TYPE,
    KINDS,
    SUBMITTED,
    Setting,
    kind_of,
    make_scenario,
)
from tests.app.runs import a_run, a_service_result, a_task_result

SMALL = Setting(policies=("mudi",), duration_s=7200.0, load=0.8, seed=1)


@pytest.mark.thorough
def test_the_kinds_of_training_come_by_the_slides_fractions() -> None:
    # 14 + 14 + 14 + 12 + 12 + 12 + 12 + 10 + 2 are the slide's hundred and two per cent.
    assert sum(kind.fraction for kind in KINDS) == pytest.approx(1.02)
    counts = Counter(kind_of(task.name) for task in make_scenario(SMALL).spec.tasks)
    assert set(counts) == {kind.name for kind in KINDS}
    assert counts["resnet18"] < 0.1 * counts.total()


def test_the_load_is_what_was_asked_for() -> None:
    points = load_profiles(sorted({kind.network for kind in KINDS}), [GPU_TYPE])
    work_s = sum(
        task.iterations
        * iteration_ms(
            TaskWork(network=task.network, batch=task.batch), GPU_TYPE, points
        )
        / 1000.0
        for task in make_scenario(SMALL).spec.tasks
    )
    assert work_s / (12 * SUBMITTED * SMALL.duration_s) == pytest.approx(0.8, rel=0.25)


@pytest.mark.parametrize("is_unseen", [False, True])
def test_no_way_to_place_two_tasks_beats_the_exhaustive_search(is_unseen: bool) -> None:
    found = [
        each
        for seed in range(3)
        if (each := compare(seed, tasks=2, is_unseen=is_unseen)) is not None
    ]
    assert found
    assert all(
        min(each.mudi, each.bare_slope, each.by_chance) >= 1.0 - 1e-9 for each in found
    )
    assert max(each.mudi for each in found) < max(each.by_chance for each in found)


def a_mudi_run(*tasks: TaskResult, served: int) -> RunResult:
    """One GPU hour in which one service of VGG-19 and these tasks ran."""
    service = replace(a_service_result(served=served), network="vgg19-trt")
    run = a_run(services=(service,), tasks=tasks)
    return replace(run, gpu_hours={GPU_TYPE: 1.0})


def a_done_task(*, finished_s: float, iterations: int) -> TaskResult:
    """A task whose iterations take 100 ms on a whole GPU, submitted at 0."""
    return replace(
        a_task_result(finished_s=finished_s),
        submitted_s=0.0,
        until_s=finished_s,
        reference_ms=100.0,
        iterations=iterations,
        done_iterations=float(iterations),
        done_before=0.0,
    )


@pytest.mark.thorough
def test_completion_is_over_the_time_alone_on_a_whole_gpu() -> None:
    # 1,000 iterations of 100 ms are 100 s; of two tasks that took 250 and 150 s the mean is 2.
    tasks = [a_done_task(finished_s=s, iterations=1000) for s in (250.0, 150.0)]
    assert [normalised_completion(task) for task in tasks] == [2.5, 1.5]
    assert mean_normalised_completion(a_mudi_run(*tasks, served=0)) == 2.0


@pytest.mark.thorough
def test_use_of_the_gpus_counts_training_and_requests() -> None:
    # 3,600 iterations of 100 ms are 0.1 of the GPU hour; as many requests as take 0.2 h make it 30 %.
    task = a_done_task(finished_s=1800.0, iterations=3600)
    served = round(0.2 * 3.6e6 / request_ms("vgg19-trt"))
    run = a_mudi_run(task, served=served)
    assert trained_percent(run) == pytest.approx(10.0)
    assert used_percent(run) == pytest.approx(30.0, rel=1e-3)
