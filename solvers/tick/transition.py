"""The way from what runs to a bound plan: which replicas start, change and stop on which GPU, and in what order.

A replica is kept when its id is in both. Every GPU that changes takes one step, or two when it can hold old and new
replicas at once and so need not stop anything before the rest of the fleet is up:

    add      start the new replicas; nothing stops
    swap     stop, then start: the GPU has no room for both (mode `drain_first`)
    remove   stop the old replicas; what replaces them runs already

All `add` steps come before all `swap` steps, and these before all `remove` steps; within a kind, the GPU whose routed
rate grows most comes first, then the lower GPU id. So capacity is added before it is taken away wherever there is room.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from solvers.types.plan import BoundGpu, BoundReplica
from solvers.types.problem import Problem
from solvers.types.state import GpuId, NodeId, ReplicaId

SwitchMode = Literal["shadow", "drain_first"]

ServiceRates = defaultdict[str, float]
"""Rates in rps by service."""

LOSS_TOLERANCE = 1e-6
"""A loss below this share of a service's rate is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLoss:
    """Requests per second of a service that nothing carries for a while."""

    service: str
    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionStep:
    """What happens on one GPU, all at once as far as the mode allows; each tuple in the order of replica ids."""

    gpu: GpuId
    node: NodeId
    mode: SwitchMode
    """shadow: what starts is ready before anything stops; drain_first: what stops is gone before anything starts."""
    start: tuple[ReplicaId, ...] = ()
    change: tuple[ReplicaId, ...] = ()
    """Replicas that go on under another rate, batch or clock, or whose GPU gets another power cap."""
    stop: tuple[ReplicaId, ...] = ()
    keep: tuple[ReplicaId, ...] = ()
    """Replicas that run on the GPU and that this step leaves as they are."""
    losses: tuple[RateLoss, ...] = ()
    """Services that this step brings below min(routed rate before, routed rate after the transition), until the
    later steps are done; sorted by service. Rates are those that the two plans route, the only ones proven to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """One GPU before and after; either may carry nothing."""

    gpu: BoundGpu
    old: Mapping[ReplicaId, BoundReplica]
    new: Mapping[ReplicaId, BoundReplica]
    change: tuple[ReplicaId, ...]
    overlap_fits: bool
    """Whether memory and the replica limit let old and new replicas run side by side."""

    @property
    def start(self) -> tuple[ReplicaId, ...]:
        return tuple(sorted(self.new.keys() - self.old.keys()))

    @property
    def stop(self) -> tuple[ReplicaId, ...]:
        return tuple(sorted(self.old.keys() - self.new.keys()))

    @property
    def gain_rps(self) -> float:
        return _rate_rps(self.new) - _rate_rps(self.old)

    @property
    def only_routes(self) -> bool:
        """Whether nothing changes but rates: then every replica can carry its old rate as well as its new one."""
        return self.old.keys() == self.new.keys() and all(
            self.old[id_].batch == self.new[id_].batch for id_ in self.change
        )


def transition(
    problem: Problem,
    before: Sequence[BoundGpu],
    after: Sequence[BoundGpu],
) -> tuple[TransitionStep, ...]:
    """The ordered steps from `before` to `after`; empty when nothing changes.

    `before` holds the GPUs that still exist: what ran on a lost GPU is lost already and no step can stop it.
    """
    moves = _moves(problem, before, after)
    steps = [
        (kind, replace(step, keep=_left_alone(move, step)))
        for move in sorted(moves, key=lambda move: (-move.gain_rps, move.gpu.id))
        for kind, step in _steps(move)
    ]
    # The sort is stable: within a kind the GPUs stay in the order of their gains.
    steps.sort(key=lambda each: each[0])
    return _with_losses([step for _, step in steps], moves)


def _moves(
    problem: Problem, before: Sequence[BoundGpu], after: Sequence[BoundGpu]
) -> list[_Move]:
    """One per GPU, by id."""
    old = {gpu.id: gpu for gpu in before}
    new = {gpu.id: gpu for gpu in after}
    return [
        _move(problem, old.get(id_), new.get(id_))
        for id_ in sorted(old.keys() | new.keys())
    ]


def _move(problem: Problem, before: BoundGpu | None, after: BoundGpu | None) -> _Move:
    gpu = after or before
    assert gpu is not None
    old = _by_id(before)
    new = _by_id(after)
    # Clock and cap are the GPU's: another one changes every replica that stays on it.
    is_retuned = before is not None and (before.clock_mhz, before.power_cap_w) != (
        gpu.clock_mhz,
        gpu.power_cap_w,
    )
    return _Move(
        gpu=gpu,
        old=old,
        new=new,
        change=tuple(
            id_
            for id_ in sorted(old.keys() & new.keys())
            if is_retuned or old[id_] != new[id_]
        ),
        overlap_fits=_overlap_fits(problem, gpu, old, new),
    )


def _by_id(gpu: BoundGpu | None) -> dict[ReplicaId, BoundReplica]:
    return {replica.id: replica for replica in gpu.replicas} if gpu else {}


def _overlap_fits(
    problem: Problem,
    gpu: BoundGpu,
    old: Mapping[ReplicaId, BoundReplica],
    new: Mapping[ReplicaId, BoundReplica],
) -> bool:
    # Where nothing starts, or nothing stops, there is no moment with more than one of the two plans.
    if old.keys() <= new.keys() or new.keys() <= old.keys():
        return True
    together = old.keys() | new.keys()
    memory_mib = sum(
        # A kept replica may need another batch's memory after the step: the larger of both is there at some time.
        max(each[id_].memory_mib for each in (old, new) if id_ in each)
        for id_ in together
    )
    return (
        len(together) <= problem.max_replicas_per_gpu
        and memory_mib <= problem.gpu_type(gpu.gpu_type).memory_mib
    )


_ADD, _SWAP, _REMOVE = range(3)


def _steps(move: _Move) -> Iterator[tuple[int, TransitionStep]]:
    """The steps of one GPU, each after its kind."""
    start = move.start
    change = move.change
    stop = move.stop
    step = TransitionStep(gpu=move.gpu.id, node=move.gpu.node, mode="shadow")
    full = replace(step, start=start, change=change, stop=stop)
    if start and stop and move.overlap_fits:
        yield _ADD, replace(step, start=start)
        # What changes waits for the second step: until then the old replicas need the GPU as it is.
        yield _REMOVE, replace(full, start=())
    elif start and stop:
        yield _SWAP, replace(full, mode="drain_first")
    # Without a stop, more rate counts as capacity added, and less as capacity taken away.
    elif start or (change and not stop and move.gain_rps >= 0.0):
        yield _ADD, full
    elif change or stop:
        yield _REMOVE, full


def _left_alone(move: _Move, step: TransitionStep) -> tuple[ReplicaId, ...]:
    there = set(move.old)
    # A step that stops next to an overlap is the second one: what the first one started is there as well.
    if move.overlap_fits and step.stop:
        there |= set(move.new)
    return tuple(sorted(there.difference(step.start, step.change, step.stop)))


def _rate_rps(replicas: Mapping[ReplicaId, BoundReplica]) -> float:
    return sum(replica.arrival_rate_rps for replica in replicas.values())


def _with_losses(
    steps: Sequence[TransitionStep],
    moves: Sequence[_Move],
) -> tuple[TransitionStep, ...]:
    """The steps with their losses, from walking through them once."""
    by_gpu = {move.gpu.id: move for move in moves}
    needed_rps = _needed_rps(moves)
    carried_rps = _carried_rps(moves)
    with_losses = []
    for step in steps:
        up_rps, down_rps = _rate_changes(by_gpu[step.gpu], step)
        # Without room for both, what starts is ready only after what stops is gone.
        ready_rps = up_rps if step.mode == "shadow" else ServiceRates(float)
        losses = tuple(_losses(needed_rps, carried_rps, down_rps, ready_rps))
        with_losses.append(replace(step, losses=losses))
        for service in sorted(up_rps.keys() | down_rps.keys()):
            carried_rps[service] += up_rps[service] - down_rps[service]
    return tuple(with_losses)


def _losses(
    needed_rps: Mapping[str, float],
    carried_rps: ServiceRates,
    down_rps: ServiceRates,
    ready_rps: ServiceRates,
) -> Iterator[RateLoss]:
    """What services lack while their rates are down and no more than `ready_rps` is up; rounding is none."""
    for service in sorted(down_rps):
        lowest_rps = carried_rps[service] - down_rps[service] + ready_rps[service]
        lost_rps = needed_rps[service] - lowest_rps
        if lost_rps > LOSS_TOLERANCE * needed_rps[service]:
            yield RateLoss(service=service, rate_rps=lost_rps)


def _needed_rps(moves: Sequence[_Move]) -> dict[str, float]:
    """By service, the smaller of the rates before and after: a plan that serves less on purpose loses nothing."""
    old_rps = ServiceRates(float)
    new_rps = ServiceRates(float)
    for move in moves:
        for replicas, rps in ((move.old, old_rps), (move.new, new_rps)):
            for replica in replicas.values():
                rps[replica.service] += replica.arrival_rate_rps
    return {
        service: min(old_rps[service], new_rps[service])
        for service in old_rps.keys() | new_rps.keys()
    }


def _carried_rps(moves: Sequence[_Move]) -> ServiceRates:
    """What each service's replicas carry before the first step."""
    carried_rps = ServiceRates(float)
    for move in moves:
        for id_, replica in move.old.items():
            rate_rps = replica.arrival_rate_rps
            if move.only_routes:
                rate_rps = max(rate_rps, move.new[id_].arrival_rate_rps)
            carried_rps[replica.service] += rate_rps
    return carried_rps


def _rate_changes(
    move: _Move,
    step: TransitionStep,
) -> tuple[ServiceRates, ServiceRates]:
    """By service, the rate that the step adds and the rate that it takes away."""
    up_rps = ServiceRates(float)
    down_rps = ServiceRates(float)
    for started in (move.new[id_] for id_ in step.start):
        up_rps[started.service] += started.arrival_rate_rps
    for stopped in (move.old[id_] for id_ in step.stop):
        down_rps[stopped.service] += stopped.arrival_rate_rps
    for id_ in () if move.only_routes else step.change:
        after = move.new[id_]
        more_rps = after.arrival_rate_rps - move.old[id_].arrival_rate_rps
        # A replica that changes carries its old rate until the step and its new one after it.
        (up_rps if more_rps > 0 else down_rps)[after.service] += abs(more_rps)
    return up_rps, down_rps
