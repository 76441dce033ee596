"""The governors of one node: how far they have turned the clock and batches of each GPU, and their next steps.

A GPU whose command names a governor begins at the commanded clock and batches. `in_force` puts what the governor has
turned into the command before it is enforced; `step`, called when a governor is due, measures the period that is over
and turns further. A period counts only when it began with the knobs as they should be, so the first one never does.

While a governor acts, the board's own limit is the command's `power_limit_w`, a net above the cap: under the cap itself
a throttling board would hide every breach. Before its first step, and when the device cannot be measured or turned, the
board holds the cap. Knobs last as long as the GPU's command asks for the same (but for its rates); they are not kept on
disk, and a restarted agent begins again. A governor with a start of its own begins there with its first measurement,
and goes on from where it is when the same replicas get other limits.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from agents.base.device import Device, DeviceError, GpuPoll, GpuState
from agents.base.latency_buckets import bucket_end_ms
from agents.base.protocol import GovernorCommand, GpuCommand, NodeCommand
from agents.base.successors import base_id
from agents.enforce.actions import LimitPower, LockClock, SetBatch, perform
from solvers.governors.registry import GOVERNORS, govern
from solvers.governors.types import (
    GovernorKnobs,
    GovernorLimits,
    GovernorTuning,
    GpuPeriod,
    ReplicaLimits,
    ReplicaPeriod,
    within,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What one governor was asked to do; a command that asks the same changes nothing."""

    governor: GovernorCommand
    begins: GovernorKnobs
    limits: GovernorLimits
    percentiles: tuple[tuple[str, float], ...]
    """(replica, percentile of its SLO)."""


@dataclass(slots=True)
class _Seat:
    """One governed GPU."""

    task: _Task
    knobs: GovernorKnobs
    due_s: float
    start: GovernorKnobs | None = None
    """Where the governor wants to begin, until it has."""
    fixed: frozenset[str] = frozenset()
    """Replicas whose batch only a successor could change: it stays as it is commanded."""
    is_acting: bool = False
    """Whether the present period began with these knobs and a poll."""


