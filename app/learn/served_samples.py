"""Served: what replicas executed → samples for the next fit, a few per condition and hour."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median_low

from app.learn.readings import MIN_BATCHES, executed_by_gpu, runs_as_planned
from app.store.store import SERVED, Execution, SampleRow
from solvers.predict.data.samples import Group, Neighbour, NeighbourSet
from solvers.types.plan import BoundGpu, BoundReplica

EVERY_S = 1200.0
"""A condition is sampled so often: three times an hour say as much about a GPU type as three hundred."""

BUSY_SHARE = 0.8
"""A sample counts where neighbours executed for this share of the period; otherwise it says little of their cost.

Such samples would teach that neighbours cost nothing, and plans would put more of it together than holds under load.
"""

Condition = tuple[Group, float, int, float, NeighbourSet]
"""Network and GPU type, SM percent, batch, clock, neighbours."""


def served_samples(
    gpus: Iterable[BoundGpu],
    executions: Sequence[Execution],
    sampled_s: Mapping[Condition, float],
    *,
    since_s: float,
    until_s: float,
) -> dict[Condition, SampleRow]:
    """One sample of every condition that was not sampled for EVERY_S: of the replica with the middle time.

    `sampled_s`: when each was, last; `since_s`, `until_s`: the period in which the replicas executed.
    """
    by_gpu = executed_by_gpu(executions)
    by_condition: dict[Condition, list[Execution]] = defaultdict(list)
    for gpu in gpus:
        executed = by_gpu.get(gpu.id, {})
        for replica in _sampled(gpu, executed, until_s - since_s):
            by_condition[_condition(gpu, replica)].append(executed[replica.id])
    return {
        condition: _sample(condition, by_condition[condition], until_s)
        # Sorted: samples have numbers in the order in which they are kept.
        for condition in sorted(by_condition)
        if until_s - sampled_s.get(condition, 0.0) >= EVERY_S
    }


def _sampled(
    gpu: BoundGpu, executed: Mapping[str, Execution], period_s: float
) -> Iterator[BoundReplica]:
    """Replicas whose time is worth a sample: they executed enough, next to neighbours that were busy."""
    # Engines count tokens, not batches: their speed is learned elsewhere (`app.store.observation_book`).
    if gpu.is_models_own or not runs_as_planned(gpu, executed):
        return
    idle = {
        replica
        for replica, execution in executed.items()
        if not _is_busy(execution, period_s)
    }
    for replica in gpu.replicas:
        execution = executed[replica.id]
        # The replica itself may be idle for most of the time: its batches take as long as they take.
        has_busy_neighbours = not idle - {replica.id}
        has_batches = execution.requests >= execution.batches >= MIN_BATCHES
        if has_busy_neighbours and has_batches and execution.execution_ms > 0.0:
            yield replica


def _is_busy(execution: Execution, period_s: float) -> bool:
    return execution.batches * execution.execution_ms >= BUSY_SHARE * 1000.0 * period_s


def _condition(gpu: BoundGpu, replica: BoundReplica) -> Condition:
    # Sorted, so that the same neighbours are one condition in whichever order the plan has them.
    others = [each for each in gpu.replicas if each.id != replica.id]
    neighbours = sorted(
        Neighbour(each.network, float(each.batch), each.sm_percent) for each in others
    )
    group = Group(replica.network, gpu.gpu_type)
    return group, replica.sm_percent, replica.batch, gpu.clock_mhz, tuple(neighbours)


def _sample(
    condition: Condition, executions: Sequence[Execution], until_s: float
) -> SampleRow:
    group, sm_percent, _, clock_mhz, neighbours = condition
    middle_ms = median_low(execution.execution_ms for execution in executions)
    # By replica id among equal times: the same executions must give the same sample.
    middle = min(
        (execution for execution in executions if execution.execution_ms == middle_ms),
        key=lambda execution: execution.replica,
    )
    return SampleRow(
        network=group.network,
        gpu_type=group.gpu_type,
        # The mean size, as the fits take it: batches go before they are full.
        batch=middle.requests / middle.batches,
        sm_percent=sm_percent,
        clock_mhz=clock_mhz,
        neighbours=neighbours,
        latency_ms=middle_ms,
        source=SERVED,
        measured_at=datetime.fromtimestamp(until_s, UTC),
    )
