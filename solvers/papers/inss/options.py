"""A provision as the options of InSS's world, which the actor and the local search choose among, and back."""

from dataclasses import replace

import numpy as np

from solvers.greedy.configure import planning_clock_mhz
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provision,
    Provisioned,
    Settled,
    Share,
)
from solvers.papers.inss.training.actor import Situation
from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import ActorSetting, Indices, Reals


def provision_of(world: ProvisioningWorld, chosen: Indices) -> Provision:
    """A provision of the world's options (J,)."""
    shares: list[list[Share]] = [[] for _ in world.setting.gpus]
    for slot, option in enumerate(chosen.tolist()):
        if option < world.options - 1:
            gpu, percent = world.place(option)
            shares[gpu].append(
                Share(world.setting.services[int(world.service_of[slot])], percent)
            )
    return tuple(
        Provisioned(name, tuple(given))
        for name, given in zip(world.setting.gpus, shares, strict=True)
        if given
    )


def options_of(world: ProvisioningWorld, provision: Provision) -> Indices:
    """(1, J) the options that are a provision, or (0, J) where the world has none for some share of it."""
    chosen = np.full((1, world.slots), world.options - 1)
    free = list(range(len(world.setting.gpus)))
    by_place = {world.place(option): option for option in range(world.options - 1)}
    for gpu in provision:
        at = next((at for at in free if world.setting.gpus[at] == gpu.gpu_type), None)
        if at is None:
            return chosen[:0]
        free.remove(at)
        for share in gpu.shares:
            open_slots = [
                slot
                for slot in range(world.slots)
                if world.setting.services[int(world.service_of[slot])] == share.service
                and chosen[0, slot] == world.options - 1
            ]
            option = by_place.get((at, share.sm_percent))
            if not open_slots or option is None:
                return chosen[:0]
            chosen[0, open_slots[0]] = option
    return chosen


STARTS = 16
"""The local search begins from so many drawn starts, and from as many of the actor's best proposals."""

MAX_SLOTS = 24
"""More services or slots are not for the local search either."""


def best_proposals(
    settler: BatchDecider, world: ProvisioningWorld, proposals: Indices
) -> tuple[Settled, Indices]:
    """The best proposal by the world's reward, and the best few as starts of a search."""
    rates, queued, _ = figures_of(settler, world)
    every = np.broadcast_to(rates, (len(proposals), len(rates)))
    decided = world.decide(proposals, np.broadcast_to(queued, every.shape))
    order = np.argsort(-world.rewards(decided, every), kind="stable")
    return settler.settle(provision_of(world, proposals[order[0]])), proposals[
        order[:STARTS]
    ]


def world_of(settler: BatchDecider, setting: ActorSetting) -> ProvisioningWorld:
    """The world of the decider's Problem under its belief, at the clocks that are planned."""
    problem = settler.problem
    clocks = [planning_clock_mhz(problem, gpu_type) for gpu_type in problem.gpu_types]
    return ProvisioningWorld(
        problem,
        replace(setting, knows_neighbours=settler.belief.knows_neighbours),
        clocks_mhz=clocks,
    )


def setting_without_actor(settler: BatchDecider) -> ActorSetting:
    """The setting of a problem for which there is no actor."""
    problem = settler.problem
    gpus = sorted(
        name
        for gpu_type in problem.gpu_types
        for name in [gpu_type.name] * (gpu_type.count or 0)
    )
    services = sorted(
        service.name for service in problem.services if service.max_replicas != 0
    )
    percents = {
        percent
        for service in services
        for gpu_type in problem.gpu_types
        for percent in settler.percents(service, gpu_type.name)
    }
    may_repeat = all(
        settler.max_replicas(problem.service(name)) >= 2 for name in services
    )
    is_few = 2 * len(services) <= MAX_SLOTS
    return ActorSetting(
        gpus=tuple(gpus),
        services=tuple(services),
        slots=2 if may_repeat and is_few else 1,
        sm_percents=tuple(sorted(percents)) or (100.0,),
    )


def situation_of(
    settler: BatchDecider, world: ProvisioningWorld, held: Settled
) -> Situation:
    """What the actor sees of a provision that runs."""
    rates, queued, _ = figures_of(settler, world)
    used = np.zeros(len(world.setting.gpus))
    free = list(range(len(used)))
    for gpu, batches in zip(held.provision, held.batches, strict=True):
        at = next((at for at in free if world.setting.gpus[at] == gpu.gpu_type), None)
        if at is not None:
            free.remove(at)
            used[at] = sum(batch.row.memory_mib for batch in batches)
    return Situation(rates_rps=rates, queued=queued, used_mib=used)


def figures_of(
    settler: BatchDecider, world: ProvisioningWorld
) -> tuple[Reals, Reals, Reals]:
    """Rates, queued requests and weights (S,) in the world's order; 0 for services that the Problem lacks.

    A service of which replicas must run although nothing is asked of it counts with a trifle.
    """
    services = {
        service.name: service
        for service in settler.problem.services
        if service.max_replicas != 0
    }
    names = world.setting.services
    rates = np.array(
        [services[name].arrival_rate_rps if name in services else 0.0 for name in names]
    )
    least = np.array(
        [
            1e-6 if name in services and services[name].min_replicas > 0 else 0.0
            for name in names
        ]
    )
    queued = np.array(
        [settler.queued.get(name, 0.0) if name in services else 0.0 for name in names]
    )
    weights = np.array(
        [services[name].priority if name in services else 0.0 for name in names]
    )
    return np.maximum(rates, least * world.max_rps), queued, weights
