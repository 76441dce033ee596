"""The agent's own metrics: whether it is heard, what it was told, and what its GPUs do.

They are made from the newest observation, whether or not the control plane takes it, so a GPU, replica or task that is
gone has no series. The wire's own limits bound them: 64 GPUs, 1280 users of GPUs, 1024 replicas.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeAlias

from agents.base.exposition import Family, ScrapePage, times
from agents.base.protocol import (
    GpuCommand,
    GpuReading,
    NodeCommand,
    Observation,
    SyncReply,
    UseReading,
)
from agents.sync.outbox import Outbox
from agents.sync.transport import (
    ControlPlaneSilent,
    NotAuthorised,
    Transport,
    Unacceptable,
)

SyncResult: TypeAlias = Literal["answered", "unreachable", "not_authorised", "refused"]
RESULTS: tuple[SyncResult, ...] = (
    "answered",
    "unreachable",
    "not_authorised",
    "refused",
)

MIB = 1024.0 * 1024.0
MHZ = 1e6

_GPU = ("gpu", "gpu_type")
_USE = ("gpu", "kind", "name", "service")

FAMILIES = (
    Family(
        name="plimsoll_agent_info",
        text="Always 1: the agent's identity",
        labels=("node", "version"),
    ),
    Family(
        name="plimsoll_agent_generation",
        text="Generation of the command in force; 0: none",
    ),
    Family(
        name="plimsoll_agent_acknowledgement",
        text="Always 1: its outcome",
        labels=("status",),
    ),
    Family(
        name="plimsoll_agent_observations_total",
        text="Windows that were observed",
        kind="counter",
    ),
    Family(
        name="plimsoll_agent_observations_lost_total",
        text="Of these, dropped: no room, or refused",
        kind="counter",
    ),
    Family(
        name="plimsoll_agent_observations_waiting",
        text="Of these, not yet acknowledged",
    ),
    Family(
        name="plimsoll_agent_last_observation_timestamp_seconds",
        text="When the newest window ended",
    ),
    Family(
        name="plimsoll_agent_syncs_total",
        text="Exchanges with the control plane, by outcome",
        labels=("result",),
        kind="counter",
    ),
    Family(
        name="plimsoll_agent_last_answer_timestamp_seconds",
        text="When the control plane last answered",
    ),
    Family(name="plimsoll_agent_problems", text="What the node says that it cannot do"),
    Family(
        name="plimsoll_agent_gpu_healthy",
        text="1 where the GPU is healthy",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_gpu_power_watts",
        text="Power, mean of the newest window",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_gpu_energy_joules_total",
        text="Energy since the agent started",
        labels=_GPU,
        kind="counter",
    ),
    Family(name="plimsoll_agent_gpu_clock_hertz", text="Graphics clock", labels=_GPU),
    Family(
        name="plimsoll_agent_gpu_busy_ratio",
        text="Share of the newest window in which it executed",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_gpu_memory_used_bytes", text="Memory in use", labels=_GPU
    ),
    Family(name="plimsoll_agent_gpu_memory_bytes", text="Memory", labels=_GPU),
    Family(
        name="plimsoll_agent_gpu_power_limit_watts",
        text="Commanded; absent: the board's own",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_gpu_clock_limit_hertz",
        text="Commanded; absent: not locked",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_gpu_sm_granted_ratio",
        text="SMs allocated to replicas and tasks",
        labels=_GPU,
    ),
    Family(
        name="plimsoll_agent_replicas",
        text="Replicas here",
        labels=("service", "state"),
    ),
    Family(
        name="plimsoll_agent_tasks",
        text="Training and offline tasks here",
        labels=("state",),
    ),
    Family(
        name="plimsoll_agent_use_sm_ratio",
        text="SMs that a part of a GPU kept busy, where it is known",
        labels=_USE,
    ),
    Family(
        name="plimsoll_agent_use_memory_bytes",
        text="Memory of that part, where it is known",
        labels=_USE,
    ),
    Family(
        name="plimsoll_agent_use_power_watts",
        text="Its share of the GPU's power",
        labels=_USE,
    ),
    Family(
        name="plimsoll_agent_use_over",
        text="1 where it has used more than it was granted, for several windows",
        labels=(*_USE, "quantity"),
    ),
)


class AgentMetrics:
    """Watches an outbox and the way to the control plane."""

    def __init__(
        self, *, node: str, version: str, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._node, self._version = node, version
        self._wall_s = wall_s
        self._newest: Observation | None = None
        self._observed = 0
        self._observed_s: float | None = None
        self._answered_s: float | None = None
        # All results stand there from the start, so that the first failure is an increase.
        self._syncs = dict.fromkeys(RESULTS, 0)
        self._energy_j: dict[int, float] = {}

    def note(self, observation: Observation) -> None:
        """A window was observed."""
        # Wall time, since monitoring compares it with its own clock.
        self._newest, self._observed_s = observation, self._wall_s()
        self._observed += 1
        # A counter of a GPU that is gone goes with it, as its series does.
        self._energy_j = {
            gpu.index: self._energy_j.get(gpu.index, 0.0) + gpu.energy_j
            for gpu in observation.gpus
        }

    def note_sync(self, result: SyncResult) -> None:
        """An exchange with the control plane ended."""
        self._syncs[result] += 1
        if result == "answered":
            self._answered_s = self._wall_s()

    def page(self, outbox: Outbox, command: NodeCommand | None) -> ScrapePage:
        """What there is now."""
        page = ScrapePage(FAMILIES)
        page.add("plimsoll_agent_info", 1, self._node, self._version)
        page.add(
            "plimsoll_agent_generation", 0 if command is None else command.generation
        )
        page.add("plimsoll_agent_observations_total", self._observed)
        page.add("plimsoll_agent_observations_lost_total", outbox.dropped)
        page.add("plimsoll_agent_observations_waiting", len(outbox))
        page.add("plimsoll_agent_last_observation_timestamp_seconds", self._observed_s)
        page.add("plimsoll_agent_last_answer_timestamp_seconds", self._answered_s)
        for result, count in self._syncs.items():
            page.add("plimsoll_agent_syncs_total", count, result)
        if self._newest is not None:
            self._add_observation(page, self._newest, command)
        return page

    def _add_observation(
        self, page: ScrapePage, seen: Observation, command: NodeCommand | None
    ) -> None:
        page.add("plimsoll_agent_problems", len(seen.problems))
        for ack in seen.acks[-1:]:
            page.add("plimsoll_agent_acknowledgement", 1, ack.status)
        commands = (
            {gpu.index: gpu for gpu in command.gpus} if command is not None else {}
        )
        for gpu in seen.gpus:
            _add_gpu(page, gpu, self._energy_j[gpu.index])
            if gpu.index in commands:
                _add_limits(page, commands[gpu.index], gpu.gpu_type)
        for (service, state), count in sorted(
            Counter((each.service, each.state) for each in seen.replicas).items()
        ):
            page.add("plimsoll_agent_replicas", count, service, state)
        for now, count in sorted(Counter(task.state for task in seen.tasks).items()):
            page.add("plimsoll_agent_tasks", count, now)
        for use in seen.uses:
            _add_use(page, use, seen.window_s)


class MeteredTransport:
    """A way to the control plane whose exchanges are counted."""

    def __init__(self, transport: Transport, metrics: AgentMetrics) -> None:
        self._transport = transport
        self._metrics = metrics

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        """Hand over one observation."""
        try:
            reply = await self._transport.exchange(observation, wait_s=wait_s)
        except ControlPlaneSilent:
            self._metrics.note_sync("unreachable")
            raise
        except NotAuthorised:
            self._metrics.note_sync("not_authorised")
            raise
        except Unacceptable:
            self._metrics.note_sync("refused")
            raise
        self._metrics.note_sync("answered")
        return reply

    async def close(self) -> None:
        """Let go of connections."""
        await self._transport.close()


def _add_gpu(page: ScrapePage, gpu: GpuReading, energy_j: float) -> None:
    labels = (str(gpu.index), gpu.gpu_type)
    page.add("plimsoll_agent_gpu_healthy", gpu.healthy, *labels)
    page.add("plimsoll_agent_gpu_power_watts", gpu.power_w, *labels)
    page.add("plimsoll_agent_gpu_energy_joules_total", energy_j, *labels)
    page.add("plimsoll_agent_gpu_clock_hertz", times(gpu.clock_mhz, MHZ), *labels)
    if gpu.busy_percent is not None:
        page.add("plimsoll_agent_gpu_busy_ratio", gpu.busy_percent / 100.0, *labels)
    used_bytes = times(gpu.memory_used_mib, MIB)
    page.add("plimsoll_agent_gpu_memory_used_bytes", used_bytes, *labels)
    page.add("plimsoll_agent_gpu_memory_bytes", gpu.memory_mib * MIB, *labels)


def _add_limits(page: ScrapePage, gpu: GpuCommand, gpu_type: str) -> None:
    labels = (str(gpu.index), gpu_type)
    page.add("plimsoll_agent_gpu_power_limit_watts", gpu.power_cap_w or None, *labels)
    page.add(
        "plimsoll_agent_gpu_clock_limit_hertz", gpu.clock_mhz * MHZ or None, *labels
    )
    granted = sum(replica.sm_percent for replica in gpu.replicas) + sum(
        task.sm_percent for task in gpu.tasks
    )
    page.add("plimsoll_agent_gpu_sm_granted_ratio", granted / 100.0, *labels)


def _add_use(page: ScrapePage, use: UseReading, window_s: float) -> None:
    labels = (str(use.gpu_index), use.kind, use.name, use.service)
    page.add(
        "plimsoll_agent_use_sm_ratio",
        None if use.sm_percent is None else use.sm_percent / 100.0,
        *labels,
    )
    memory_mib = use.memory_used_mib
    page.add(
        "plimsoll_agent_use_memory_bytes",
        None if memory_mib is None else memory_mib * MIB,
        *labels,
    )
    page.add("plimsoll_agent_use_power_watts", use.energy_j / window_s, *labels)
    for over in use.over:
        page.add("plimsoll_agent_use_over", 1, *labels, over.quantity)
