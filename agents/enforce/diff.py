"""The difference between a wanted and an actual node state, as ordered actions.

`actions` is level-triggered: it says what can be done now, and is asked again whenever something changed. It keeps no
memory, so a restarted agent goes on in the middle of a transition. A replica whose identity, GPU or SM percent
changes is replaced (the share of a running process cannot be changed), in one of two ways:

* **shadow switch**, where GPU memory and replica slots allow both alive: start the new → wait until ready → switch the
  routes → drain the old → stop it;
* **drain, then start** otherwise: only as many old replicas are drained early as the new ones need room for, those of
  the same service first.

Nodes do not talk to each other: a replica that moved to another node would leave a gap here before it is ready there.
So ready old replicas serve on as `migrating`, where a part of their service's planned rate lies on other nodes, until
the control plane says that their successors are ready. Where memory or slots do not allow both, they go first.

Balancers ask a node now and then whether it serves a service. So the last replicas of a service that is `leaving` the
node serve on for a moment after the node has begun to say that it does not: even where their room is needed.

Tasks have what the replicas leave over and make room for them: see `diff_tasks`.

A replica whose server cannot change its batch is replaced for that as well: see `successors`. A language model's that
is wanted again is taken back while it drains, and woken while it sleeps: see `diff_sleep`.

Memory is never overcommitted: a start is given only when what is alive after the stops before it leaves room.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from agents.base.device import NodeState, Part, RunningReplica, ServiceRoute
from agents.base.protocol import NodeCommand
from agents.base.successors import with_successors
from agents.enforce.actions import (
    Action,
    Drain,
    LimitPower,
    LockClock,
    SetBatch,
    Sleep,
    StartReplica,
    StartTask,
    Stop,
    StopTask,
    SwapIn,
    SwapOut,
    SwitchRoutes,
    Wake,
)
from agents.enforce.diff_routes import last_serving, routes_for_now, still_serving
from agents.enforce.diff_sleep import (
    in_the_way_asleep,
    may_sleep,
    returning_ids,
    started_or_woken,
    taken_back,
    woken_now,
)
from agents.enforce.diff_tasks import (
    are_tasks_settled,
    displaced_tasks,
    freed_soon_mib,
    returning_tasks,
)
from agents.enforce.gpu_diff import GpuDiff, compare_gpus, free_room
from agents.enforce.spans import on_all_gpus, spanned

DRAIN_DEADLINE_S = 30.0
"""A draining replica is stopped after it even if requests are left: Kubernetes' default termination grace period."""


def actions(
    wanted: NodeCommand,
    actual: NodeState,
    *,
    held: Collection[Part] = (),
    migrating: Collection[str] = (),
    leaving: Collection[str] = (),
    drain_deadline_s: float = DRAIN_DEADLINE_S,
) -> tuple[Action, ...]:
    """What can be done now to come from `actual` to `wanted`, in the order in which it must be done.

    `held` are replicas and tasks that failed and must not be started again yet, `migrating` old replicas that may
    still wait for a successor on another node, `leaving` services that balancers may still send here. The result
    is empty when there is nothing to do, or nothing until a replica becomes ready or has drained, or a task has been
    swapped. The command must have passed `admission.objections`.
    """
    # From here on a replica that cannot change its batch is wanted under its successor's name, and one that spans GPUs
    # on each of them, as the device shows it.
    commanded = with_successors(wanted, actual)
    wanted = spanned(commanded)
    held_replicas = _names("replica", held)
    held_tasks = _names("task", held)
    gpus = compare_gpus(wanted, actual, held_tasks)
    # Stops come first, since what they free is given away below.
    returning = returning_ids(gpus, actual)
    stops, gone = _all_stops(gpus, held_replicas, drain_deadline_s, returning)
    # Those that are woken need what they had before they slept, as if they were started.
    woken = woken_now(gpus, returning)
    taken = _ids(actual) - gone - woken
    starts = tuple(on_all_gpus(_all_starts(gpus, taken, held_replicas)))
    waiting = _missing_ids(gpus) - held_replicas
    waiting -= {each.replica.id for each in starts}
    needs = [(gpu, _need(gpu, waiting, taken, starts)) for gpu in gpus]
    displaced = tuple(each for gpu, need in needs for each in _displaced(gpu, need))
    leaving_tasks = {each.task for each in displaced}
    # Drained early is only what room is needed for; the rest serves until its successors are ready.
    early = {
        old.id
        for gpu, need in needs
        for old in _early_drains(gpu, need, waiting, leaving_tasks)
    }
    serving = still_serving(commanded, gpus, migrating) - early
    last = last_serving(gpus, serving, leaving=leaving)
    # The table is made before drains, so that none that is drained is still routed to.
    routes = routes_for_now(
        wanted, actual, gpus, serving | last.keys(), leaving=last.values()
    )
    return (
        *stops,
        *_task_stops(gpus),
        *displaced,
        *_knobs(gpus, gone),
        *dict.fromkeys(_changes(gpus)),
        *((SwitchRoutes(routes=routes),) if routes != actual.routes else ()),
        *dict.fromkeys(_drains(gpus, routes)),
        *started_or_woken(starts, woken),
        *_task_starts(gpus, held_tasks),
    )


