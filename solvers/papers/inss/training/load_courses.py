"""How loads and queues go on in the world in which the actor is trained: many courses at once, each drawn by seed.

A course has a mix of services (some may be absent), whose rates wander around a level that now and then jumps; requests
arrive as a Poisson stream; what cannot be executed waits, and leaves once it is too late for its SLO.
Source: InSS, section 6.1 has Poisson arrivals and Table 1 the number of steps; mixes, levels and wandering are ours.
"""

import numpy as np

from solvers.papers.inss.training.world import ProvisioningWorld
from solvers.papers.inss.training.world_rows import DecidedBatches, Indices, Reals

STEPS = 200
"""T of Table 1: the steps of one episode."""
STEP_S = 1.0

_PRESENT = 0.85
"""Chance of a service to be there at all."""
_LOADS = (0.1, 1.0)
"""Σ rate / most that one replica alone on a whole GPU carries, per GPU of the fleet; drawn evenly between."""
_MIX_SPREAD = 0.6
"""Standard deviation of the logarithm of a service's part in the load."""
_JUMP_CHANCE, _WANDER, _PULL = 0.03, 0.03, 0.1
"""Per step: a new level; standard deviation of the logarithm's step; part of the way back to the level."""


class Courses:
    """N courses that run side by side."""

    def __init__(self, world: ProvisioningWorld, count: int, seed: int) -> None:
        self._world = world
        self._random = np.random.default_rng(seed)
        services = len(world.setting.services)
        self._levels = np.zeros((count, services))
        self.rates_rps: Reals = np.zeros((count, services))
        self.queued: Reals = np.zeros((count, services))
        self.used_mib: Reals = np.zeros((count, len(world.setting.gpus)))
        self.begin()

    def begin(self) -> None:
        """A new episode for all: new mixes, no queues, nothing runs."""
        self._levels = self._draw(len(self._levels))
        self.rates_rps = self._levels.copy()
        self.queued[:] = 0.0
        self.used_mib[:] = 0.0

    def go_on(self, chosen: Indices, decided: DecidedBatches, raw_rps: Reals) -> None:
        """A step under these provisions and batches; raw rates: what the replicas execute at most, (N, S)."""
        arrived = self._random.poisson(self.rates_rps * STEP_S)
        slo_s = self._world.slo_ms / 1000.0
        # What waits for longer than its SLO is gone: no more stays than the replicas execute within one.
        queued = self.queued + arrived - raw_rps * STEP_S
        self.queued = np.clip(queued, 0.0, raw_rps * slo_s)
        self.used_mib = self._world.used_mib(chosen, decided)

        jumps = np.flatnonzero(self._random.random(len(self._levels)) < _JUMP_CHANCE)
        self._levels[jumps] = self._draw(len(jumps))
        self.rates_rps[jumps] = self._levels[jumps]
        self.rates_rps = self._wandered()

    def _wandered(self) -> Reals:
        """The rates a step later, near their levels."""
        # Wandering is in logarithms, so that no rate becomes negative; an absent service stays at 0.
        towards = self._levels / np.maximum(self.rates_rps, 1e-9)
        noise = self._random.normal(0.0, _WANDER, self.rates_rps.shape)
        wandered = self.rates_rps * towards**_PULL * np.exp(noise)
        return np.where(self._levels > 0.0, wandered, 0.0)

    def _draw(self, count: int) -> Reals:
        services = self._levels.shape[1]
        gpus = len(self._world.setting.gpus)
        present = self._random.random((count, services)) < _PRESENT
        # A course without any service would teach nothing.
        present[:, 0] |= ~present.any(axis=1)
        mix = np.exp(self._random.normal(0.0, _MIX_SPREAD, (count, services)))
        parts = np.where(present, mix, 0.0)
        loads = self._random.uniform(*_LOADS, (count, 1)) * gpus
        shares = parts / parts.sum(axis=1, keepdims=True) * loads
        # More than a whole GPU carries cannot be served in one place: the rest is left out.
        return np.asarray(np.minimum(shares, 1.0) * self._world.max_rps)
