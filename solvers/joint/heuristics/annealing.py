"""Plans on a given fleet by simulated annealing: arrays for the kernel, the schedule, the result as patterns."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.anneal import Cooling, anneal
from solvers.joint.kernels.anneal_moves import (
    AnnealingDemand,
    AnnealingProblem,
    Flat,
    State,
)
from solvers.joint.kernels.types import Numbers, Reals
from solvers.joint.patterns.candidates import CANDIDATE_FIELDS
from solvers.joint.patterns.columns import Column, Pattern
from solvers.joint.patterns.formulation import CoverDemand
from solvers.joint.patterns.tables import Tables

_HOT, _WARM, _COLD = 0.2, 0.1, 0.015
"""Temperatures in mean prices of a GPU: at the beginning from nothing and from a plan, and at the end."""
_MOVES_AT_ONCE = 10_000
"""They take some milliseconds: whether time is over is asked in between."""
_ROUNDING = 1e-10
"""A shortage below this share of a rate is rounding."""
_WIDER, _OTHER_BATCH = 10.0, 0.01
"""What makes a candidate less near, in shares of a GPU's SM steps: that it is wider, and a batch of twice the size."""


class Annealer:
    """Anneals plans of one demand."""

    def __init__(self, tables: Tables, demand: CoverDemand) -> None:
        """What is short has the demand's prices."""
        self._tables = tables
        self._starts = np.cumsum(
            [0, *(len(mode.service) for mode in tables.modes)]
        ).astype(np.int32)
        self._flat = _flat(tables, self._starts)
        self._wanted = _wanted(tables, demand)

    def for_demand(self, demand: CoverDemand) -> "Annealer":
        """The same for another demand of the same tables."""
        # A shallow copy: the candidates of all modes are many, and are only read.
        other = copy(self)
        other._wanted = _wanted(self._tables, demand)
        return other

    def chain(
        self,
        fleet: Sequence[int],
        *,
        moves: int,
        seed: int,
        start: Sequence[Column] = (),
        temperatures: tuple[float, float] | None = None,
    ) -> "Chain":
        """Annealing of `fleet` GPUs of each type, one at least, which are paid for, used or not.

        start: one per GPU of a plan to begin with, which keeps to the fleet. temperatures: at the beginning and at the
        end, in mean prices of a GPU, where they should not be those of a search for any plan.
        """
        gpu_type = np.repeat(np.arange(len(fleet)), fleet).astype(np.int32)
        plant = AnnealingProblem(self._flat, self._tables.law, self._wanted, gpu_type)
        # Temperatures in GPU prices, so that they suit fleets of cheap and of expensive types.
        mean_price = float(np.array(fleet) @ self._tables.price) / len(gpu_type)
        hot, cold = temperatures or (_WARM if start else _HOT, _COLD)
        steps = mean_price * _cooling(hot, cold, moves)
        state = self._state(plant, start)
        return Chain(plant, self._starts, steps.tolist(), seed, state)

    def _state(self, plant: AnnealingProblem, start: Sequence[Column]) -> State:
        """The GPUs of these columns; the others run nothing."""
        state = _unused(plant)
        # GPUs of a type are all alike, so that a column may have any of them.
        free = {
            kind: np.flatnonzero(plant.gpu_type == kind).tolist()
            for kind in set(plant.gpu_type.tolist())
        }
        for column in start:
            number = column.pattern.mode
            items = np.array(column.pattern.items)
            mode = self._tables.modes[number]
            gpu = free[mode.gpu_type].pop()
            count = len(items)
            state.mode[gpu] = number
            state.size[gpu] = count
            state.power[gpu] = mode.power[items].sum()
            state.items[gpu, :count] = self._starts[number] + items
            state.carried[gpu, :count] = column.capacity
        return state


