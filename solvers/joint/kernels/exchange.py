"""Local search over a fleet: one or two GPUs at a time change to other columns of their types, if that is no worse.

The measure is Σ_s w_s · short_s + Σ_p loss_p over the GPUs, where the stack's price of a column is its loss. A step
takes GPUs out, preferably one that runs a short service, and puts for each the column in that is best for what is then
wanted, under weights with some noise, lest every step find the same. A step costs a few passes over the columns.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.scan import ScanPrices, Stack, reduced_costs
from solvers.joint.kernels.types import Numbers, Reals

State = npt.NDArray[np.uint64]
Marks = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

_MAX_OUT = 2
_SHORT = 0.6
"""This share of the steps takes out first a GPU that runs a service that is short."""
_COMPARED = 4
"""The least useful one of this number of GPUs is taken out."""
_NOISE = 0.1
_UNIT = 2.0**-53


class ExchangeState(NamedTuple):
    """What the GPUs at hand leave over; all arrays are updated in place."""

    gpus: Numbers
    """(K,) the column of each GPU."""
    need: Reals
    """(S,) rps that are short, negative where there is more than is wanted."""
    missing: Reals
    """(S,) replicas that are missing, likewise."""
    room: Reals
    """(S,) replicas that may be added."""
    worth: Reals
    """(S,) USD per hour of one rps that is short."""
    missing_price: Reals
    """(S,) USD per hour of a missing replica."""
    types: int
    """Number of GPU types."""


@compiled
def exchange(stack: Stack, fleet: ExchangeState, steps: int, state: State) -> int:
    """How many of the steps made it better. state: (1,) of the random numbers, not 0."""
    out, into = np.zeros(_MAX_OUT, np.int64), np.zeros(_MAX_OUT, np.int32)
    better = 0
    for _ in range(steps):
        before = _shortage(fleet)
        count = min(1 + int(_draw(state) * _MAX_OUT), fleet.gpus.shape[0])
        change = -_take_out(stack, fleet, out[:count], state)
        # Without noise the same GPUs would be replaced by the same columns again and again.
        noise = np.empty(fleet.need.shape[0])
        for service in range(noise.shape[0]):
            noise[service] = 1.0 + _NOISE * (2.0 * _draw(state) - 1.0)
        for number in range(count):
            free = stack.gpu_type[fleet.gpus[out[number]]]
            into[number] = column = _best(stack, fleet, noise, free)
            change += stack.price[column]
            _put(stack, fleet, column, 1.0)

        change += _shortage(fleet) - before
        # Steps to plans that are just as good are made too, since others may be reached from there.
        if change <= 0.0:
            for number in range(count):
                fleet.gpus[out[number]] = into[number]
            better += change < -1e-9
        else:
            for number in range(count):
                _put(stack, fleet, into[number], -1.0)
                _put(stack, fleet, fleet.gpus[out[number]], 1.0)
    return better


@compiled
def _take_out(stack: Stack, fleet: ExchangeState, out: Places, state: State) -> float:
    """Take GPUs out, whose places go into `out`; returns what they lose."""
    touched, lost = np.zeros(fleet.need.shape[0], np.bool_), 0.0
    _begin(fleet, touched, state)
    for number in range(out.shape[0]):
        out[number] = _min_useful(stack, fleet, touched, out[:number], state)
        column = fleet.gpus[out[number]]
        lost += stack.price[column]
        _put(stack, fleet, column, -1.0)
        # The next one shares a service with it, so that replicas can move between the two.
        touched[_services(stack, fleet, column)] = True
    return lost


@compiled
def _draw(state: State) -> float:
    """A number in [0, 1) (xorshift, Marsaglia 2003)."""
    value = state[0]
    value ^= value << np.uint64(13)
    value ^= value >> np.uint64(7)
    value ^= value << np.uint64(17)
    state[0] = value
    return float(value >> np.uint64(11)) * _UNIT


@compiled
def _shortage(fleet: ExchangeState) -> float:
    total = 0.0
    for service in range(fleet.need.shape[0]):
        total += fleet.worth[service] * max(0.0, fleet.need[service])
        total += fleet.missing_price[service] * max(0.0, fleet.missing[service])
    return total


@compiled
def _begin(fleet: ExchangeState, touched: Marks, state: State) -> None:
    """Touch one service that is short, by chance in proportion to its shortage; often none."""
    left = _draw(state) * _shortage(fleet) / _SHORT
    for service in range(fleet.need.shape[0]):
        left -= fleet.worth[service] * max(0.0, fleet.need[service])
        if left < 0.0:
            touched[service] = True
            return


@compiled
def _min_useful(
    stack: Stack, fleet: ExchangeState, touched: Marks, taken: Places, state: State
) -> int:
    """The place of the GPU that is needed least, of a few that run a touched service; of any where none is touched."""
    size, anyone = fleet.gpus.shape[0], not touched.any()
    first, best, min_use, compared = int(_draw(state) * size), -1, np.inf, 0
    # From a random place on, so that each GPU may be compared though the search ends after a few.
    for step in range(size):
        at = (first + step) % size
        if (taken == at).any():
            continue
        column = fleet.gpus[at]
        if anyone or touched[_services(stack, fleet, column)].any():
            use = _use(stack, fleet, column)
            if use < min_use or best < 0:
                best, min_use = at, use
            compared += 1
            if compared == _COMPARED:
                break
        elif best < 0:
            # Some GPU must be taken out even where none is related.
            best = at
    return best


@compiled
def _services(stack: Stack, fleet: ExchangeState, column: int) -> Numbers:
    count = 0
    while (
        count < stack.service.shape[1]
        and stack.service[column, count] < fleet.need.shape[0]
    ):
        count += 1
    return stack.service[column, :count]


@compiled
def _use(stack: Stack, fleet: ExchangeState, column: int) -> float:
    """Part of the column's worth that would be short without it."""
    needed = total = 1e-12
    for at, service in enumerate(_services(stack, fleet, column)):
        rps = stack.capacity[column, at]
        total += fleet.worth[service] * rps
        # Without the column its service would need so much more; a surplus makes up for some of it.
        needed += fleet.worth[service] * min(rps, max(0.0, fleet.need[service] + rps))
    return needed / total


@compiled
def _best(stack: Stack, fleet: ExchangeState, noise: Reals, gpu_type: int) -> int:
    """The column of the type that is best for what is wanted."""
    stock, none = np.zeros(fleet.types), np.zeros(fleet.types)
    # Of its own type only: the fleet stays, and with it what the plan costs.
    stock[gpu_type] = 1.0
    presence = np.where(fleet.missing > 0.0, fleet.missing_price, 0.0)
    prices = ScanPrices(
        np.maximum(fleet.need, 0.0),
        fleet.worth * noise,
        presence,
        fleet.room,
        stock,
        none,
    )
    return int(reduced_costs(stack, prices).argmin())


@compiled
def _put(stack: Stack, fleet: ExchangeState, column: int, gpus: float) -> None:
    for at, service in enumerate(_services(stack, fleet, column)):
        fleet.need[service] -= gpus * stack.capacity[column, at]
        fleet.missing[service] -= gpus
        fleet.room[service] -= gpus
