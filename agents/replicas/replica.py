"""One replica as the workers of a node keep it: its record, its process, its state, and what others may see of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agents.base.device import DeviceError, LaunchFailed, RunningReplica
from agents.base.protocol import ReplicaState
from agents.processes.launch import Launch, LaunchPlace, Prepared
from agents.processes.launcher import Launcher, Running
from agents.processes.logs import tail
from agents.processes.process import HOST, TerminateOnGpu
from agents.processes.procfs import listening_ports
from agents.processes.records import Identity, Record, Records
from agents.processes.templates import WarmUp
from agents.processes.user import uid_of
from agents.replicas.adapters import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What is known of a replica's share before it takes traffic."""

    id: str
    gpu_index: int
    sm_percent: float
    sm_count: int | None
    """SMs that its process sees; None = its server does not tell."""
    pids: tuple[int, ...]


Prove: TypeAlias = Callable[[Proof], Awaitable[str]]


async def _nothing_to_terminate(gpu_index: int, pids: tuple[int, ...]) -> bool:  # noqa: ARG001
    return True


async def _believe(proof: Proof) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the GPU's sharing has a say in."""

    terminate: TerminateOnGpu = _nothing_to_terminate
    """(GPU, process ids) → whether MPS has let go of them, asked before SIGKILL. GPU -1: which one is not known, since
    the record was lost."""
    prove: Prove = _believe
    """Why a replica must not take traffic; empty = it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica as it is now."""

    id: str
    service: str
    network: str
    gpu_index: int
    gpus: tuple[int, ...] = ()
    """All that it spans; empty: that one."""
    sm_percent: float
    batch: int
    memory_mib: float
    state: ReplicaState
    url: str
    served_as: str
    template: str
    pid: int | None
    """Its own process on this machine; None: it has none yet, or has ended."""
    sm_count: int | None = None
    has_live_batch: bool = True
    """Whether its server takes another batch while it runs, perhaps by loading again."""
    message: str = ""
    """What it waits for, or why it failed."""
    pending: str = ""
    """What keeps it from being started, where somebody has to do something about it."""
    draining_s: float = 0.0
    drain_s: float | None = None
    can_return: bool = False
    can_sleep: bool = False
    is_adopted: bool = False
    """An earlier agent had started it."""
    is_outdated: bool = False
    """Today's template would start it otherwise."""
    uid: int = -1
    """Who it runs as; -1 = not known."""

    def running(self, in_flight: int) -> RunningReplica:
        """As enforcement sees it; `in_flight`: requests that it has taken and not yet finished."""
        return RunningReplica(
            id=self.id,
            service=self.service,
            network=self.network,
            state=self.state,
            sm_percent=self.sm_percent,
            batch=self.batch,
            memory_mib=self.memory_mib,
            has_live_batch=self.has_live_batch,
            in_flight=in_flight,
            draining_s=self.draining_s,
            drain_s=self.drain_s,
            can_return=self.can_return,
            can_sleep=self.can_sleep,
            uid=self.uid,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaProcess:
    """One replica as `Workers` keeps it."""

    record: Record
    process: Running | None
    state: ReplicaState = "starting"
    message: str = ""
    warm_up: WarmUp | None = None
    sm_count: int | None = None
    draining_since_s: float = math.inf
    is_adopted: bool = False
    is_outdated: bool = False
    is_stopping: bool = False
    """It is being ended, by a stop or a failure."""
    is_falling_asleep: bool = False
    """It can be stopped meanwhile, and not be woken."""
    held_share: float = 1.0
    """The part of its memory that it may hold: less from its sleep to its end, or until it is woken."""
    task: "asyncio.Task[None] | None" = None

    @property
    def pending(self) -> str:
        """What keeps it from running."""
        return "" if self.process is None else self.process.pending

    @property
    def can_sleep(self) -> bool:
        """Whether its server can, its name may be wanted again, and its GPUs may be another's meanwhile: a Pod's are
        its own for life."""
        record = self.record
        is_process = record.identity is not None
        # A start would be another one by now, so no one is to get this one back.
        return (
            record.template.can_sleep
            and self._is_model
            and is_process
            and not self.is_outdated
        )

    @property
    def _is_model(self) -> bool:
        return self.record.drain_s is not None

    def view(self, now_s: float) -> ReplicaView:
        """What others may see of it."""
        record = self.record
        is_busy = self.is_stopping or self.is_falling_asleep
        is_leaving = self.state == "draining" and not is_busy
        # Its server knows nothing of it, and other replicas' names never come back.
        may_go_on = self._is_model and record.template.drain == "router"
        is_asleep = self.state == "asleep" and self.can_sleep
        return ReplicaView(
            id=record.id,
            service=record.service,
            network=record.network,
            gpu_index=record.gpu_index,
            gpus=record.gpus,
            sm_percent=record.sm_percent,
            batch=record.batch,
            memory_mib=record.memory_mib * self.held_share,
            state=self.state,
            url=self._url(record.ports[0]),
            served_as=record.served_as,
            template=record.template.name,
            pid=None if self.process is None else self.process.pid,
            sm_count=self.sm_count,
            has_live_batch=record.template.batch_change != "restart",
            message=self.message or self.pending,
            pending=self.pending if self.state == "starting" else "",
            draining_s=max(0.0, now_s - self.draining_since_s),
            drain_s=record.drain_s,
            can_return=is_asleep or (is_leaving and may_go_on),
            can_sleep=self.can_sleep,
            is_adopted=self.is_adopted,
            is_outdated=self.is_outdated,
            uid=record.uid,
        )

    def endpoint(self, records: Records[Record]) -> Endpoint:
        """Where its server is."""
        record = self.record
        # By the template of the record, as it was when the replica was started; today's may have other ports.
        ports = dict(zip(record.template.ports, record.ports, strict=True))
        return Endpoint(
            url=self._url(ports["port"]),
            served_as=record.served_as,
            # A server without a port of its own for metrics has them next to its requests.
            metrics_url=f"{self._url(ports.get('metrics_port', ports['port']))}/metrics",
            readiness_path=record.readiness_path,
            directory=records.folder(record.id),
        )

    def proof(self, pids: tuple[int, ...]) -> Proof:
        """What is known of its share."""
        record = self.record
        return Proof(
            id=record.id,
            gpu_index=record.gpu_index,
            sm_percent=record.sm_percent,
            sm_count=self.sm_count,
            pids=pids,
        )

    def _url(self, port: int) -> str:
        return f"http://{HOST if self.process is None else self.process.host}:{port}"


def start_replica(
    launcher: Launcher,
    launch: Launch,
    *,
    place: LaunchPlace,
    prepared: Prepared,
    records: Records[Record],
) -> ReplicaProcess:
    """A replica whose process runs and whose record is on disk. Raises LaunchFailed; then there is neither."""
    command, template, kept = launch.replica, prepared.template, []

    def record(identity: Identity | None) -> None:
        kept.append(
            Record(
                id=command.id,
                service=command.service,
                network=command.network,
                gpu_index=launch.gpu_index,
                sm_percent=command.sm_percent,
                batch=command.batch,
                memory_mib=command.memory_mib,
                ports=place.ports,
                served_as=prepared.filled.served_as,
                readiness_path=prepared.filled.readiness_path,
                template=template,
                digest=template.digest,
                identity=identity,
                mark=place.mark,
                uid=uid_of(place.user),
                gpus=() if command.engine is None else command.engine.gpus,
                drain_s=None if command.engine is None else command.engine.drain_s,
            )
        )
        # Called at the gate: the process runs nothing of the worker before this is on disk.
        records.save(kept[0])

    try:
        process = launcher.start(prepared, record)
    except DeviceError as error:
        # The record may have been written before the start failed.
        records.remove(command.id)
        raise LaunchFailed(
            f"replica {command.id} cannot be started: {error}"
        ) from error
    return ReplicaProcess(
        record=kept[0], process=process, warm_up=prepared.filled.warm_up
    )


def listens(pids: tuple[int, ...], port: int) -> bool:
    """Whether one of these processes is who listens on the port."""
    # Checked by process: an old server on this port would answer well, with another network.
    return any(port in listening_ports(pid) for pid in pids)


def with_log(reason: str, path: Path) -> str:
    """A reason with the last lines of the log."""
    text = tail(path)
    return f"{reason}; its log ends: {text}" if text else f"{reason}; its log is empty"
