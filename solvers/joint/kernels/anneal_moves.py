"""Random moves of simulated annealing: small changes to what runs on one GPU or two."""

from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.types import Flags, Law, Numbers, Reals

_TRIES = 4
"""The maximum number of draws to meet a service that is short."""
_ON_TWO, _TRANSFER, _TWICE = 0.25, 0.125, 0.5
"""Moves below these numbers change two GPUs; carry a replica over; change one GPU twice."""
_RESHAPE, _ADD, _REMOVE, _REPLACE = 0.45, 0.65, 0.8, 0.92
"""Changes of one GPU below these numbers; above the last one its clock changes."""
_WIDEST = 0.25
"""This share of the replicas that are added is as wide as the free SM steps allow: in good plans few are left."""


class Flat(NamedTuple):
    """All M modes, those of a type side by side, with their C candidates end to end; capacities by `laws`."""

    service: Numbers
    width: Numbers
    batch: Reals
    memory: Reals
    power: Reals
    pressure: Reals
    alone_ms: Reals
    launch_ms: Reals
    growth_ms: Reals
    overload_ms: Reals
    room: Reals
    law: Numbers
    slo_ms: Reals
    max_rps: Reals
    may_idle: Flags
    twin: Numbers
    """(C, K) the nearest candidate of the service in each mode of the type; −1 where it has none."""
    first: Numbers
    """(M, S + 1) where the candidates of each service begin."""
    steps: Numbers
    """(M,)"""
    memory_mib: Reals
    power_w: Reals
    launch_factor: Reals
    """(M, N + 1)"""
    of_type: Numbers
    """(G + 1,) where the modes of each type begin."""
    shares_label: Flags
    """(S, S) which services may not share a GPU; (0, 0) where all may."""


class AnnealingDemand(NamedTuple):
    """What is wanted, and what it costs not to have it."""

    rate: Reals
    min_replicas: Reals
    max_replicas: Reals
    """(S,)"""
    rps_price: Reals
    missing_price: Reals
    """(S,)"""
    watt_price: float


class AnnealingProblem(NamedTuple):
    """What does not change while plans are sought."""

    flat: Flat
    law: Law
    wanted: AnnealingDemand
    gpu_type: Numbers
    """(D,) of each GPU."""


class State(NamedTuple):
    """D GPUs with at most N replicas each."""

    mode: Numbers
    """(D,)"""
    size: Numbers
    """(D,) replicas on each."""
    items: Numbers
    """(D, N) candidates."""
    carried: Reals
    """(D, N) rps."""
    power: Reals
    """(D,) W of the replicas."""
    rps: Reals
    replicas: Reals
    """(S,) of all GPUs together."""


@compiled
def propose(
    flat: Flat, wanted: AnnealingDemand, gpu_type: Numbers, state: State
) -> tuple[bool, int, int]:
    """(whether a change was made, GPU, other GPU or −1) of a random change; limits of the GPUs are not looked at.

    The totals stay as they were: they tell which services were short before the change.
    """
    gpus, kind = state.mode.shape[0], np.random.random()
    one, other = np.random.randint(gpus), -1
    if kind < _ON_TWO and gpus > 1:
        # Any GPU but the first one, each as likely.
        other = (one + 1 + np.random.randint(gpus - 1)) % gpus
        if kind < _TRANSFER:
            return _transfer(flat, state, one, other), one, other
        is_made = _change(flat, wanted, gpu_type, state, other)
    else:
        is_made = kind >= _TWICE or _change(flat, wanted, gpu_type, state, one)
    return is_made and _change(flat, wanted, gpu_type, state, one), one, other


