"""What the plans of a run changed, counted from target to target."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from app.simulate.results import Moves
from solvers.plan import BoundPlan


def count_moves(targets: Sequence[BoundPlan]) -> Moves:
    """Changes from each target to the next."""
    started = stopped = batches = clocks = 0
    for before, after in pairwise(targets):
        old, new = _batches(before), _batches(after)
        old_mhz, new_mhz = _clocks_mhz(before), _clocks_mhz(after)
        started += len(new.keys() - old.keys())
        stopped += len(old.keys() - new.keys())
        batches += sum(new[each] != old[each] for each in new.keys() & old.keys())
        clocks += sum(new_mhz[each] != old_mhz[each] for each in new_mhz.keys() & old_mhz.keys())
    return Moves(
        plans=max(0, len(targets) - 1),
        replicas_started=started,
        replicas_stopped=stopped,
        batches_changed=batches,
        clocks_changed=clocks,
    )


def _batches(plan: BoundPlan) -> Mapping[str, int]:
    return {replica.id: replica.batch for gpu in plan.gpus for replica in gpu.replicas}


def _clocks_mhz(plan: BoundPlan) -> Mapping[str, float]:
    return {gpu.id: gpu.clock_mhz for gpu in plan.gpus}
