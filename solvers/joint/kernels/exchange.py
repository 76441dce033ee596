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
"""Of the steps take out first a GPU that runs a service that is short."""
_COMPARED = 4
"""GPUs, of which the least useful one is taken out."""
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
    taken, put = np.zeros(_MAX_OUT, np.int64), np.zeros(_MAX_OUT, np.int32)
    touched, better = np.zeros(fleet.need.shape[0], np.bool_), 0
    for _ in range(steps):
        before, change = _shortage(fleet), 0.0
        count = min(1 + int(_draw(state) * _MAX_OUT), fleet.gpus.shape[0])
        touched[:] = False
        _begin(fleet, touched, state)
        for number in range(count):
            at = taken[number] = _min_useful(
                stack, fleet, touched, taken[:number], state
            )
            column = fleet.gpus[at]
            change -= stack.price[column]
            _put(stack, fleet, column, -1.0)
            touched[_services(stack, fleet, column)] = True
        noise = np.array(
            [
                1.0 + _NOISE * (2.0 * _draw(state) - 1.0)
                for _ in range(fleet.need.shape[0])
            ]
        )
        for number in range(count):
            free = stack.gpu_type[fleet.gpus[taken[number]]]
            put[number] = column = _best(stack, fleet, noise, free)
            change += stack.price[column]
            _put(stack, fleet, column, 1.0)
        change += _shortage(fleet) - before
        if change <= 0.0:
            for number in range(count):
                fleet.gpus[taken[number]] = put[number]
            better += change < -1e-9
        else:
            for number in range(count):
                _put(stack, fleet, put[number], -1.0)
                _put(stack, fleet, fleet.gpus[taken[number]], 1.0)
    return better


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
def _begin(
    fleet: ExchangeState,
    touched: Marks,
    state: State,
) -> None:
    """Touch one service that is short, by chance in proportion to its shortage; often none."""
    left = _draw(state) * _shortage(fleet) / _SHORT
    for service in range(fleet.need.shape[0]):
        left -= fleet.worth[service] * max(0.0, fleet.need[service])
        if left < 0.0:
            touched[service] = True
            return


@compiled
def _min_useful(
    stack: Stack,
    fleet: ExchangeState,
    touched: Marks,
    taken: Places,
    state: State,
) -> int:
    """Of a few GPUs that run a touched service, any where none is touched, the one that is needed least."""
    size, anyone = fleet.gpus.shape[0], not touched.any()
    first, best, least, compared = int(_draw(state) * size), -1, np.inf, 0
    for step in range(size):
        at = (first + step) % size
        if (taken == at).any():
            continue
        services = _services(stack, fleet, fleet.gpus[at])
        if best < 0 or anyone or touched[services].any():
            is_related = anyone or touched[services].any()
            use = _use(stack, fleet, fleet.gpus[at]) if is_related else np.inf
            if use < least or best < 0:
                best, least = at, use
            compared += is_related
            if compared == _COMPARED:
                break
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
    needed = whole = 1e-12
    for at, service in enumerate(_services(stack, fleet, column)):
        rps = stack.capacity[column, at]
        whole += fleet.worth[service] * rps
        needed += fleet.worth[service] * min(rps, max(0.0, fleet.need[service] + rps))
    return needed / whole


@compiled
def _best(stack: Stack, fleet: ExchangeState, noise: Reals, gpu_type: int) -> int:
    """The column of the type that is best for what is wanted."""
    stock, none = np.zeros(fleet.types), np.zeros(fleet.types)
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
