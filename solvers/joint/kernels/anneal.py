"""Simulated annealing over whole plans on GPUs of given types: which replicas run where, in what shape and clock.

The state is, of every GPU, its clock and what runs on it. A move changes one GPU or two: another shape (SM steps and
batch) for a replica, one more, one less, another service in its place, another clock, a replica carried over to another
GPU. Mostly all replicas of the changed GPUs then take the batches that carry most next to the new neighbours, since a
change of SM steps alone would rarely be good for the batches at hand. Moves that break a limit of the GPU are not made.
What a state costs is

    Σ rps price · rps short  +  Σ missing price · replicas missing  +  prices of watts  +  excess of replicas

with true capacities in true neighbours; only the changed GPUs are evaluated again. A dearer state is taken with
probability exp(−difference / temperature); the temperature falls geometrically. A move takes about a microsecond, so
that a second sees as many of them as there are states near a plan of a few GPUs, where the linear relaxation, all of
fractions, says little about whole plans.
"""

from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.anneal_moves import (
    AnnealingDemand,
    AnnealingProblem,
    Flat,
    State,
    propose,
)
from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.laws import breaks_anti_affinity, capacity_rps, stretch_ms
from solvers.joint.kernels.types import Law

_FIT = 1.0 + 1e-9
_SETTLED = 0.8
"""After this share of the moves batches are chosen again."""


class Cooling(NamedTuple):
    """The course of one annealing."""

    moves: int
    hot: float
    cold: float
    """USD per hour: temperatures at the beginning and at the end."""
    seed: int


@compiled
def anneal(
    plant: AnnealingProblem,
    state: State,
    best: State,
    min_cost: float,
    cooling: Cooling,
) -> float:
    """The cost of the best state met if it is less than `min_cost`, which it is left in `best`; else `min_cost`.

    The search starts at `state`, with its powers and rates filled in, and leaves where it ended there.
    """
    np.random.seed(cooling.seed)
    # Taken apart once: each time that a tuple is taken out of another one, references to all its arrays are counted.
    flat, law, wanted, gpu_type = plant.flat, plant.law, plant.wanted, plant.gpu_type
    # Totals are summed again in each part, so that the rounding of a million differences does not add up.
    _sum_up(flat, state)
    trial = _copied(state)
    cost = _cost(wanted, state)
    if cost < min_cost:
        min_cost = cost
        _store(best, state)
    temperature = cooling.hot
    factor = (cooling.cold / cooling.hot) ** (1.0 / max(1, cooling.moves))
    for _ in range(cooling.moves):
        temperature *= factor
        is_made, one, other = propose(flat, wanted, gpu_type, trial)
        if is_made:
            if np.random.random() < _SETTLED:
                _choose_batches(flat, law, trial, one)
                if other >= 0:
                    _choose_batches(flat, law, trial, other)
            is_made = _evaluate(flat, law, trial, one) and (
                other < 0 or _evaluate(flat, law, trial, other)
            )
        if not is_made:
            # The totals of the trial change only with a move that fits, so that there is nothing to undo in them.
            _restore(trial, state, one, other)
            continue

        _shift(flat, state, trial, one)
        if other >= 0:
            _shift(flat, state, trial, other)
        reached = _cost(wanted, trial)
        # No random number where the move is no worse: the sequence of numbers is part of what makes plans reproducible.
        if reached > cost and np.random.random() >= np.exp(
            (cost - reached) / temperature
        ):
            _restore(trial, state, one, other)
            _copy_totals(trial, state)
            continue

        cost = reached
        _restore(state, trial, one, other)
        _copy_totals(state, trial)
        if cost < min_cost:
            min_cost = cost
            _store(best, state)
    return min_cost


@compiled
def _sum_up(flat: Flat, state: State) -> None:
    """Fill in the totals."""
    state.rps[:], state.replicas[:] = 0.0, 0.0
    for gpu in range(state.mode.shape[0]):
        for at in range(state.size[gpu]):
            service = flat.service[state.items[gpu, at]]
            state.rps[service] += state.carried[gpu, at]
            state.replicas[service] += 1.0


@compiled
def _copied(state: State) -> State:
    return State(
        state.mode.copy(),
        state.size.copy(),
        state.items.copy(),
        state.carried.copy(),
        state.power.copy(),
        state.rps.copy(),
        state.replicas.copy(),
    )


