"""Actors and worlds for tests: untrained, but lawful."""

from itertools import pairwise

import numpy as np

from solvers.papers.inss.training.actor import HIDDEN, Actor, fleet_of, known_service
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import ActorSetting
from solvers.types.problem import Problem


def random_actor(problem: Problem, *, seed: int, slots: int = 1) -> Actor:
    """An actor of the right shape for the Problem whose weights are drawn."""
    draw = np.random.default_rng(seed)
    percents = tuple(
        sorted({row.sm_percent for points in problem.points for row in points.rows})
    )
    fleet = fleet_of(problem.gpu_types)
    gpus, services = sum(count for _, count in fleet), len(problem.services)
    features = 3 * gpus + 2 * services + slots * services * gpus
    outputs = slots * services * (gpus * len(percents) + 1)
    sizes = (features, *HIDDEN, outputs)
    layers = []
    for before, after in pairwise(sizes):
        layers.append(draw.normal(0.0, 0.1, (after, before)).astype(np.float32))
        layers.append(np.zeros(after, np.float32))
    return Actor(
        layers=tuple(layers),
        fleet=fleet,
        services=tuple(known_service(service) for service in problem.services),
        sm_percents=percents,
        slots=slots,
        notes="a test",
    )


def world_of(
    problem: Problem, *, slots: int = 1, knows_neighbours: bool = True
) -> ProvisioningWorld:
    """The world of a Problem at its types' highest clocks."""
    setting = ActorSetting(
        gpus=tuple(
            name for name, count in fleet_of(problem.gpu_types) for _ in range(count)
        ),
        services=tuple(service.name for service in problem.services),
        slots=slots,
        sm_percents=tuple(
            sorted({row.sm_percent for points in problem.points for row in points.rows})
        ),
        knows_neighbours=knows_neighbours,
    )
    clocks = [gpu_type.clocks_mhz[-1] for gpu_type in problem.gpu_types]
    return ProvisioningWorld(problem, setting, clocks_mhz=clocks)
