"""InSS's actor: bytes and back, lawful proposals, the actor that ships; and its training where PyTorch is there."""

import numpy as np
import pytest

from app.catalogue.catalogue import load_actors
from solvers.papers.inss.training.actor import (
    BadActor,
    Situation,
    actor_from_bytes,
    actor_of,
    actor_to_bytes,
    propose,
    refusal,
    setting_to_train,
)
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.types.problem import Problem
from tests.solvers.instances import random_problem, with_types
from tests.solvers.papers.inss.actors import random_actor, world_of


def small() -> Problem:
    return random_problem(1, services=3, types=1, gpus=2)


def situation(world: ProvisioningWorld) -> Situation:
    services = len(world.setting.services)
    return Situation(
        rates_rps=0.3 * world.max_rps, queued=np.zeros(services), used_mib=np.zeros(2)
    )


def test_an_actor_survives_its_bytes() -> None:
    actor = random_actor(small(), seed=2)
    again = actor_from_bytes(actor_to_bytes(actor))
    assert (again.fleet, again.services, again.sm_percents, again.notes) == (
        actor.fleet,
        actor.services,
        actor.sm_percents,
        actor.notes,
    )
    assert all(
        (one == other).all()
        for one, other in zip(actor.layers, again.layers, strict=True)
    )
    assert refusal(again, small()) == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"x" * 100, actor_to_bytes(random_actor(small(), seed=1))[:-50]],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadActor, match="plimsoll policy train inss"):
        actor_from_bytes(data)


def test_proposals_are_lawful_repeatable_and_begin_with_the_best_of_each_head() -> None:
    world, actor = world_of(small()), random_actor(small(), seed=1)
    chosen = propose(actor, world, situation(world), rounds=40, seed=7)
    assert (chosen == propose(actor, world, situation(world), rounds=40, seed=7)).all()
    assert (
        chosen[0] == propose(actor, world, situation(world), rounds=1, seed=8)[0]
    ).all()
    rates = np.tile(situation(world).rates_rps, (40, 1))
    for slot in range(world.slots):
        assert world.allowed(chosen, slot, rates)[np.arange(40), chosen[:, slot]].all()


def test_the_shipped_actors_are_small_and_named_by_their_fleet() -> None:
    shipped = load_actors()
    assert shipped
    for fingerprint, data in shipped.items():
        assert actor_from_bytes(data).fingerprint == fingerprint
        assert len(data) <= 5_000_000


def test_training_goes_on_from_a_checkpoint_and_gives_an_actor() -> None:
    pytest.importorskip("torch")
    from solvers.papers.inss.training.actor_critic import Training

    problem = small()
    setting = setting_to_train(problem, clocks_mhz=[1000.0])
    world = ProvisioningWorld(problem, setting, clocks_mhz=[1000.0])
    training = Training(world, seed=1)
    points = list(training.run(1))
    assert [point.episode for point in points] == [32]
    assert np.isfinite(points[0].reward)
    assert 0.0 <= points[0].late_percent <= 100.0
    resumed = Training(world, seed=9)
    resumed.resume(training.save())
    assert resumed.episode == 32
    assert all(
        (one == other).all()
        for one, other in zip(training.layers(), resumed.layers(), strict=True)
    )
    actor = actor_of(resumed.layers(), setting, problem, notes="a test")
    assert refusal(actor_from_bytes(actor_to_bytes(actor)), problem) == ""


def test_a_fleet_without_limits_cannot_be_trained_for() -> None:

    problem = small()
    endless = with_types(problem, count=None)
    with pytest.raises(ValueError, match="say of every GPU type how many"):
        setting_to_train(endless, clocks_mhz=[1000.0])
