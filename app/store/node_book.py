"""The node book: nodes, their GPUs, and what their agents last reported of them, for `MemoryStore`."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from agents.base.protocol import Observation
from solvers.types.state import Gpu, GpuId, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """What is known of one agent."""

    node: str
    generation: int
    """Generation of the command that it has in force."""
    repartition: tuple[int, ...] = ()
    """Indices of its GPUs whose governor asks for other SM percents."""
    lag_s: float = 0.0
    """Age of the newest window that it reported; 0 = it reported none."""


@dataclass(slots=True)
class _NodeRow:
    node: Node
    created_at: datetime
    last_seen_at: datetime | None = None
    last_window_end_s: float | None = None
    generation: int = 0
    repartition: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class NodeBook:
    """All nodes by name."""

    _rows: dict[str, _NodeRow] = field(default_factory=dict)
    _gpus: dict[GpuId, Gpu] = field(default_factory=dict)
    _drained: set[str] = field(default_factory=set)

    @property
    def names(self) -> Container[str]:
        """The nodes that are registered."""
        return self._rows

    @property
    def gpus_by_id(self) -> Mapping[GpuId, Gpu]:
        """The GPUs that are registered."""
        return self._gpus

    def put(self, node: Node, gpus: Iterable[Gpu], *, at: datetime) -> None:
        """Add or replace a node with all its GPUs."""
        row = self._rows.setdefault(node.id, _NodeRow(node=node, created_at=at))
        row.node = replace(node, silent_for_s=0.0)
        self._drained.discard(node.id)
        # GPUs that the node no longer lists are gone, as with a manifest that is applied again.
        self._gpus = {
            key: gpu for key, gpu in self._gpus.items() if gpu.node != node.id
        }
        self._gpus |= {gpu.id: gpu for gpu in gpus}

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU, by id."""
        return tuple(self._gpus[name] for name in sorted(self._gpus))

    def nodes(self, now: datetime) -> tuple[Node, ...]:
        """Every node, by name, with how long it has been silent."""
        return tuple(
            replace(row.node, silent_for_s=_silent_for_s(row, now))
            for _, row in sorted(self._rows.items())
        )

    def statuses(self, now: datetime) -> tuple[AgentStatus, ...]:
        """What is known of every node's agent, by name."""
        return tuple(
            AgentStatus(
                node=name,
                generation=row.generation,
                repartition=row.repartition,
                lag_s=max(0.0, now.timestamp() - row.last_window_end_s)
                if row.last_window_end_s is not None
                else 0.0,
            )
            for name, row in sorted(self._rows.items())
        )

    def note_drained(self, names: Iterable[str]) -> list[str]:
        """Those of the nodes that were not yet noted since their draining began."""
        new = [name for name in names if name not in self._drained]
        self._drained.update(new)
        return new

    def hear(self, name: str, received: datetime) -> None:
        """Note that the node's agent has reported."""
        row = self._rows[name]
        row.last_seen_at = max(received, row.last_seen_at or received)

    def take(self, observation: Observation, end_s: float) -> bool:
        """Note what a new observation says of the node, whose window ended then; whether a GPU's health changed."""
        row = self._rows[observation.node]
        # A late report must not undo what a newer one said of the node.
        if row.last_window_end_s is not None and end_s <= row.last_window_end_s:
            return False
        row.last_window_end_s = end_s
        row.generation = observation.generation
        row.repartition = observation.repartition
        healthy = {reading.index: reading.healthy for reading in observation.gpus}
        changed = {
            gpu.id: replace(gpu, healthy=healthy[gpu.index])
            for gpu in self._gpus.values()
            if gpu.node == observation.node
            and healthy.get(gpu.index, gpu.healthy) != gpu.healthy
        }
        self._gpus |= changed
        return bool(changed)


def _silent_for_s(row: _NodeRow, now: datetime) -> float:
    # A node that never reported counts as silent since it was registered.
    heard_at = row.last_seen_at or row.created_at
    return max(0.0, (now - heard_at).total_seconds())