class Governing:
    """The governors of one node. Times are seconds of the agent's clock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._command: NodeCommand | None = None
        self._seats: dict[int, _Seat] = {}
        self._unknown: tuple[str, ...] = ()

    def next_s(self, command: NodeCommand, now_s: float) -> float:
        """When the next governor is due under this command; infinite without any."""
        self._seat(command, now_s)
        return min((seat.due_s for seat in self._seats.values()), default=math.inf)

    def in_force(self, command: NodeCommand, now_s: float) -> NodeCommand:
        """The command with the clocks and batches that its governors have turned to."""
        self._seat(command, now_s)
        if not self._seats:
            return command
        gpus = tuple(_turned(gpu, self._seats.get(gpu.index)) for gpu in command.gpus)
        return msgspec.structs.replace(command, gpus=gpus)

    def acting(self) -> frozenset[int]:
        """The GPUs whose governor turns them at present; any other governor stands still."""
        return frozenset(index for index, seat in self._seats.items() if seat.is_acting)

    def asks(self) -> tuple[int, ...]:
        """The GPUs whose governor has come to its limits: only other SM percents could keep what is asked of it."""
        return tuple(
            index
            for index, seat in sorted(self._seats.items())
            if seat.is_acting
            and GOVERNORS[seat.task.governor.name].asks_for_partition(seat.knobs.memory)
        )

    async def step(self, command: NodeCommand, now_s: float) -> tuple[str, ...]:
        """One step of every governor that is due; returns what stood in the way, in words."""
        self._seat(command, now_s)
        due = [each for each in sorted(self._seats.items()) if now_s >= each[1].due_s]
        problems = [*self._unknown]
        if not due:
            return tuple(problems)
        turn = asyncio.Lock()
        # Side by side: servers that do not answer delay the node by one time limit, however many GPUs they are on.
        errors = await asyncio.gather(
            *(self._step(index, seat, turn, now_s) for index, seat in due),
            return_exceptions=True,
        )
        for (index, seat), error in zip(due, errors, strict=True):
            if isinstance(error, DeviceError):
                seat.is_acting = False
                problems.append(
                    f"governor {seat.task.governor.name} of GPU {index} cannot act: {error}"
                )
            elif error is not None:
                raise error
        return tuple(problems)

    async def _step(
        self, index: int, seat: _Seat, turn: asyncio.Lock, now_s: float
    ) -> None:
        # Due again before it acts: a GPU that fails is asked again a period later, not at once.
        seat.due_s = now_s + seat.task.governor.period_s
        poll = await self._device.poll(index)
        # One GPU at a time, and at once after its poll: the period that begins must be the new knobs'.
        async with turn:
            await self._act(index, seat, poll)

    async def _act(self, index: int, seat: _Seat, poll: GpuPoll) -> None:
        """Turn the GPU by what was measured."""
        state = await self._device.state()
        (gpu,) = (each for each in state.gpus if each.index == index)
        seat.fixed = frozenset(
            base_id(each.id) for each in gpu.replicas if not each.has_live_batch
        )
        # A start of the governor's own is taken once the GPU is known to answer.
        if seat.start is not None:
            seat.knobs, seat.start = seat.start, None
        todo = list(_turns(gpu, seat))
        # A period is measured only while the knobs stand as they were told: before, it says nothing of them.
        if seat.is_acting and not todo:
            seat.knobs = govern(
                seat.task.governor.name,
                seat.knobs,
                _period(poll, seat.task),
                seat.task.limits,
            )
            todo = list(_turns(gpu, seat))
        for action in todo:
            await perform(self._device, action)
        seat.is_acting = True

    def _seat(self, command: NodeCommand, now_s: float) -> None:
        """Give every governed GPU of the command its seat; one whose task is the same keeps its knobs."""
        if command is self._command:
            return
        slos = {
            route.service: (route.slo_ms, route.percentile) for route in command.routes
        }
        seats = {}
        for index, gpu, governor in _governed(command):
            if governor.name in GOVERNORS:
                task = _task(gpu, governor, slos)
                seats[index] = _seat_for(task, self._seats.get(index), now_s)
        # Such a command is refused when it comes; one on disk may be of a newer agent.
        self._unknown = tuple(
            f"GPU {index} is not governed: no governor is called {governor.name}"
            for index, _, governor in _governed(command)
            if governor.name not in GOVERNORS
        )
        self._command, self._seats = command, seats


def _governed(
    command: NodeCommand,
) -> Iterator[tuple[int, GpuCommand, GovernorCommand]]:
    return (
        (gpu.index, gpu, gpu.governor)
        for gpu in command.gpus
        if gpu.governor is not None
    )


def _task(
    gpu: GpuCommand, governor: GovernorCommand, slos: dict[str, tuple[float, float]]
) -> _Task:
    replicas = sorted(gpu.replicas, key=lambda replica: replica.id)
    limits = GovernorLimits(
        power_cap_w=gpu.power_cap_w,
        clocks_mhz=governor.clocks_mhz,
        tuning=GovernorTuning(
            steady_power_share=governor.steady_power_share,
            steady_latency_share=governor.steady_latency_share,
            largest_clock_step=governor.largest_clock_step,
        ),
        replicas=tuple(
            ReplicaLimits(
                id=each.id, latency_ms=slos[each.service][0], largest_batch=each.batch
            )
            for each in replicas
        ),
    )
    begins = GovernorKnobs(
        clock_mhz=gpu.clock_mhz, batches={each.id: each.batch for each in replicas}
    )
    return _Task(
        governor=governor,
        begins=within(begins, limits),
        limits=limits,
        percentiles=tuple((each.id, slos[each.service][1]) for each in replicas),
    )


def _seat_for(task: _Task, old: _Seat | None, now_s: float) -> _Seat:
    """The GPU's seat: the one that it has where its task is the same."""
    if old is None or old.task != task:
        return _new_seat(task, old, now_s)
    return old


