"""A provision as the options of InSS's world, which the actor and the local search choose among, and back."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solvers.greedy.configure import planning_clock_mhz
from solvers.papers.inss.provisioning import (
    BatchDecider,
    Provision,
    Provisioned,
    Settled,
    Share,
)
from solvers.papers.inss.training.actor import Situation, fleet_of, gpus_of
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
    nowhere = world.options - 1
    chosen = np.full((1, world.slots), nowhere)
    free = list(range(len(world.setting.gpus)))
    by_place = {world.place(option): option for option in range(nowhere)}
    names = [world.setting.services[int(service)] for service in world.service_of]
    for gpu in provision:
        at = _take_gpu(world, free, gpu.gpu_type)
        if at is None:
            return chosen[:0]
        for share in gpu.shares:
            open_slots = [
                slot
                for slot, name in enumerate(names)
                if name == share.service and chosen[0, slot] == nowhere
            ]
            option = by_place.get((at, share.sm_percent))
            # A start that lacks a share would not lead to provisions that move little.
            if not open_slots or option is None:
                return chosen[:0]
            chosen[0, open_slots[0]] = option
    return chosen


def _take_gpu(
    world: ProvisioningWorld,
    free: list[int],
    gpu_type: str,
) -> int | None:
    """The place of a GPU of that type, which is free no more; None where none is left."""
    # A provision's GPUs have no identity: each stands for the first of its type that is left.
    at = next((at for at in free if world.setting.gpus[at] == gpu_type), None)
    if at is not None:
        free.remove(at)
    return at


STARTS = 16
"""The local search begins from this number of drawn starts, and from as many of the actor's best proposals."""

MAX_SLOTS = 24
"""More services or slots are not for the local search either."""


def best_proposals(
    decider: BatchDecider,
    world: ProvisioningWorld,
    proposals: Indices,
) -> tuple[Settled, Indices]:
    """The best proposal by the world's reward, and the best few as starts of a search."""
    figures = figures_of(decider, world)
    shape = (len(proposals), len(figures.rates_rps))
    decided = world.decide(proposals, np.broadcast_to(figures.queued, shape))
    rewards = world.rewards(decided, np.broadcast_to(figures.rates_rps, shape))
    order = np.argsort(-rewards, kind="stable")
    best = decider.settle(provision_of(world, proposals[order[0]]))
    return best, proposals[order[:STARTS]]


def world_of(decider: BatchDecider, setting: ActorSetting) -> ProvisioningWorld:
    """The world of the decider's Problem and rules, at the clocks that are planned."""
    problem = decider.problem
    clocks = [planning_clock_mhz(problem, gpu_type) for gpu_type in problem.gpu_types]
    return ProvisioningWorld(
        problem,
        replace(setting, knows_neighbours=decider.rules.knows_neighbours),
        clocks_mhz=clocks,
    )


def setting_without_actor(decider: BatchDecider) -> ActorSetting:
    """The setting of a problem for which there is no actor."""
    problem = decider.problem
    services = sorted(
        service.name for service in problem.services if service.max_replicas != 0
    )
    percents = {
        percent
        for service in services
        for gpu_type in problem.gpu_types
        for percent in decider.percents(service, gpu_type.name)
    }
    # A second place for each where all may use it, and where the pairs of slots that swap stay few.
    may_repeat = all(
        decider.max_replicas(problem.service(name)) >= 2 for name in services
    )
    is_few = 2 * len(services) <= MAX_SLOTS
    return ActorSetting(
        gpus=gpus_of(fleet_of(problem.gpu_types)),
        services=tuple(services),
        slots=2 if may_repeat and is_few else 1,
        # One where no service has any: a world needs at least one SM percent.
        sm_percents=tuple(sorted(percents)) or (100.0,),
    )


def situation_of(
    decider: BatchDecider,
    world: ProvisioningWorld,
    held: Settled,
) -> Situation:
    """What the actor sees of a provision that runs."""
    figures = figures_of(decider, world)
    used = np.zeros(len(world.setting.gpus))
    free = list(range(len(used)))
    for gpu, batches in zip(held.provision, held.batches, strict=True):
        at = _take_gpu(world, free, gpu.gpu_type)
        if at is not None:
            used[at] = sum(batch.row.memory_mib for batch in batches)
    return Situation(rates_rps=figures.rates_rps, queued=figures.queued, used_mib=used)


class ServiceFigures(NamedTuple):
    """What is asked of the world's services, each (S,) in its order; 0 for services that the Problem lacks."""

    rates_rps: Reals
    queued: Reals
    """Requests that wait."""
    weights: Reals


def figures_of(decider: BatchDecider, world: ProvisioningWorld) -> ServiceFigures:
    """The figures of the decider's problem.

    A service without a rate of which replicas must run counts with a tiny one.
    """
    known = {service.name: service for service in decider.problem.services}
    rates, queued, weights = np.zeros((3, len(world.setting.services)))
    for at, name in enumerate(world.setting.services):
        service = known.get(name)
        # One that may have no replica counts as without a rate, which the world places nowhere.
        if service is None or service.max_replicas == 0:
            continue
        min_rps = 1e-6 * world.max_rps[at] if service.min_replicas > 0 else 0.0
        rates[at] = max(service.arrival_rate_rps, min_rps)
        queued[at] = decider.queued.get(name, 0.0)
        weights[at] = service.priority
    return ServiceFigures(rates, queued, weights)