def _ids(actual: NodeState) -> set[str]:
    """Ids in use: each is until its process is gone, whatever becomes of its replica."""
    return {replica.id for gpu in actual.gpus for replica in gpu.replicas}


def _missing_ids(gpus: tuple[GpuDiff, ...]) -> set[str]:
    return {want.id for gpu in gpus for want in gpu.missing}


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
            for gpu in compare_gpus(
                spanned(with_successors(wanted, actual)), actual, ()
            )
        )
    )


def _all_stops(
    gpus: tuple[GpuDiff, ...],
    held: Collection[str],
    drain_deadline_s: float,
    returning: Collection[str],
) -> tuple[tuple[Stop | Sleep, ...], set[str]]:
    """What ends or falls asleep, each once, and the ids of those that end."""
    found = dict.fromkeys(_stops(gpus, held, drain_deadline_s, returning))
    return tuple(found), {each.replica_id for each in found if isinstance(each, Stop)}


def _stops(
    gpus: tuple[GpuDiff, ...],
    held: Collection[str],
    drain_deadline_s: float,
    returning: Collection[str],
) -> Iterator[Stop | Sleep]:
    """Retired replicas that carry nothing; a failed one that is wanted stays visible until it may start again."""
    in_the_way = {each for gpu in gpus for each in in_the_way_asleep(gpu, returning)}
    for gpu in gpus:
        for replica in gpu.retired:
            deadline_s = replica.drain_s or drain_deadline_s
            drained = replica.in_flight == 0 or replica.draining_s >= deadline_s
            idle = replica.state in ("starting", "failed") or (
                replica.state == "draining" and drained
            )
            if not idle or (replica.state == "failed" and replica.id in held):
                continue
            is_kept = may_sleep(replica) and replica.id not in in_the_way
            end = Sleep if is_kept else Stop
            yield end(replica_id=replica.id)
        for replica in gpu.asleep:
            if replica.id in in_the_way:
                yield Stop(replica_id=replica.id)


def _all_starts(
    gpus: Iterable[GpuDiff], taken: set[str], held: Collection[str]
) -> Iterator[StartReplica]:
    return (start for gpu in gpus for start in _starts(gpu, taken, held))


