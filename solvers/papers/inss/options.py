"""A provision as the options of InSS's world, which the actor and the local search choose among, and back."""

import numpy as np

from solvers.papers.inss.provisioning import Provision, Provisioned, Share
from solvers.papers.inss.world import Indices, ProvisioningWorld


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
