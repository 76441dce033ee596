"""Simulated annealing over whole plans on GPUs of given types: which replicas run where, in what shape and clock.

The state is, of every GPU, its clock and what runs on it. A move changes one GPU or two: another shape (SM steps and
batch) for a replica, one more, one less, another service in its place, another clock, a replica carried over to another
GPU. Mostly all replicas of the changed GPUs then take the batches that carry most beside the new neighbours, since a
change of SM steps alone would rarely be good for the batches at hand. Moves that break a limit of the GPU are not made.
What a state costs is

    Σ rps price · rps short  +  Σ missing price · replicas missing  +  prices of watts  +  excess of replicas

with true capacities in true neighbours; only the changed GPUs are evaluated anew. A dearer state is taken with
probability exp(−difference / temperature); the temperature falls geometrically. A move takes about a microsecond, so
that a second sees as many of them as there are states near a plan of a few GPUs, where the linear relaxation, all of
fractions, says little about whole plans.
"""

import numpy as np

from solvers.joint.kernels.anneal_moves import (
    AnnealingDemand,
    AnnealingProblem,
    Flat,
    State,
    propose,
)
from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.laws import capacity_rps
from solvers.joint.kernels.types import Law, Reals

_FIT = 1.0 + 1e-9
_SETTLED = 0.8
"""Of the moves: those after which batches are chosen anew."""


@compiled
def anneal(
    plant: AnnealingProblem,
    state: State,
    best: State,
    least: float,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
) -> float:
    """The cost of the best state met if it is less than `least`, which it is left in `best`; else `least`.

    The search starts at `state`, with its powers and rates filled in, and leaves where it ended there; temperatures
    fall from hot to cold.
    """
    np.random.seed(seed)
    flat, wanted = plant.flat, plant.wanted
    rps, replicas = _totals(flat, wanted, state)
    trial, trial_rps, trial_replicas = _copied(state), rps.copy(), replicas.copy()
    cost = _cost(wanted, rps, replicas, state)
    if cost < least:
        least = cost
        for gpu in range(state.mode.shape[0]):
            _restore(best, state, gpu, -1)
    temperature, cooling = hot, (cold / hot) ** (1.0 / max(1, moves))
    for _ in range(moves):
        temperature *= cooling
        is_made, one, other = propose(flat, wanted, plant.gpu_type, trial, rps)
        if is_made:
            if np.random.random() < _SETTLED:
                _settle(flat, plant.law, trial, one)
                if other >= 0:
                    _settle(flat, plant.law, trial, other)
            is_made = _evaluate(flat, plant.law, trial, one) and (
                other < 0 or _evaluate(flat, plant.law, trial, other)
            )
        if not is_made:
            _restore(trial, state, one, other)
            continue
        _shift(flat, trial_rps, trial_replicas, state, trial, one)
        if other >= 0:
            _shift(flat, trial_rps, trial_replicas, state, trial, other)
        reached = _cost(wanted, trial_rps, trial_replicas, trial)
        if reached <= cost or np.random.random() < np.exp(
            (cost - reached) / temperature
        ):
            cost = reached
            _restore(state, trial, one, other)
            rps[:], replicas[:] = trial_rps, trial_replicas
            if cost < least:
                least = cost
                for gpu in range(state.mode.shape[0]):
                    _restore(best, state, gpu, -1)
        else:
            _restore(trial, state, one, other)
            trial_rps[:], trial_replicas[:] = rps, replicas
    return least


@compiled
def _copied(state: State) -> State:
    return State(
        state.mode.copy(),
        state.size.copy(),
        state.items.copy(),
        state.carried.copy(),
        state.power.copy(),
    )


@compiled
def _restore(state: State, source: State, one: int, other: int) -> None:
    """The GPUs as in the source; −1 is none."""
    for gpu in (one, other):
        if gpu >= 0:
            state.mode[gpu], state.size[gpu], state.power[gpu] = (
                source.mode[gpu],
                source.size[gpu],
                source.power[gpu],
            )
            state.items[gpu] = source.items[gpu]
            state.carried[gpu] = source.carried[gpu]


@compiled
def _totals(flat: Flat, wanted: AnnealingDemand, state: State) -> tuple[Reals, Reals]:
    rps, replicas = np.zeros(wanted.rate.shape[0]), np.zeros(wanted.rate.shape[0])
    for gpu in range(state.mode.shape[0]):
        for at in range(state.size[gpu]):
            rps[flat.service[state.items[gpu, at]]] += state.carried[gpu, at]
            replicas[flat.service[state.items[gpu, at]]] += 1.0
    return rps, replicas


@compiled
def _shift(
    flat: Flat, rps: Reals, replicas: Reals, before: State, after: State, gpu: int
) -> None:
    """The totals with the GPU as after instead of before."""
    for at in range(before.size[gpu]):
        service = flat.service[before.items[gpu, at]]
        rps[service] -= before.carried[gpu, at]
        replicas[service] -= 1.0
    for at in range(after.size[gpu]):
        service = flat.service[after.items[gpu, at]]
        rps[service] += after.carried[gpu, at]
        replicas[service] += 1.0


@compiled
def _cost(wanted: AnnealingDemand, rps: Reals, replicas: Reals, state: State) -> float:
    total = wanted.watt_price * state.power.sum()
    for service in range(rps.shape[0]):
        short = wanted.rate[service] - rps[service]
        if short > 0.0:
            total += wanted.rps_price[service] * short
        missing = wanted.fewest[service] - replicas[service]
        if missing > 0.0:
            total += wanted.missing_price[service] * missing
        excess = replicas[service] - wanted.most[service]
        if excess > 0.0:
            total += wanted.missing_price[service] * excess
    return total


@compiled
def _settle(flat: Flat, law: Law, state: State, gpu: int) -> None:
    """One replica after the other takes the batch that carries most beside the others; SM steps stay."""
    mode, count, items = state.mode[gpu], state.size[gpu], state.items[gpu]
    pressure = 0.0
    for at in range(count):
        pressure += flat.pressure[items[at]]
    factor = flat.launch_factor[mode, count]
    for at in range(count):
        best, most = items[at], -1.0
        service, width = flat.service[best], flat.width[best]
        others = max(0.0, pressure - flat.pressure[best])
        item = best
        while item > flat.first[mode, service] and flat.width[item - 1] == width:
            item -= 1
        while item < flat.first[mode, service + 1] and flat.width[item] == width:
            duration = (
                flat.alone_ms[item]
                + flat.launch_ms[item] * factor
                + flat.growth_ms[item] * others
            )
            carried = capacity_rps(flat, law, item, duration)
            if carried > most:
                best, most = item, carried
            item += 1
        items[at], pressure = best, others + flat.pressure[best]


@compiled
def _evaluate(flat: Flat, law: Law, state: State, gpu: int) -> bool:
    """Fill in what the GPU's replicas carry and draw; False where they do not fit it."""
    mode, count, items = state.mode[gpu], state.size[gpu], state.items[gpu]
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
    if count == 0:
        return True
    factor = flat.launch_factor[mode, count]
    for at in range(count):
        item = items[at]
        others = max(0.0, pressure - flat.pressure[item])
        duration = (
            flat.alone_ms[item]
            + flat.launch_ms[item] * factor
            + flat.growth_ms[item] * others
        )
        carried = capacity_rps(flat, law, item, duration)
        if carried <= 0.0 and not flat.may_idle[item]:
            return False
        state.carried[gpu, at] = carried
    return True
