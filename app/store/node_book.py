"""The node book: nodes, their GPUs and commands, and what agents last reported of them, for `MemoryStore`."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from agents.base.protocol import NodeCommand, Observation
from solvers.types.state import Gpu, GpuId, Node

UNREPORTED_AFTER = timedelta(seconds=10)
"""A GPU that was reported, and is not for so long while others of its node are, is not healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """What is known of one agent."""

    node: str
    generation: int
    """Generation of the target that it follows; see `followed`."""
    repartition: tuple[int, ...] = ()
    """Indices of its GPUs whose governor asks for other SM percents."""
    lag_s: float = 0.0
    """Age of the newest window that it reported; 0 = it reported none."""


def followed(*, held: int, wanted: int, pushed: int) -> int:
    """Generation of the target that a node follows, which is the newest where it has its newest command in force.

    A target that changes nothing for a node makes no command for it. `held`: generation of the command in force.
    `wanted`: of its newest command, 0 = none. `pushed`: of the newest target.
    """
    return pushed if held == wanted > 0 else held


@dataclass(slots=True)
class _NodeRow:
    node: Node
    created_at: datetime
    last_seen_at: datetime | None = None
    last_window_end_s: float | None = None
    boot: str = ""
    boot_since_s: float = 0.0
    """Start of its first window."""
    read_s: dict[int, float] = field(default_factory=dict)
    """When each of its GPUs was read last, by index."""
    generation: int = 0
    repartition: tuple[int, ...] = ()
    command: NodeCommand | None = None
    """Its newest one; older ones are not asked for."""
    commanded: set[int] = field(default_factory=set)
    """Generations of all commands that it ever had."""

    @property
    def wanted(self) -> int:
        """Generation of its newest command; 0 = none."""
        return 0 if self.command is None else self.command.generation

    def health(self, observation: Observation, end_s: float) -> dict[int, bool]:
        """What an observation says of GPUs, by index: also of those that it should tell of and does not."""
        if self.boot != observation.boot:
            self.boot, self.boot_since_s = observation.boot, observation.window_start_s
        healthy = {reading.index: reading.healthy for reading in observation.gpus}
        self.read_s |= dict.fromkeys(healthy, observation.window_start_s)
        since_s = max(end_s - UNREPORTED_AFTER.total_seconds(), self.boot_since_s)
        missing = [index for index, at_s in self.read_s.items() if at_s < since_s]
        # An agent that reports none may only be blind now.
        return {**dict.fromkeys(missing, False), **healthy} if healthy else {}


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

    def give(self, commands: Iterable[NodeCommand]) -> None:
        """Keep new commands of known nodes, where they change what the node's agent follows."""
        for command in commands:
            row = self._rows.get(command.node)
            if row is not None and not _is_followed(row, command):
                row.command = command
                row.commanded.add(command.generation)

    def has_given(self, wanted: NodeCommand) -> bool:
        """Whether a node's newest command is this one but for its number; also of a node that is not registered."""
        row = self._rows.get(wanted.node)
        if row is None or row.command is None:
            return row is None
        same = msgspec.structs.replace(wanted, generation=row.command.generation)
        return row.command == same

    def command_of(self, name: str) -> NodeCommand | None:
        """The node's newest command."""
        row = self._rows.get(name)
        return None if row is None else row.command

    def had(self, name: str, generation: int) -> bool:
        """Whether the node ever had a command of that generation."""
        return generation in self._rows[name].commanded

    def statuses(self, now: datetime, pushed: int) -> tuple[AgentStatus, ...]:
        """What is known of every node's agent, by name. `pushed`: generation of the newest target."""
        return tuple(
            AgentStatus(
                node=name,
                generation=followed(
                    held=row.generation, wanted=row.wanted, pushed=pushed
                ),
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
        healthy = row.health(observation, end_s)
        changed = {
            gpu.id: replace(gpu, healthy=healthy[gpu.index])
            for gpu in self._gpus.values()
            if gpu.node == observation.node
            and healthy.get(gpu.index, gpu.healthy) != gpu.healthy
        }
        self._gpus |= changed
        return bool(changed)


def _is_followed(row: _NodeRow, command: NodeCommand) -> bool:
    """Whether the agent follows a command already that is the same but for its number."""
    # Where its agent has not said so, it may have lost the command.
    if row.command is None or row.generation != row.wanted:
        return False
    return row.command == msgspec.structs.replace(command, generation=row.wanted)


def _silent_for_s(row: _NodeRow, now: datetime) -> float:
    # A node that never reported counts as silent since it was registered.
    heard_at = row.last_seen_at or row.created_at
    return max(0.0, (now - heard_at).total_seconds())