@compiled
def _store(target: State, source: State) -> None:
    """All GPUs as in the source."""
    for gpu in range(source.mode.shape[0]):
        _restore(target, source, gpu, -1)


@compiled
def _restore(target: State, source: State, one: int, other: int) -> None:
    """These GPUs as in the source; −1 is none."""
    for gpu in (one, other):
        if gpu >= 0:
            target.mode[gpu] = source.mode[gpu]
            target.size[gpu] = source.size[gpu]
            target.power[gpu] = source.power[gpu]
            target.items[gpu] = source.items[gpu]
            target.carried[gpu] = source.carried[gpu]


@compiled
def _copy_totals(target: State, source: State) -> None:
    target.rps[:], target.replicas[:] = source.rps, source.replicas


@compiled
def _shift(flat: Flat, before: State, after: State, gpu: int) -> None:
    """The totals of the state after, with the GPU as it is there instead of before."""
    for at in range(before.size[gpu]):
        service = flat.service[before.items[gpu, at]]
        after.rps[service] -= before.carried[gpu, at]
        after.replicas[service] -= 1.0
    for at in range(after.size[gpu]):
        service = flat.service[after.items[gpu, at]]
        after.rps[service] += after.carried[gpu, at]
        after.replicas[service] += 1.0


@compiled
def _cost(wanted: AnnealingDemand, state: State) -> float:
    total = wanted.watt_price * state.power.sum()
    for service in range(state.rps.shape[0]):
        short = wanted.rate[service] - state.rps[service]
        if short > 0.0:
            total += wanted.rps_price[service] * short
        missing = wanted.min_replicas[service] - state.replicas[service]
        if missing > 0.0:
            total += wanted.missing_price[service] * missing
        # A replica too many breaks a rule as much as one too few.
        excess = state.replicas[service] - wanted.max_replicas[service]
        if excess > 0.0:
            total += wanted.missing_price[service] * excess
    return total


@compiled
def _choose_batches(flat: Flat, law: Law, state: State, gpu: int) -> None:
    """One replica after the other takes the batch that carries most next to the others; SM steps stay."""
    mode, count, items = state.mode[gpu], state.size[gpu], state.items[gpu]
    pressure, factor = 0.0, flat.launch_factor[mode, count]
    for at in range(count):
        pressure += flat.pressure[items[at]]
    for at in range(count):
        best, best_rps, item = items[at], -1.0, items[at]
        service, width = flat.service[best], flat.width[best]
        others = max(0.0, pressure - flat.pressure[best])
        # Candidates of one service and width stand side by side, by batch.
        while item > flat.first[mode, service] and flat.width[item - 1] == width:
            item -= 1
        while item < flat.first[mode, service + 1] and flat.width[item] == width:
            launch = flat.launch_ms[item] * factor
            duration = flat.alone_ms[item] + launch + stretch_ms(flat, item, others)
            carried = capacity_rps(flat, law, item, duration)
            if carried > best_rps:
                best, best_rps = item, carried
            item += 1
        items[at], pressure = best, others + flat.pressure[best]


@compiled
def _evaluate(flat: Flat, law: Law, state: State, gpu: int) -> bool:
    """Fill in what the GPU's replicas carry and draw; False where they do not fit it."""
    mode, count, items = state.mode[gpu], state.size[gpu], state.items[gpu]
    if flat.shares_label.shape[0] > 0 and breaks_anti_affinity(flat, items, count):
        return False
    width, memory, power, pressure = 0, 0.0, 0.0, 0.0
    for at in range(count):
        width += flat.width[items[at]]
        memory += flat.memory[items[at]]
        power += flat.power[items[at]]
        pressure += flat.pressure[items[at]]
    if (
        width > flat.steps[mode]
        or memory > flat.memory_mib[mode] * _FIT
        or power > flat.power_w[mode] * _FIT
    ):
        return False

    state.power[gpu] = power
    factor = flat.launch_factor[mode, count]
    for at in range(count):
        item = items[at]
        others = max(0.0, pressure - flat.pressure[item])
        launch = flat.launch_ms[item] * factor
        duration = flat.alone_ms[item] + launch + stretch_ms(flat, item, others)
        carried = capacity_rps(flat, law, item, duration)
        # A replica that only misses its SLO is no plan at all, unless its mere presence is asked for.
        if carried <= 0.0 and not flat.may_idle[item]:
            return False
        state.carried[gpu, at] = carried
    return True
