"""The difference between a wanted and an actual node state, as ordered actions.

`actions` is level-triggered: it says what can be done now, and is asked again whenever something changed. It keeps no
memory, so a restarted agent goes on in the middle of a transition. A replica whose identity, GPU or SM percent
changes is replaced (the share of a running process cannot be changed), in one of two ways:

* **shadow switch**, where GPU memory and replica slots allow both alive: start the new → wait until ready → switch the
  routes → drain the old → stop it;
* **drain, then start** otherwise: only as many old replicas are drained early as the new ones need room for, those of
  the same service first.

Nodes do not talk to each other: a replica that moved to another node leaves a gap here before it is ready there. So
for a while (`handover`) ready old replicas keep serving where a part of their service's planned rate lies on other
nodes, unless their room is needed.

Tasks have what the replicas leave over and make room for them: see `enforce_tasks`.

A replica whose server cannot change its batch is replaced for that as well: see `successors`.

Memory is never overcommitted: a start is given only when what is alive after the stops before it leaves room.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from agents.base.device import (
    MEMORY_TOLERANCE,
    GpuState,
    NodeState,
    Part,
    RunningReplica,
    RunningTask,
    ServiceRoute,
)
from agents.base.protocol import GpuCommand, NodeCommand, ReplicaCommand, Route
from agents.base.successors import with_successors
from agents.enforce.actions import (
    Action,
    Drain,
    LimitPower,
    LockClock,
    SetBatch,
    StartReplica,
    StartTask,
    Stop,
    StopTask,
    SwapIn,
    SwapOut,
    SwitchRoutes,
)
from agents.enforce.diff_tasks import (
    are_tasks_settled,
    freed_soon_mib,
    leaving_tasks,
    returning_tasks,
    staying_tasks,
)

DRAIN_DEADLINE_S = 30.0
"""A draining replica is stopped after it even if requests are left: Kubernetes' default termination grace period."""

RATE_TOLERANCE = 1e-6
"""Rounding that a sum of planned rates may carry, relative."""


def actions(
    wanted: NodeCommand,
    actual: NodeState,
    *,
    held: Collection[Part] = (),
    handover: Collection[str] = (),
    drain_deadline_s: float = DRAIN_DEADLINE_S,
) -> tuple[Action, ...]:
    """What can be done now to come from `actual` to `wanted`, in the order in which it must be done.

    `held` are replicas and tasks that failed and must not be started again yet, `handover` old replicas that may
    still wait for a successor on another node. The result is empty when there is nothing to do, or nothing until a
    replica becomes ready or has drained, or a task has been swapped. The command must have passed
    `admission.objections`.
    """
    wanted = with_successors(wanted, actual)
    held_replicas, held_tasks = _names("replica", held), _names("task", held)
    gpus = _compare(wanted, actual, held_tasks)
    stops = tuple(_stops(gpus, held_replicas, drain_deadline_s))
    gone = {stop.replica_id for stop in stops}
    taken = {replica.id for gpu in actual.gpus for replica in gpu.replicas} - gone
    starts = tuple(
        start for gpu in gpus for start in _starts(gpu, taken, held_replicas)
    )
    started = {start.replica.id for start in starts}
    waiting = (
        {want.id for gpu in gpus for want in gpu.missing} - started - held_replicas
    )
    needs = [_need(gpu, waiting, taken, starts) for gpu in gpus]
    leaving = tuple(
        each
        for gpu, need in zip(gpus, needs, strict=True)
        for each in _leaving(gpu, need)
    )
    early = {
        old.id
        for gpu, need in zip(gpus, needs, strict=True)
        for old in _early_drains(gpu, need, waiting, {each.task for each in leaving})
    }
    serving = _still_serving(wanted, gpus, handover) - early
    routes = _routes(wanted, actual, gpus, serving)
    routed = {replica_id for route in routes for replica_id, _ in route.shares}
    return (
        *stops,
        *_task_stops(gpus),
        *leaving,
        *_knobs(gpus, gone),
        *_batches(gpus),
        *((SwitchRoutes(routes=routes),) if routes != actual.routes else ()),
        *_drains(gpus, routed),
        *starts,
        *_task_starts(gpus, held_tasks),
    )


def _names(kind: Literal["replica", "task"], parts: Collection[Part]) -> set[str]:
    return {name for part, name in parts if part == kind}


