"""The bench of Mudi's experiments: its scenarios, and its cases against what cannot be better."""

import pytest

from app.catalogue.catalogue import load_profiles
from app.simulate.scenario.parts import TaskWork
from app.simulate.scenario.tasks import iteration_ms
from bench.papers.mudi_cases import compare, decide, judge
from bench.papers.mudi_scenario import (
    GPU_TYPE,
    KINDS,
    SERVICES,
    SUBMITTED,
    Setting,
    make_scenario,
)

SMALL = Setting(policies=("mudi",), duration_s=7200.0, load=0.8, seed=1)


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


def test_every_service_has_as_many_gpus_and_every_gpu_one_service() -> None:
    for nodes, gpus in ((3, 2), (250, 166)):
        spec = make_scenario(
            Setting(policies=("mudi",), duration_s=120.0, load=0.1, seed=1, nodes=nodes)
        ).spec
        assert {service.scaling.min_replicas for service in spec.services} == {gpus}
        assert (spec.loop.max_replicas_per_gpu, len(spec.services)) == (
            1,
            len(SERVICES),
        )
        assert [service.load.rate_rps for service in spec.services] == [
            each.rate_rps * gpus / 2 for each in SERVICES
        ]


def test_tasks_follow_from_the_seed() -> None:
    again, other = (
        make_scenario(SMALL),
        make_scenario(Setting(policies=("mudi",), duration_s=7200.0, load=0.8, seed=2)),
    )
    assert make_scenario(SMALL) == again != other


def test_decisions_are_counted_one_by_one() -> None:
    found = decide(6, 0, tasks=4)
    assert len(found.milliseconds) == 4
    assert all(0 < trials < 25 for trials in found.trials)


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


def test_each_decision_is_judged_by_what_it_adds() -> None:
    added = judge(0, tasks=3)
    assert len(added) == 3
    assert all(each >= 1.0 - 1e-9 for each in added)
