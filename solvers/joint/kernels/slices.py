"""Pricing of a mode whose GPUs are cut into slices: a dynamic program over services and multisets of slices.

Replicas on slices do not feel each other, so that a pattern is worth the sum of what its candidates are worth. Let
F[k][x] be the most that the first k services can be worth on slices that make up multiset x exactly:

    F[0][empty] = 0
    F[k][x] = max(F[k-1][x], max over candidates i of service k of value_i + F[k-1][x less the slice of i])

The greatest F[S][x] is the worth of the best pattern but for one limit, watts. Charged at θ ≥ 0 per watt, with
value_i − θ·watts_i in place of value_i, max F + θ·room is an upper bound for every θ; it is convex in θ and falls as
long as the best pattern draws more than there is room for. A depth-first search from the last service to the first,
which leaves out what F says cannot beat the best pattern found, closes what the best θ leaves open. Where watts do not
bind there is nothing to close: the first pattern that it reaches is the best one.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.laws import candidate_worth
from solvers.joint.kernels.types import Numbers, PricingTask, Reals

_NEVER = -1.0e300
_BISECTIONS = 20
"""Of the charge per watt; what they leave open is searched."""
_MAX_NODES = 200_000
"""Of the search. Beyond, the bound is that of the best node that is still open."""
_ROUNDING = 1.0e-12
"""Of a worth: what is better by less is passed over."""


class Choices(NamedTuple):
    """K services, each with candidates that are worth something."""

    first: Numbers
    """(K + 1,) where each service's candidates begin."""
    profile: Numbers
    """(C,)"""
    value: Reals
    watts: Reals
    """(C,)"""
    room_w: float
    less: Numbers
    """(X, P) as in `slices.layouts.Layouts`."""
    size: Numbers
    """(X,) slices of each multiset."""


class SliceProgram(NamedTuple):
    """The dynamic program, filled."""

    table: Reals
    """(K + 1, X) F; far below 0 where no pattern has that multiset."""
    choice: Numbers
    """(K + 1, X) the candidate that F takes of the service; -1 for none."""


@compiled
def slice_values(task: PricingTask, capacity: Reals) -> Reals:
    """(C,) what each candidate is worth, its watts paid; capacity: (C,) rps."""
    value = np.zeros(capacity.shape[0])
    for item in range(capacity.shape[0]):
        value[item] = candidate_worth(task.mode, task.worth, item, capacity[item])
    return value


@compiled
def fill(choices: Choices, charge: float) -> SliceProgram:
    """F under a charge per watt."""
    services, multisets = choices.first.shape[0] - 1, choices.less.shape[0]
    table = np.full((services + 1, multisets), _NEVER)
    choice = np.full((services + 1, multisets), -1, np.int32)
    table[0, 0] = 0.0
    for service in range(services):
        table[service + 1] = table[service]
        for item in range(choices.first[service], choices.first[service + 1]):
            value, profile = (
                choices.value[item] - charge * choices.watts[item],
                choices.profile[item],
            )
            for multiset in range(multisets):
                rest = choices.less[multiset, profile]
                if (
                    rest >= 0
                    and table[service, rest] + value > table[service + 1, multiset]
                ):
                    table[service + 1, multiset] = table[service, rest] + value
                    choice[service + 1, multiset] = item
    return SliceProgram(table, choice)


@compiled
def trace(
    choices: Choices, program: SliceProgram, multiset: int, items: npt.NDArray[np.int64]
) -> int:
    """Put the candidates of the best pattern of the multiset into `items`; returns how many."""
    count = 0
    for service in range(program.choice.shape[0] - 1, 0, -1):
        item = program.choice[service, multiset]
        if item >= 0:
            items[count] = item
            count += 1
            multiset = choices.less[multiset, choices.profile[item]]
    return count


@compiled
def min_charge(choices: Choices) -> float:
    """The charge per watt with nearly the least bound; 0 where watts do not bind."""
    low, high, charge = 0.0, 0.0, 0.0
    items = np.zeros(choices.size.max() + 1, np.int64)
    for _ in range(_BISECTIONS):
        program = fill(choices, charge)
        count = trace(choices, program, int(np.argmax(program.table[-1])), items)
        if choices.watts[items[:count]].sum() > choices.room_w:
            low = charge
        elif charge == 0.0:
            return 0.0
        else:
            high = charge
        if high > 0.0:
            charge = 0.5 * (low + high)
        else:
            charge = max(2.0 * charge, choices.value.max() / choices.watts.max() / 64.0)
    return charge


@compiled
def search_slices(
    choices: Choices, program: SliceProgram, charge: float, best: npt.NDArray[np.int64]
) -> tuple[float, float, int]:
    """A bound on all patterns, worth of the best one, and its size; its candidates go into `best`.

    Nodes say which candidates the services from some service on take; F bounds what the services before it add.
    """
    services = choices.first.shape[0] - 1
    widest = np.max(choices.first[1:] - choices.first[:-1]) + 1
    # A node waits beside its siblings on each level, and all multisets wait at first.
    max_open = choices.less.shape[0] + (services + 1) * widest
    service, multiset, taken, items = np.zeros((4, max_open), np.int64)
    value, watts = np.zeros((2, max_open))
    path = np.zeros(choices.size.max() + 1, np.int64)
    waiting = 0
    for last in np.argsort(program.table[services]):
        if program.table[services, last] > _NEVER:
            service[waiting], multiset[waiting], taken[waiting] = services, last, -1
            waiting += 1
    bound = reached = 0.0
    size = nodes = 0
    while waiting > 0:
        waiting -= 1
        at, left, count = service[waiting], multiset[waiting], items[waiting]
        worth, drawn = value[waiting], watts[waiting]
        upper = worth + charge * (choices.room_w - drawn) + program.table[at, left]
        if upper <= reached * (1.0 + _ROUNDING):
            continue
        if nodes >= _MAX_NODES:
            bound = max(bound, upper)
            continue
        nodes += 1
        if taken[waiting] >= 0:
            path[choices.size[left]] = taken[waiting]
        if left == 0:
            if worth > reached:
                reached, size = worth, count
                best[:count] = path[:count]
            continue
        # What F takes goes on top, to be looked at first.
        favourite = program.choice[at, left]
        for turn in range(2):
            if (favourite < 0) == (turn == 1) and program.table[at - 1, left] > _NEVER:
                service[waiting], multiset[waiting], taken[waiting], items[waiting] = (
                    at - 1,
                    left,
                    -1,
                    count,
                )
                value[waiting], watts[waiting] = worth, drawn
                waiting += 1
            for item in range(choices.first[at - 1], choices.first[at]):
                rest = choices.less[left, choices.profile[item]]
                if (
                    (item == favourite) != (turn == 1)
                    or rest < 0
                    or program.table[at - 1, rest] <= _NEVER
                ):
                    continue
                if drawn + choices.watts[item] > choices.room_w:
                    continue
                service[waiting], multiset[waiting], taken[waiting], items[waiting] = (
                    at - 1,
                    rest,
                    item,
                    count + 1,
                )
                value[waiting], watts[waiting] = (
                    worth + choices.value[item],
                    drawn + choices.watts[item],
                )
                waiting += 1
    return max(bound, reached * (1.0 + _ROUNDING)), reached, size