def _new_seat(task: _Task, old: _Seat | None, now_s: float) -> _Seat:
    """A seat for another task than before: at the planned knobs, unless the governor has a start of its own."""
    start = GOVERNORS[task.governor.name].start
    seat = _Seat(task=task, knobs=task.begins, due_s=now_s)
    if start is None:
        return seat
    # With the same replicas what it has found out is still right, within the new limits.
    if (
        old is None
        or old.task.governor.name != task.governor.name
        or not _has_same_replicas(task, old.task)
    ):
        seat.start = start(task.limits)
        return seat
    seat.knobs = within(replace(old.knobs, memory={}), task.limits)
    seat.start = None if old.start is None else start(task.limits)
    return seat


def _has_same_replicas(task: _Task, old: _Task) -> bool:
    """Whether the same replicas have the GPU as before."""
    now = {each.id for each in task.limits.replicas}
    before = {each.id for each in old.limits.replicas}
    return now == before


def _turned(gpu: GpuCommand, seat: _Seat | None) -> GpuCommand:
    if seat is None:
        return gpu
    batches = seat.knobs.batches
    return msgspec.structs.replace(
        gpu,
        clock_mhz=seat.knobs.clock_mhz,
        power_cap_w=seat.task.governor.power_limit_w
        if seat.is_acting
        else gpu.power_cap_w,
        replicas=tuple(
            each
            if each.id in seat.fixed or each.id not in batches
            else msgspec.structs.replace(each, batch=batches[each.id])
            for each in gpu.replicas
        ),
    )


def _turns(gpu: GpuState, seat: _Seat) -> Iterator[LimitPower | LockClock | SetBatch]:
    """What must be set on the GPU so that the period is the knobs': its limit, clock and batches."""
    if gpu.power_limit_w != seat.task.governor.power_limit_w:
        yield LimitPower(gpu_index=gpu.index, limit_w=seat.task.governor.power_limit_w)
    if gpu.clock_mhz != seat.knobs.clock_mhz:
        yield LockClock(gpu_index=gpu.index, clock_mhz=seat.knobs.clock_mhz)
    for replica in gpu.replicas:
        # Replicas of an earlier command are not in the knobs and keep their batch.
        batch = seat.knobs.batches.get(replica.id, replica.batch)
        if (
            replica.state in ("starting", "ready")
            and replica.has_live_batch
            and replica.batch != batch
        ):
            yield SetBatch(replica_id=replica.id, batch=batch)


def _period(poll: GpuPoll, task: _Task) -> GpuPeriod:
    """What was measured, in the governors' words; of replicas of an earlier command only their power."""
    percentiles = dict(task.percentiles)
    by_id = {
        base_id(each.id): each
        for each in sorted(poll.replicas, key=lambda each: each.id)
    }
    return GpuPeriod(
        peak_power_w=poll.peak_power_w,
        replicas=tuple(
            ReplicaPeriod(
                id=replica_id,
                batches=each.batches,
                requests=each.requests,
                queued=each.queued,
                execution_ms=each.execution_ms,
                latency_ms=percentile_ms(each.latency_buckets, percentiles[replica_id]),
            )
            for replica_id, each in by_id.items()
            if replica_id in percentiles
        ),
    )


def percentile_ms(buckets: Sequence[tuple[int, int]], percentile: float) -> float:
    """The latency below which that share of the requests finished, along a straight line in its bucket; 0 without any.

    Whole buckets of 19 % would be too coarse for a governor that works just below the limit.
    """
    wanted = percentile * sum(count for _, count in buckets)
    for bucket, count in buckets:
        if count and wanted <= count:
            begin_ms = bucket_end_ms(bucket - 1) if bucket else 0.0
            return begin_ms + (bucket_end_ms(bucket) - begin_ms) * wanted / count
        wanted -= count
    return 0.0