def _cooling(hot: float, cold: float, moves: int) -> Reals:
    """Temperatures at the ends of the parts that `moves` are done in."""
    parts = max(1, -(-moves // _MOVES_AT_ONCE))
    return np.geomspace(hot, cold, parts + 1)


class Chain:
    """One annealing in parts, each of a few milliseconds."""

    def __init__(
        self,
        plant: AnnealingProblem,
        starts: Numbers,
        temperatures: Sequence[float],
        seed: int,
        state: State,
    ) -> None:
        """temperatures: at the beginning, between the parts, and at the end; starts: (M + 1,) of each mode's part."""
        self._plant, self._starts = plant, starts
        self._temperatures = temperatures
        # One seed for each part: the kernel's random state belongs to its thread, not to the chain.
        rng = np.random.default_rng(seed)
        self._seeds = rng.integers(2**32, size=len(temperatures) - 1).tolist()
        self._done = 0
        self._state = state
        self._best, self._best_cost = _unused(plant), np.inf

    @property
    def is_done(self) -> bool:
        """Whether it has come to the last temperature."""
        return self._done == len(self._seeds)

    def advance(self) -> None:
        """Do the next part."""
        hot, cold = self._temperatures[self._done : self._done + 2]
        part = Cooling(_MOVES_AT_ONCE, hot, cold, self._seeds[self._done])
        self._best_cost = anneal(
            self._plant, self._state, self._best, self._best_cost, part
        )
        self._done += 1

    def is_met(self) -> bool:
        """Whether the best plan met so far leaves nothing short, with no replica too many."""
        flat = self._plant.flat
        wanted = self._plant.wanted
        state = self._best
        used = np.arange(state.items.shape[1]) < state.size[:, None]
        services = flat.service[state.items[used]]
        rates = state.carried[used]
        rps = np.bincount(services, rates, len(wanted.rate))
        replicas = np.bincount(services, minlength=len(wanted.rate))
        is_served = wanted.rate - rps <= _ROUNDING * wanted.rate
        has_enough = replicas >= wanted.min_replicas
        has_few = replicas <= wanted.max_replicas
        return bool((is_served & has_enough & has_few).all())

    def plan(self) -> Counter[Pattern]:
        """GPUs by pattern of the best plan met so far; unused ones are left out."""
        state = self._best
        found: Counter[Pattern] = Counter()
        for mode, count, items in zip(
            state.mode.tolist(), state.size.tolist(), state.items, strict=True
        ):
            if count > 0:
                own = sorted((items[:count] - self._starts[mode]).tolist())
                found[Pattern(mode, tuple(own))] += 1
        return found


def advance(
    chains: Sequence[Chain], executor: Executor | None, is_over: Callable[[], bool]
) -> None:
    """Anneal all chains to their ends, or until time is over: side by side where there are threads.

    Time is asked for once for all of them, so that their number does not change where they stop.
    """
    run = map if executor is None else executor.map
    while True:
        left = [chain for chain in chains if not chain.is_done]
        if not left:
            return
        list(run(Chain.advance, left))
        if is_over():
            return


def _wanted(tables: Tables, demand: CoverDemand) -> AnnealingDemand:
    return AnnealingDemand(
        demand.rate,
        demand.fewest,
        demand.most,
        demand.shortage_price,
        demand.missing_price,
        tables.modes[0].watt_price,
    )


def _unused(plant: AnnealingProblem) -> State:
    """Every GPU at the last clock of its type, with nothing on it."""
    gpus = len(plant.gpu_type)
    services = len(plant.wanted.rate)
    # A factor for each number of replicas, none included.
    max_replicas = plant.flat.launch_factor.shape[1] - 1
    return State(
        mode=plant.flat.of_type[plant.gpu_type + 1] - 1,
        size=np.zeros(gpus, np.int32),
        items=np.zeros((gpus, max_replicas), np.int32),
        carried=np.zeros((gpus, max_replicas)),
        power=np.zeros(gpus),
        rps=np.zeros(services),
        replicas=np.zeros(services),
    )


def _flat(tables: Tables, starts: Numbers) -> Flat:
    modes = tables.modes
    types = np.arange(len(tables.stock) + 1)
    of_type = np.searchsorted(tables.mode_types, types).astype(np.int32)
    max_clocks = int(np.diff(of_type).max(initial=1))
    flat = Flat(
        **_joined_candidates(tables),
        twin=np.full((starts[-1], max_clocks), -1, np.int32),
        first=_service_starts(tables, starts),
        steps=np.array([mode.steps for mode in modes], dtype=np.int32),
        memory_mib=np.array([mode.memory_mib for mode in modes]),
        power_w=np.array([mode.power_w for mode in modes]),
        launch_factor=np.array([mode.launch_factor for mode in modes]),
        of_type=of_type,
        # The same for all modes; without any there is nothing to anneal.
        shares_label=modes[0].shares_label if modes else np.zeros((0, 0), np.bool_),
    )
    _find_twins(tables, flat)
    return flat


def _joined_candidates(tables: Tables) -> dict[str, npt.NDArray[Any]]:
    """The candidates of all modes end to end, by field."""
    return {
        name: np.concatenate([getattr(mode, name) for mode in tables.modes])
        for name in CANDIDATE_FIELDS
        if name in Flat._fields
    }


def _service_starts(tables: Tables, starts: Numbers) -> Numbers:
    """(M, S + 1) where the candidates of each service begin among those of all modes."""
    services = np.arange(len(tables.rate) + 1)
    first = [
        start + np.searchsorted(mode.service, services)
        for mode, start in zip(tables.modes, starts[:-1], strict=True)
    ]
    return np.array(first, dtype=np.int32)


def _find_twins(tables: Tables, flat: Flat) -> None:
    """Fill in the twins: nearest by SM share first, where wider ones come last, then by batch."""
    for number, mode in enumerate(tables.modes):
        low, high = flat.of_type[mode.gpu_type : mode.gpu_type + 2]
        for clock, other in enumerate(range(low, high)):
            _find_twins_between(flat, number, other, clock)


def _find_twins_between(flat: Flat, mode: int, other_mode: int, clock: int) -> None:
    steps = flat.steps[mode]
    other_steps = flat.steps[other_mode]
    for service in range(flat.first.shape[1] - 1):
        mine = slice(*flat.first[mode, service : service + 2])
        others = slice(*flat.first[other_mode, service : service + 2])
        # A service may have no row at some clock.
        if mine.start < mine.stop and others.start < others.stop:
            nearest = _nearest(flat, mine, others, steps, other_steps)
            flat.twin[mine, clock] = others.start + nearest


def _nearest(
    flat: Flat, mine: slice, others: slice, steps: int, other_steps: int
) -> Numbers:
    """Position among the others of the one that is nearest to each of mine."""
    # Shares, not steps: clocks of one type may count their SM steps differently.
    more = flat.width[others] / other_steps - (flat.width[mine] / steps)[:, None]
    distance = np.abs(more) + _WIDER * (more > 1e-9)
    distance += _OTHER_BATCH * np.abs(
        np.log2(flat.batch[mine][:, None] / flat.batch[others])
    )
    nearest: Numbers = distance.argmin(axis=1).astype(np.int32)
    return nearest