def is_settled(wanted: NodeCommand, actual: NodeState) -> bool:
    """Whether the node is exactly as wanted: every replica ready and routed, every task running or where it is to
    wait, nothing else alive, every knob set."""
    return (
        not actions(wanted, actual)
        and are_tasks_settled(wanted, actual)
        and all(
            not gpu.missing
            and not gpu.retired
            and all(running.state == "ready" for _, running in gpu.kept)
            for gpu in _compare(with_successors(wanted, actual), actual, ())
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """One GPU, wanted against actual."""

    wanted: GpuCommand | None
    actual: GpuState
    kept: tuple[tuple[ReplicaCommand, RunningReplica], ...]
    """Replicas that run, or come up, as wanted; perhaps with another batch."""
    missing: tuple[ReplicaCommand, ...]
    retired: tuple[RunningReplica, ...]
    """Replicas that are not wanted, or not as they are, or failed, or already draining; by id."""
    tasks: tuple[RunningTask, ...]
    """Tasks that are not to be stopped at once."""


def _compare(
    wanted: NodeCommand, actual: NodeState, held: Collection[str]
) -> tuple[_Gpu, ...]:
    commands = {gpu.index: gpu for gpu in wanted.gpus}
    tasks = staying_tasks(wanted, actual, held)
    return tuple(
        _compare_gpu(commands.get(gpu.index), gpu, tasks[gpu.index])
        for gpu in actual.gpus
    )


def _compare_gpu(
    command: GpuCommand | None, actual: GpuState, tasks: tuple[RunningTask, ...]
) -> _Gpu:
    wanted = command.replicas if command else ()
    running = {replica.id: replica for replica in actual.replicas}
    kept = tuple(
        (want, running[want.id])
        for want in wanted
        if want.id in running and _serves(running[want.id], want)
    )
    kept_ids = {want.id for want, _ in kept}
    return _Gpu(
        wanted=command,
        actual=actual,
        kept=kept,
        missing=tuple(want for want in wanted if want.id not in kept_ids),
        retired=tuple(
            running[each] for each in sorted(running) if each not in kept_ids
        ),
        tasks=tasks,
    )


def _serves(running: RunningReplica, want: ReplicaCommand) -> bool:
    """Whether the running replica is, or will be, the wanted one; a live batch may differ, all else is fixed."""
    same = (
        running.service,
        running.network,
        running.sm_percent,
        running.memory_mib,
    ) == (
        want.service,
        want.network,
        want.sm_percent,
        want.memory_mib,
    )
    has_batch = running.has_live_batch or running.batch == want.batch
    return same and has_batch and running.state in ("starting", "ready")


def _stops(
    gpus: tuple[_Gpu, ...], held: Collection[str], drain_deadline_s: float
) -> Iterator[Stop]:
    """Retired replicas that carry nothing; a failed one that is wanted stays visible until it may start again."""
    for gpu in gpus:
        for replica in gpu.retired:
            drained = replica.in_flight == 0 or replica.draining_s >= drain_deadline_s
            idle = replica.state in ("starting", "failed") or (
                replica.state == "draining" and drained
            )
            if idle and not (replica.state == "failed" and replica.id in held):
                yield Stop(replica_id=replica.id)


def _starts(
    gpu: _Gpu, taken: set[str], held: Collection[str]
) -> Iterator[StartReplica]:
    """Missing replicas that fit beside everything that is alive; `taken` are the ids in use anywhere on the node."""
    free_mib, slots = _free(gpu, taken)
    for want in gpu.missing if gpu.actual.healthy else ():
        if (
            want.id not in held
            and want.id not in taken
            and want.memory_mib <= free_mib
            and slots > 0
        ):
            free_mib, slots = free_mib - want.memory_mib, slots - 1
            yield StartReplica(gpu_index=gpu.actual.index, replica=want)


def _free(gpu: _Gpu, taken: set[str]) -> tuple[float, int]:
    """Memory in MiB and replica slots that are left beside the replicas in `taken`, of which a failed one holds no
    memory, beside all tasks, stopped ones until they are gone, and beside what strangers hold."""
    alive = [replica for replica in gpu.actual.replicas if replica.id in taken]
    used_mib = sum(replica.memory_mib for replica in alive if replica.state != "failed")
    used_mib += sum(task.memory_mib for task in gpu.actual.tasks if task.holds_memory)
    used_mib += gpu.actual.foreign_mib
    return gpu.actual.memory_mib * (
        1.0 + MEMORY_TOLERANCE
    ) - used_mib, gpu.actual.max_replicas - len(alive)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What the replicas that cannot start yet on one GPU lack, and whose place they could take."""

    services: frozenset[str]
    """Of the replicas that wait; none = nobody waits."""
    short_mib: float
    short_slots: int
    olds: tuple[RunningReplica, ...]
    """Old replicas that are alive."""


def _need(
    gpu: _Gpu, waiting: set[str], taken: set[str], starts: tuple[StartReplica, ...]
) -> _Need:
    wants = (
        [want for want in gpu.missing if want.id in waiting]
        if gpu.actual.healthy
        else []
    )
    new = [start.replica for start in starts if start.gpu_index == gpu.actual.index]
    free_mib, slots = _free(gpu, taken)
    return _Need(
        services=frozenset(want.service for want in wants),
        short_mib=sum(want.memory_mib for want in (*wants, *new)) - free_mib,
        short_slots=len(wants) + len(new) - slots,
        olds=tuple(
            each
            for each in gpu.retired
            if each.id in taken and each.state in ("ready", "draining")
        ),
    )


def _leaving(gpu: _Gpu, need: _Need) -> Iterator[SwapOut | StopTask]:
    """Tasks that leave the GPU, for the command's sake or for replicas that wait; what drains is as good as free."""
    draining_mib = sum(old.memory_mib for old in need.olds if old.state == "draining")
    short_mib = (
        need.short_mib - draining_mib - _stopping_mib(gpu) if need.services else 0.0
    )
    return leaving_tasks(gpu.wanted.tasks if gpu.wanted else (), gpu.tasks, short_mib)


def _stopping_mib(gpu: _Gpu) -> float:
    """Memory of tasks that are stopped at once, which takes a real one some time."""
    staying = {task.name for task in gpu.tasks}
    return sum(
        task.memory_mib
        for task in gpu.actual.tasks
        if task.holds_memory and task.name not in staying
    )


def _task_stops(gpus: tuple[_Gpu, ...]) -> Iterator[StopTask]:
    for gpu in gpus:
        staying = {task.name for task in gpu.tasks}
        yield from (
            StopTask(task=task.name)
            for task in gpu.actual.tasks
            if task.name not in staying
        )


def _task_starts(
    gpus: tuple[_Gpu, ...], held: Collection[str]
) -> Iterator[StartTask | SwapIn]:
    taken = {task.name for gpu in gpus for task in gpu.actual.tasks} | set(held)
    for gpu in gpus:
        if (
            gpu.wanted is not None
            and gpu.actual.healthy
            and not gpu.missing
            and not gpu.retired
        ):
            free_mib, _ = _free(gpu, {want.id for want, _ in gpu.kept})
            staying = replace(gpu.actual, tasks=gpu.tasks)
            yield from returning_tasks(
                gpu.wanted.tasks, staying, free_mib=free_mib, taken=taken
            )


def _early_drains(
    gpu: _Gpu, need: _Need, waiting: set[str], leaving: set[str]
) -> Iterator[RunningReplica]:
    """Old replicas that must go before their successors are ready: they hold memory, a slot or an id that is needed."""
    short_mib = need.short_mib - freed_soon_mib(gpu.tasks, leaving) - _stopping_mib(gpu)
    short_slots = need.short_slots
    # Where strangers hold so much that even without all of them there is no room, they serve on.
    is_in_vain = gpu.actual.foreign_mib > 0.0 and short_mib > sum(
        old.memory_mib for old in need.olds
    )
    # One that drains already counts first; then one whose id is in the way; then the waiting services' own.
    for old in sorted(
        need.olds,
        key=lambda old: (
            old.state != "draining",
            old.id not in waiting,
            old.service not in need.services,
            old.id,
        ),
    ):
        is_needed = need.services and (short_mib > 0.0 or short_slots > 0)
        if old.id in waiting or (is_needed and not is_in_vain):
            short_mib, short_slots = short_mib - old.memory_mib, short_slots - 1
            yield old


def _still_serving(
    wanted: NodeCommand, gpus: tuple[_Gpu, ...], handover: Collection[str]
) -> set[str]:
    """Ready old replicas whose service waits for a wanted one here, or perhaps for one on another node."""
    unready = {want.service for gpu in gpus for want in gpu.missing}
    unready |= {
        want.service
        for gpu in gpus
        for want, running in gpu.kept
        if running.state != "ready"
    }
    elsewhere = _elsewhere(wanted)
    return {
        old.id
        for gpu in gpus
        for old in gpu.retired
        if old.state == "ready"
        and (
            old.service in unready or (old.id in handover and old.service in elsewhere)
        )
    }


def _elsewhere(wanted: NodeCommand) -> set[str]:
    """Services of whose planned rate a part lies on other nodes."""
    here: dict[str, float] = {}
    for gpu in wanted.gpus:
        for want in gpu.replicas:
            here[want.service] = here.get(want.service, 0.0) + want.arrival_rate_rps
    return {
        route.service
        for route in wanted.routes
        if route.arrival_rate_rps
        > here.get(route.service, 0.0) * (1.0 + RATE_TOLERANCE)
    }


def _routes(
    wanted: NodeCommand, actual: NodeState, gpus: tuple[_Gpu, ...], serving: set[str]
) -> tuple[ServiceRoute, ...]:
    """The table for now: ready wanted replicas by the plan's rates, and the old ones in `serving` by their former."""
    before = {route.service: route for route in actual.routes}
    former = {
        replica_id: weight
        for route in actual.routes
        for replica_id, weight in route.shares
    }
    shares: dict[str, dict[str, float]] = {route.service: {} for route in wanted.routes}
    for gpu in gpus:
        for want, running in gpu.kept:
            if running.state == "ready":
                shares[want.service][want.id] = want.arrival_rate_rps
        for old in gpu.retired:
            if old.id in serving:
                shares[old.service][old.id] = former.get(old.id, 0.0)
    return tuple(
        _route(route, shares[route.service], before.get(route.service))
        for route in sorted(wanted.routes, key=attrgetter("service"))
    )


def _route(
    wanted: Route, shares: dict[str, float], before: ServiceRoute | None
) -> ServiceRoute:
    """A service's route: the one before, where it is the same, as most are on a node with many services."""
    sorted_shares = tuple(sorted(shares.items())) if shares else ()
    if before is not None and (before.slo_ms, before.shares) == (
        wanted.slo_ms,
        sorted_shares,
    ):
        return before
    return ServiceRoute(
        service=wanted.service, slo_ms=wanted.slo_ms, shares=sorted_shares
    )


def _knobs(gpus: tuple[_Gpu, ...], gone: set[str]) -> Iterator[LimitPower | LockClock]:
    """Raised power limits, then clocks, then lowered limits, so that the clock never fights the limit.

    A clock falls only after the old replicas of that GPU are gone: they were sized for the higher one.
    """
    limits = [
        (gpu.actual, _limit_w(gpu))
        for gpu in gpus
        if gpu.actual.healthy
        and gpu.actual.has_power_limit
        and gpu.actual.power_limit_w != _limit_w(gpu)
    ]
    rises = [_is_raised(gpu.power_limit_w, limit_w) for gpu, limit_w in limits]
    for (gpu, limit_w), is_raised in zip(limits, rises, strict=True):
        if is_raised:
            yield LimitPower(gpu_index=gpu.index, limit_w=limit_w)
    for each in gpus:
        clock_mhz = (each.wanted.clock_mhz or None) if each.wanted else None
        has_old = any(
            old.state in ("ready", "draining") and old.id not in gone
            for old in each.retired
        )
        if (
            not each.actual.healthy
            or not each.actual.has_clock_lock
            or each.actual.clock_mhz == clock_mhz
        ):
            continue
        if _is_raised(each.actual.clock_mhz, clock_mhz) or not has_old:
            yield LockClock(gpu_index=each.actual.index, clock_mhz=clock_mhz)
    for (gpu, limit_w), is_raised in zip(limits, rises, strict=True):
        if not is_raised:
            yield LimitPower(gpu_index=gpu.index, limit_w=limit_w)


def _limit_w(gpu: _Gpu) -> float | None:
    return (gpu.wanted.power_cap_w or None) if gpu.wanted else None


def _is_raised(before: float | None, after: float | None) -> bool:
    """Whether a limit rises; None is no limit."""
    return before is not None and (after is None or after > before)


def _batches(gpus: tuple[_Gpu, ...]) -> Iterator[SetBatch]:
    for gpu in gpus:
        for want, running in gpu.kept:
            if running.batch != want.batch:
                yield SetBatch(replica_id=want.id, batch=want.batch)


def _drains(gpus: tuple[_Gpu, ...], routed: set[str]) -> Iterator[Drain]:
    for gpu in gpus:
        for old in gpu.retired:
            if old.state == "ready" and old.id not in routed:
                yield Drain(replica_id=old.id)