def _starts(
    gpu: GpuDiff, taken: set[str], held: Collection[str]
) -> Iterator[StartReplica]:
    """Missing replicas that fit next to everything that is alive; `taken` are the ids in use anywhere on the node."""
    free_mib, slots = free_room(gpu, taken)
    for want in gpu.missing if gpu.actual.healthy else ():
        if want.id in held or want.id in taken:
            continue
        if want.memory_mib <= free_mib and slots > 0:
            free_mib, slots = free_mib - want.memory_mib, slots - 1
            yield StartReplica(gpu_index=gpu.actual.index, replica=want)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What the replicas that cannot start yet on one GPU lack, and whose place they could take."""

    services: frozenset[str]
    """The services of the replicas that wait; none = no replica waits."""
    short_mib: float
    short_slots: int
    olds: tuple[RunningReplica, ...]
    """Old replicas that are alive."""


def _need(
    gpu: GpuDiff, waiting: set[str], taken: set[str], starts: tuple[StartReplica, ...]
) -> _Need:
    wants = (
        [want for want in gpu.missing if want.id in waiting]
        if gpu.actual.healthy
        else []
    )
    new = [start.replica for start in starts if start.gpu_index == gpu.actual.index]
    free_mib, slots = free_room(gpu, taken)
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


def _displaced(gpu: GpuDiff, need: _Need) -> Iterator[SwapOut | StopTask]:
    """Tasks that leave the GPU, for the command's sake or for replicas that wait; what drains is as good as free."""
    # A replica that drains frees its memory within its deadline, so no task needs to leave for that part.
    draining_mib = sum(old.memory_mib for old in need.olds if old.state == "draining")
    short_mib = (
        need.short_mib - draining_mib - _stopping_mib(gpu) if need.services else 0.0
    )
    return displaced_tasks(gpu.wanted.tasks if gpu.wanted else (), gpu.tasks, short_mib)


def _stopping_mib(gpu: GpuDiff) -> float:
    """Memory of tasks that are stopped at once, which takes a real one some time."""
    staying = {task.name for task in gpu.tasks}
    return sum(
        task.memory_mib
        for task in gpu.actual.tasks
        if task.holds_memory and task.name not in staying
    )


def _task_stops(gpus: tuple[GpuDiff, ...]) -> Iterator[StopTask]:
    for gpu in gpus:
        staying = {task.name for task in gpu.tasks}
        yield from (
            StopTask(task=task.name)
            for task in gpu.actual.tasks
            if task.name not in staying
        )


def _task_starts(
    gpus: tuple[GpuDiff, ...], held: Collection[str]
) -> Iterator[StartTask | SwapIn]:
    taken = {task.name for gpu in gpus for task in gpu.actual.tasks} | set(held)
    for gpu in gpus:
        if (
            gpu.wanted is not None
            and gpu.actual.healthy
            and not gpu.missing
            and not gpu.retired
        ):
            there = {each.id for each in gpu.asleep}
            there.update(want.id for want, _ in gpu.kept)
            free_mib, _ = free_room(gpu, there)
            staying = replace(gpu.actual, tasks=gpu.tasks)
            yield from returning_tasks(
                gpu.wanted.tasks, staying, free_mib=free_mib, taken=taken
            )


def _early_drains(
    gpu: GpuDiff, need: _Need, waiting: set[str], displaced: set[str]
) -> Iterator[RunningReplica]:
    """Old replicas that must go before their successors are ready: they hold memory, a slot or an id that is needed."""
    short_mib = (
        need.short_mib - freed_soon_mib(gpu.tasks, displaced) - _stopping_mib(gpu)
    )
    short_slots = need.short_slots
    # Where foreign processes hold so much that even without all of them there is no room, they serve on.
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


def _knobs(
    gpus: tuple[GpuDiff, ...], gone: set[str]
) -> Iterator[LimitPower | LockClock]:
    """Raised power limits, then clocks, then lowered limits, so that the clock never fights the limit.

    A clock falls only after the old replicas of that GPU are gone: they were sized for the higher one.
    """
    # A GPU that does not answer would fail the whole round, so it is left out.
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


def _limit_w(gpu: GpuDiff) -> float | None:
    return (gpu.wanted.power_cap_w or None) if gpu.wanted else None


def _is_raised(before: float | None, after: float | None) -> bool:
    """Whether a limit rises; None is no limit."""
    return before is not None and (after is None or after > before)


def _changes(gpus: tuple[GpuDiff, ...]) -> Iterator[SetBatch | Wake]:
    """What is changed of replicas that are kept."""
    yield from taken_back(gpus)
    for gpu in gpus:
        for want, running in gpu.kept:
            if running.batch != want.batch:
                yield SetBatch(replica_id=want.id, batch=want.batch)


def _drains(
    gpus: tuple[GpuDiff, ...], routes: Iterable[ServiceRoute]
) -> Iterator[Drain]:
    routed = {replica_id for route in routes for replica_id, _ in route.shares}
    for gpu in gpus:
        for old in gpu.retired:
            if old.state == "ready" and old.id not in routed:
                yield Drain(replica_id=old.id)
