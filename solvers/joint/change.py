"""The running GPUs, changed by as little as it takes: what is short is added, then what is superfluous goes."""

from collections import Counter
from collections.abc import Mapping

from solvers.joint.dive import complete_greedily
from solvers.joint.master import Demand, Duals
from solvers.joint.prune import prune
from solvers.joint.residual import Kit, carried, is_met, relax_rest, rest_of

_ROUNDS = 6
"""Of pricing for what the running GPUs leave over."""
_START_COLUMNS = 500


def change(kit: Kit, demand: Demand, duals: Duals, running: Mapping[int, int]) -> dict[int, int]:
    """Column number → GPUs: the running ones with what they leave over, less what is superfluous then.

    Running GPUs beyond the stock or a service's most replicas go first, those of the fewest replicas before others.
    duals: of the whole demand.
    """
    counts = _allowed(kit, demand, running)
    rest = rest_of(demand, kit.tables, carried(kit.tables, kit.columns, counts))
    if not is_met(rest):
        start = kit.pool.cheapest(kit.pool.reduced_costs(rest, duals), _START_COLUMNS)
        part = relax_rest(kit, rest, start, _ROUNDS)
        counts = complete_greedily(kit, demand, part.solution.duals, counts)
    return prune(kit.tables, kit.columns, demand, counts)


def _allowed(kit: Kit, demand: Demand, running: Mapping[int, int]) -> Counter[int]:
    counts = Counter(running)
    taken = carried(kit.tables, kit.columns, counts)
    gpus, replicas = taken.gpus.copy(), taken.replicas.copy()
    for number in sorted(counts, key=lambda one: (len(kit.columns[one].service), one)):
        service = kit.columns[number].service
        gpu_type = kit.tables.modes[kit.columns[number].pattern.mode].gpu_type
        while counts[number] > 0 and (
            gpus[gpu_type] > demand.stock[gpu_type] or (replicas[service] > demand.most[service]).any()
        ):
            counts[number] -= 1
            gpus[gpu_type] -= 1
            replicas[service] -= 1
    return +counts
