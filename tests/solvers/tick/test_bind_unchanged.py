"""A plan that wants what runs is bound without a matching, and in large fleets the part of it that does."""

import random
from dataclasses import replace

import pytest

from solvers.tick import matching
from tests.examples import seeds
from tests.solvers.tick.test_bind import (
    a_plan,
    bound,
    drawn_plan,
    fleet,
    ids,
    on_gpu,
    replica,
    started,
)


def test_the_same_plan_with_other_rates_stays_where_it_is() -> None:
    gpus = fleet(4)
    first = bound(a_plan(on_gpu("a", "b", count=3), on_gpu("c")), gpus).plan
    faster = [replica(name, rate_rps=20.0) for name in "ab"]
    again = bound(a_plan(on_gpu("c"), on_gpu(*faster, count=3)), gpus, first)
    assert (ids(again.plan), started(again)) == (ids(first), 0)
    assert {
        each.arrival_rate_rps for gpu in again.plan.gpus for each in gpu.replicas
    } == {10.0, 20.0}


@pytest.mark.parametrize("seed", seeds(10))
def test_the_matching_would_change_nothing_either(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, gpus = drawn_plan(random.Random(seed)), fleet(6)
    first = bound(plan, gpus).plan
    without_matching = bound(plan, gpus, first)
    monkeypatch.setattr(matching, "_unchanged", lambda slots, _: [None] * len(slots))
    assert bound(plan, gpus, first) == without_matching


@pytest.mark.parametrize("seed", seeds(16))
def test_in_large_fleets_what_is_wanted_again_stays_and_as_few_replicas_start(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, gpus = random.Random(seed), fleet(12)
    first, other = drawn_plan(draw), drawn_plan(draw)
    # Some GPUs of the first plan are wanted again, others not.
    mixed = replace(other, gpus=(*first.gpus[::2], *other.gpus[::2]))
    running = bound(first, gpus).plan
    best = bound(mixed, gpus, running)
    monkeypatch.setattr(matching, "MAX_PAIRS", 0)
    quick = bound(mixed, gpus, running)
    assert started(quick) == started(best)
    stays = {gpu.id: gpu.replicas for gpu in running.gpus}
    kept = sum(stays.get(gpu.id) == gpu.replicas for gpu in quick.plan.gpus)
    assert kept >= len(first.gpus[::2])
