"""Rescheduling: services and tasks whose launches failed again and again on a GPU are placed on others for a while.

A service avoids the GPUs on which its launches failed. From two of a node on it starts nothing on all of that node,
where most likely something is missing that it needs; what serves there stays. What fails on MAX_NODES nodes fails by
its own fault: it is moved no further, else a broken release would be tried on every node of the fleet. A GPU that
several services avoid starts nothing new of anybody.

A task avoids GPUs by the same rules, and waits while no other one has room. It cordons no GPU for anybody else: a team
may have any number of tasks with the same fault.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from app.store.launch_book import task_key
from app.store.store import Snapshot
from solvers.types.plan import BoundPlan
from solvers.types.state import ClusterState, GpuId, Task

MAX_NODES = 3
_FAILING_GPUS = 2
"""A service avoids the whole node from this number on."""
_AVOIDING_SERVICES = 2
"""A GPU that this number of services avoid is cordoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedGpus:
    """What services do without, by service; or tasks, by `task_key`."""

    failing: Mapping[str, Set[GpuId]] = field(default_factory=dict)
    """GPUs on which its launches failed: what is planned there moves."""
    closed: Mapping[str, Set[GpuId]] = field(default_factory=dict)
    """Those, and all others of a node with several of them: nothing of it starts there, what serves there stays."""

    def without(self, services: Set[str]) -> "AvoidedGpus":
        """The same for all but these services."""
        return replace(
            self,
            failing={
                name: gpus
                for name, gpus in self.failing.items()
                if name not in services
            },
            closed={
                name: gpus for name, gpus in self.closed.items() if name not in services
            },
        )


def avoided_gpus(snapshot: Snapshot) -> AvoidedGpus:
    """What the planner must do without, by service; none of a service that fails wherever it is tried."""
    return _avoided(snapshot, _services(snapshot))


def avoiding_tasks(snapshot: Snapshot, state: ClusterState) -> tuple[Task, ...]:
    """The tasks of `state` with the GPUs that each avoids; one that would have no healthy GPU left avoids none."""
    tasks = {task_key(task.name): task for task in state.tasks}
    usable = {gpu.id for gpu in state.gpus if gpu.healthy}
    avoided = _avoided(snapshot, tasks.keys())
    placed = _placed_tasks(snapshot.target)
    for key, closed in avoided.closed.items():
        failing = avoided.failing[key]
        # What runs on such a node stays there; on GPUs where its launches failed nothing of it runs.
        nodewide = closed - (placed[key] - failing)
        # Where the node is the whole fleet, its other GPUs are better than those that failed.
        gpus = nodewide if usable - nodewide else failing
        if usable - gpus:
            tasks[key] = replace(tasks[key], avoided_gpus=frozenset(gpus))
    return tuple(tasks.values())


def _placed_tasks(target: BoundPlan | None) -> Mapping[str, Set[GpuId]]:
    """Where tasks have their places, by `task_key`; empty for all others."""
    placed: defaultdict[str, set[GpuId]] = defaultdict(set)
    for gpu in target.gpus if target else ():
        for task in gpu.tasks:
            placed[task_key(task.name)].add(gpu.id)
    return placed


def avoided_by(tasks: Iterable[Task]) -> AvoidedGpus:
    """What these tasks must do without."""
    return AvoidedGpus(
        failing={
            task_key(task.name): task.avoided_gpus
            for task in tasks
            if task.avoided_gpus
        }
    )


def _avoided(snapshot: Snapshot, names: Set[str]) -> AvoidedGpus:
    failing = _failing(snapshot, names)
    node_of = {gpu.id: str(gpu.node) for gpu in snapshot.state.gpus}
    closed = {}
    for service, gpus in failing.items():
        per_node = Counter(node_of[gpu] for gpu in gpus)
        # Several bad GPUs of one node are rarely chance: something is missing there.
        broad = {node for node, count in per_node.items() if count >= _FAILING_GPUS}
        closed[service] = gpus | {gpu for gpu, node in node_of.items() if node in broad}
    return AvoidedGpus(failing=failing, closed=closed)


def failing_everywhere(snapshot: Snapshot) -> Set[str]:
    """Services whose launches failed on enough nodes that they are moved no further."""
    names = _services(snapshot)
    return _known(snapshot, names).keys() - _failing(snapshot, names).keys()


def with_shared_cordons(state: ClusterState, avoided: AvoidedGpus) -> ClusterState:
    """The state in which GPUs that several services avoid are cordoned: what runs there stays."""
    services = Counter(gpu for gpus in avoided.closed.values() for gpu in gpus)
    return cordoned(
        state, {gpu for gpu, count in services.items() if count >= _AVOIDING_SERVICES}
    )


def cordoned(state: ClusterState, gpus: Set[GpuId]) -> ClusterState:
    """The state with these GPUs cordoned."""
    if not gpus:
        return state
    marked = tuple(
        replace(gpu, cordoned=True) if gpu.id in gpus else gpu for gpu in state.gpus
    )
    return replace(state, gpus=marked)


def without_starts_on(state: ClusterState, nodes: Set[str]) -> ClusterState:
    """The state in which all GPUs of these nodes are cordoned."""
    return cordoned(state, {gpu.id for gpu in state.gpus if gpu.node in nodes})


def without_avoided(target: BoundPlan | None, avoided: AvoidedGpus) -> BoundPlan | None:
    """The target without what is planned on failing GPUs: nothing of it runs there that could be kept."""
    if target is None or not avoided.failing:
        return target
    gpus = (
        replace(
            gpu,
            replicas=tuple(
                each
                for each in gpu.replicas
                if gpu.id not in avoided.failing.get(each.service, ())
            ),
            tasks=tuple(
                each
                for each in gpu.tasks
                if gpu.id not in avoided.failing.get(task_key(each.name), ())
            ),
        )
        for gpu in target.gpus
    )
    return replace(target, gpus=tuple(gpu for gpu in gpus if not gpu.is_empty))


def _services(snapshot: Snapshot) -> Set[str]:
    return {service.name for service in snapshot.state.services}


def _failing(snapshot: Snapshot, names: Set[str]) -> dict[str, set[GpuId]]:
    """Where launches fail, by service or task of `names`; without those that fail everywhere."""
    node_of = {gpu.id: gpu.node for gpu in snapshot.state.gpus}
    # What fails on that number of nodes fails by itself; moving it would only spread it.
    return {
        service: gpus
        for service, gpus in _known(snapshot, names).items()
        if len({node_of[gpu] for gpu in gpus}) < MAX_NODES
    }


def _known(snapshot: Snapshot, names: Set[str]) -> dict[str, set[GpuId]]:
    """The GPUs of the fleet on which launches fail, by service or task of `names`: those that are there."""
    gpus = {gpu.id for gpu in snapshot.state.gpus}
    known: defaultdict[str, set[GpuId]] = defaultdict(set)
    # Services and GPUs may have been removed since they failed.
    for each in snapshot.avoided:
        if each.service in names and each.gpu in gpus:
            known[each.service].add(each.gpu)
    return dict(known)
