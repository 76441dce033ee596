"""Superfluous GPUs: those without which everything that was served is still served."""

from collections.abc import Mapping

from solvers.joint.columns import Columns
from solvers.joint.problem import Demand
from solvers.joint.tables import Tables
from solvers.joint.whole.residual import carried

_ROUNDING = 1.0 - 1e-9


def prune(tables: Tables, columns: Columns, demand: Demand, counts: Mapping[int, int]) -> dict[int, int]:
    """The counts less what is superfluous, dearest GPUs first, by number among equals."""
    taken = carried(tables, columns, counts)
    rps, replicas = taken.rps.copy(), taken.replicas.copy()
    kept = dict(counts)
    for number in sorted(counts, key=lambda one: (-columns[one].price, one)):
        service, capacity = columns[number].service, columns[number].capacity
        while kept[number] > 0:
            left, present = rps[service] - capacity, replicas[service] - 1.0
            if (left < demand.rate[service] * _ROUNDING).any() or (present < demand.fewest[service]).any():
                break
            rps[service], replicas[service] = left, present
            kept[number] -= 1
    return {number: count for number, count in kept.items() if count > 0}