@compiled
def _change(
    flat: Flat, wanted: AnnealingDemand, gpu_type: Numbers, state: State, gpu: int
) -> bool:
    """One change of one GPU; False where it cannot be."""
    kind, count = np.random.random(), state.size[gpu]
    if kind >= _REPLACE:
        return _reclock(flat, state, gpu, gpu_type[gpu])
    if kind >= _RESHAPE and kind < _ADD:
        service = _some_service(wanted, state.rps)
        return not _runs(flat, state, gpu, service) and _add(flat, state, gpu, service)
    if count == 0:
        return False
    at = np.random.randint(count)
    service = flat.service[state.items[gpu, at]]
    _remove(state, gpu, at)
    if kind < _RESHAPE:
        return _add(flat, state, gpu, service)
    if kind < _REMOVE:
        return True
    service = _some_service(wanted, state.rps)
    return not _runs(flat, state, gpu, service) and _add(flat, state, gpu, service)


@compiled
def _transfer(flat: Flat, state: State, one: int, other: int) -> bool:
    """A replica of one GPU runs on the other one instead; half of the time another comes back for it."""
    if state.size[one] == 0:
        return False
    at = np.random.randint(state.size[one])
    service = flat.service[state.items[one, at]]
    if _runs(flat, state, other, service):
        return False
    _remove(state, one, at)
    # A plain transfer needs free SM steps on the other GPU, of which good plans leave few: an exchange makes room.
    if state.size[other] > 0 and np.random.random() < 0.5:
        at = np.random.randint(state.size[other])
        back = flat.service[state.items[other, at]]
        _remove(state, other, at)
        if _runs(flat, state, one, back) or not _add(flat, state, one, back):
            return False
    return _add(flat, state, other, service)


@compiled
def _some_service(wanted: AnnealingDemand, rps: Reals) -> int:
    """Any service, half of the time one that is short if a few tries meet one."""
    services = wanted.rate.shape[0]
    service = np.random.randint(services)
    # Draws instead of a list of what is short: a move takes a microsecond, less than a pass over many services.
    if np.random.random() < 0.5:
        for _ in range(_TRIES):
            if rps[service] < wanted.rate[service]:
                break
            service = np.random.randint(services)
    return service


@compiled
def _runs(flat: Flat, state: State, gpu: int, service: int) -> bool:
    for at in range(state.size[gpu]):  # noqa: SIM110 (numba compiles no generator)
        if flat.service[state.items[gpu, at]] == service:
            return True
    return False


@compiled
def _add(flat: Flat, state: State, gpu: int, service: int) -> bool:
    """A replica of the service in a random shape that the free SM steps allow; False where there is none."""
    mode, count = state.mode[gpu], state.size[gpu]
    if count >= state.items.shape[1]:
        return False
    free = flat.steps[mode]
    for at in range(count):
        free -= flat.width[state.items[gpu, at]]
    first, high = flat.first[mode, service], flat.first[mode, service + 1]
    # Candidates of a service ascend in width: those that fit end where the first one is too wide.
    end = first
    while end < high:
        middle = (end + high) >> 1
        if flat.width[middle] <= free:
            end = middle + 1
        else:
            high = middle
    if end <= first:
        return False
    if np.random.random() < _WIDEST:
        state.items[gpu, count] = end - 1
    else:
        state.items[gpu, count] = first + np.random.randint(end - first)
    state.size[gpu] = count + 1
    return True


@compiled
def _remove(state: State, gpu: int, at: int) -> None:
    # The order on a GPU means nothing, so the last replica may fill the gap.
    last = state.size[gpu] - 1
    state.items[gpu, at] = state.items[gpu, last]
    state.size[gpu] = last


@compiled
def _reclock(flat: Flat, state: State, gpu: int, gpu_type: int) -> bool:
    """Another clock, with the nearest shapes there; a replica that has none is dropped."""
    first = flat.of_type[gpu_type]
    clocks = flat.of_type[gpu_type + 1] - first
    if clocks < 2:
        return False
    clock = (state.mode[gpu] - first + 1 + np.random.randint(clocks - 1)) % clocks
    state.mode[gpu] = first + clock
    # Backwards, since a replica that is removed is replaced by the last one, which has its twin already.
    for at in range(state.size[gpu] - 1, -1, -1):
        twin = flat.twin[state.items[gpu, at], clock]
        if twin < 0:
            _remove(state, gpu, at)
        else:
            state.items[gpu, at] = twin
    return True
