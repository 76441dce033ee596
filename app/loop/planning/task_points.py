"""Operating points of the tasks' networks, and estimates for networks that were never profiled."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import median

from solvers.predict.data.samples import LayerCounts
from solvers.predict.estimate.unprofiled_training import (
    ProfiledNetworks,
    UnprofiledNetwork,
)
from solvers.types.problem import OperatingPoints, Problem
from solvers.types.state import GpuType, Task

PARAMETERS = "parameters_millions"
"""Among a task's layers: how many parameters its network has, where its owner knows."""


def points_of_tasks(
    tasks: Sequence[Task],
    points: Sequence[OperatingPoints],
    problem: Problem,
    layers: Sequence[LayerCounts],
) -> tuple[OperatingPoints, ...]:
    """Points of the tasks' networks on the problem's GPU types.

    Where services run a network, too, they are those that the problem has of it, with what was learned. A network
    without any, whose task states its layers, gets estimates; `layers`: of training networks that were profiled.
    """
    networks = {task.network for task in tasks}
    # The problem's points come last and win: they carry what was learned from served replicas.
    known = {
        (entry.network, entry.gpu_type): entry for entry in (*points, *problem.points)
    }
    profiled = tuple(entry for entry in known.values() if entry.network in networks)
    unprofiled = {
        (task.network, task.batch): task
        for task in tasks
        if task.layers
        and task.memory_mib is not None
        and all(network != task.network for network, _ in known)
    }
    if not unprofiled:
        return profiled
    # An estimate compares layers, so only networks whose layers are known can teach it.
    counted = {each.network for each in layers}
    training = tuple(entry for entry in known.values() if entry.network in counted)
    estimated = (
        entry
        for gpu_type in problem.gpu_types
        for entry in _estimates(
            unprofiled.values(), gpu_type, training, problem.points, layers
        )
    )
    return (*profiled, *estimated)


def _estimates(
    tasks: Iterable[Task],
    gpu_type: GpuType,
    training: Sequence[OperatingPoints],
    services: Sequence[OperatingPoints],
    layers: Sequence[LayerCounts],
) -> list[OperatingPoints]:
    """One entry per network, with rows at each batch that a task of it has."""
    on_type, beside = (
        tuple(
            sorted(
                (entry for entry in known if entry.gpu_type == gpu_type.name),
                key=lambda each: each.network,
            )
        )
        for known in (training, services)
    )
    # Wrapped for the cache, which needs arguments that hash.
    frozen = tuple(_Frozen(each) for each in layers)
    found: dict[str, OperatingPoints] = {}
    for task in sorted(tasks, key=lambda task: (task.network, task.batch)):
        asked = _unprofiled(task, layers)
        entry = _estimate(
            _Frozen(asked.layers),
            asked.batch,
            asked.memory_mib,
            gpu_type,
            training=on_type,
            services=beside,
            known=frozen,
        )
        if entry is not None:
            before = found[entry.network].rows if entry.network in found else ()
            found[entry.network] = OperatingPoints(
                network=entry.network,
                gpu_type=entry.gpu_type,
                sensitivity=entry.sensitivity,
                rows=(*before, *entry.rows),
            )
    return list(found.values())


def _unprofiled(task: Task, layers: Sequence[LayerCounts]) -> UnprofiledNetwork:
    counts = dict(task.layers)
    usual = median(each.parameters_millions for each in layers) if layers else 0.0
    # Owners state the number of parameters as if it were a layer; without it the median is assumed.
    parameters = float(counts.pop(PARAMETERS, 0)) or usual
    return UnprofiledNetwork(
        layers=LayerCounts(
            network=task.network, counts=counts, parameters_millions=parameters
        ),
        batch=task.batch,
        memory_mib=task.memory_mib or 0.0,
    )


class _Frozen:
    """Layer counts that are equal, and hash, by their content."""

    def __init__(self, counts: LayerCounts) -> None:
        self.counts = counts
        self._key = (
            counts.network,
            counts.parameters_millions,
            tuple(sorted(counts.counts.items())),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def _estimate(
    layers: _Frozen,
    batch: int,
    memory_mib: float,
    gpu_type: GpuType,
    *,
    training: tuple[OperatingPoints, ...],
    services: tuple[OperatingPoints, ...],
    known: tuple[_Frozen, ...],
) -> OperatingPoints | None:
    """Kept from tick to tick: an estimate takes some ten milliseconds, and what it follows from seldom changes."""
    profiled = ProfiledNetworks(
        gpu_type=gpu_type,
        training=training,
        services=services,
        layers=tuple(each.counts for each in known),
    )
    return profiled.estimate(
        UnprofiledNetwork(layers=layers.counts, batch=batch, memory_mib=memory_mib)
    )
