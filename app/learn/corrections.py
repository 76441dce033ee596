"""Learn: every few seconds, what replicas executed corrects what their operating points state.

Next to the tick, not in it: a plan waits for nothing here, and a fault costs one period. All that is learned is in the
store, so that a new leader continues where the last one ended. A period is read once: the end of the last one is kept
with what was learned from it, so that a repeated reading changes nothing and a late one is let go.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import structlog

from app.base.clock import ControlClock
from app.learn.readings import StatedTimes, make_readings
from app.learn.served_samples import EVERY_S, Condition, served_samples
from app.loop.make_problem import normal_deviate, row_keys, sigma_of
from app.store.store import (
    AuditEvent,
    Correction,
    Execution,
    FitHealth,
    Snapshot,
    Store,
)
from solvers.predict.data.samples import Group
from solvers.predict.learn.online import (
    ExecutionReading,
    FitState,
    learn,
    log_factors,
    new_fit_state,
)
from solvers.types.plan import BoundGpu
from solvers.types.problem import OperatingPoints

log = structlog.get_logger(__name__)

PERIOD_S = 10.0
SETTLE_S = 5.0
"""Windows arrive this late at most: an agent's period and the way."""
MAX_S = 60.0
"""After a pause the newest minute is read, as one period."""
RISE = 0.02
"""Planning takes over times that are longer by 2 % at once, and by less never: plans must not follow noise."""
FALL, FALL_AFTER_S = 0.05, 60.0
"""Times that are shorter save money only: by 5 %, and a minute after the last change."""
MAX_GPUS = 400
"""GPUs that are looked at in one round, in turn: of 2,000 GPUs with four replicas each a round takes 50 ms of CPU."""
FORGET_AFTER_S = 86400.0
"""A network that was slow on a GPU type is planned elsewhere, and it would never be learned that it is slow no more."""
GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0
SAMPLE_EVERY_S = 60.0
"""Samples are made of what is served this often, see `served_samples.EVERY_S`."""
ACTOR = "controller"

Settings = tuple[float, tuple[tuple[str, float, int], ...]]
"""What a GPU runs: its clock, and (replica, SM percent, batch) of each replica."""


@dataclass(slots=True, kw_only=True)
class OnlineLearner:
    """The parts that learning works with; it remembers how far it read, and since when each GPU runs what it runs."""

    store: Store
    clock: ControlClock
    settled: dict[str, tuple[Settings, float]] = field(default_factory=dict)
    read_until_s: float = 0.0
    sampled_s: dict[Condition, float] = field(default_factory=dict)
    """When each condition was last made a sample of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnOutcome:
    """What one round learned."""

    readings: int = 0
    changed: tuple[FitHealth, ...] = ()
    events: tuple[AuditEvent, ...] = ()


async def learn_once(learner: OnlineLearner) -> LearnOutcome:
    """Read the periods that are over, and keep what they say.

    Under a governor nothing is learned: clocks and batches are then not those that the plan's points state times for.
    """
    snapshot = await learner.store.load_snapshot(learner.clock.now())
    # Noted in every round, also in those that learn nothing: a GPU must be seen to change.
    steady_since = _note_settled(learner, snapshot)
    target = snapshot.target
    if not snapshot.settings.learning or target is None or target.governor is not None:
        return LearnOutcome()
    known = {row.group: row for row in await learner.store.load_fit_health()}
    since_s, until_s = _stretch(learner, snapshot.at.timestamp(), known.values())
    if until_s <= since_s:
        return LearnOutcome()
    steady = [gpu for gpu in target.gpus if steady_since[gpu.id] <= since_s]
    gpus = some_of(steady, until_s)
    executions = await learner.store.load_executions(
        _moment(since_s), _moment(until_s), [gpu.id for gpu in gpus]
    )
    outcome = await asyncio.to_thread(judge, snapshot, known, gpus, executions, until_s)
    if not await _save(learner, outcome, snapshot):
        return LearnOutcome()
    # Only after it was saved: a period whose outcome was lost is read again.
    learner.read_until_s = until_s
    if until_s % SAMPLE_EVERY_S == 0.0:
        await _keep_samples(learner, gpus, executions, since_s, snapshot.at)
    await _record_events(learner.store, outcome.events)
    return outcome


async def _save(
    learner: OnlineLearner, outcome: LearnOutcome, snapshot: Snapshot
) -> bool:
    if not outcome.changed or await learner.store.save_fit_health(
        outcome.changed, snapshot.state.catalogue_revision
    ):
        return True
    log.info(
        "the catalogue changed while corrections were learned; the next round reads the same period again"
    )
    return False


async def _record_events(store: Store, events: Sequence[AuditEvent]) -> None:
    for event in events:
        log.warning(
            "operating points",
            subject=event.subject,
            kind=event.kind,
            reason=event.reason,
        )
    if events:
        await store.add_events(*events)


def some_of(gpus: Sequence[BoundGpu], until_s: float) -> list[BoundGpu]:
    """At most MAX_GPUS of them, others in every period, evenly spread, at every pace of asking."""
    # Every stride-th GPU from a changing start: neighbours in the list are often of one node, and alike.
    stride = math.ceil(len(gpus) / MAX_GPUS) or 1
    # Multiples of an irrational number spread the starts evenly; a rational one might choose the same GPUs at every
    # full minute, when samples are made.
    first = int(stride * (round(until_s / PERIOD_S) * GOLDEN_RATIO % 1.0))
    return list(gpus[first::stride])


async def _keep_samples(
    learner: OnlineLearner,
    gpus: Sequence[BoundGpu],
    executions: Sequence[Execution],
    since_s: float,
    at: datetime,
) -> None:
    """A few of what was served from `since_s` to where it was read, for fits to come."""
    until_s = learner.read_until_s
    # What is older may be sampled again, and need not be remembered.
    recent = {
        condition: when
        for condition, when in learner.sampled_s.items()
        if until_s - when < EVERY_S
    }
    rows = served_samples(gpus, executions, recent, since_s=since_s, until_s=until_s)
    if rows:
        await learner.store.add_samples(tuple(rows.values()), at)
    learner.sampled_s = recent | dict.fromkeys(rows, until_s)


def judge(
    snapshot: Snapshot,
    known: Mapping[Group, FitHealth],
    gpus: Iterable[BoundGpu],
    executions: tuple[Execution, ...],
    until_s: float,
) -> LearnOutcome:
    """What these executions, of a period that ended at `until_s`, say of the operating points."""
    points = {Group(entry.network, entry.gpu_type): entry for entry in snapshot.points}
    types = {gpu_type.name: gpu_type for gpu_type in snapshot.state.gpu_types}
    readings = make_readings(gpus, executions, StatedTimes(points, types))
    learned = []
    for group in sorted(readings):
        before = known.get(group)
        row = _learned_row(snapshot, points[group], before, readings[group], until_s)
        if row is not before:
            learned.append(row)
    forgotten = _forgotten(snapshot, known, until_s)
    reset = [_reset(snapshot, points[group], until_s) for group in forgotten]
    return LearnOutcome(
        readings=sum(map(len, readings.values())),
        changed=(*learned, *reset),
        events=(
            *_drift_events(snapshot.at, known, learned),
            *(_forgotten_event(snapshot.at, group) for group in forgotten),
        ),
    )


def _learned_row(
    snapshot: Snapshot,
    points: OperatingPoints,
    before: FitHealth | None,
    readings: list[ExecutionReading],
    until_s: float,
) -> FitHealth:
    """The health after these readings: `before` itself where they are of a period that it knows already."""
    sigma = sigma_of(snapshot, points)
    after = _learned(points, sigma, before, readings, until_s)
    if before is not None and after is before.now:
        return before
    return _row(snapshot, points, before, after)


def _reset(snapshot: Snapshot, points: OperatingPoints, until_s: float) -> FitHealth:
    """The health as if the network had never been served: the stated uncertainty, and nothing learned."""
    fresh = new_fit_state(np.array(sigma_of(snapshot, points)), until_s)
    return _row(snapshot, points, None, fresh)


def _learned(
    points: OperatingPoints,
    sigma: tuple[float, ...],
    before: FitHealth | None,
    readings: list[ExecutionReading],
    until_s: float,
) -> FitState:
    health = (
        new_fit_state(np.array(sigma), until_s - PERIOD_S)
        if before is None
        else before.now
    )
    return learn(
        health, readings, dict(zip(row_keys(points), sigma, strict=True)), until_s
    )


def _row(
    snapshot: Snapshot, points: OperatingPoints, before: FitHealth | None, now: FitState
) -> FitHealth:
    """The health with what plans are made with from here on."""
    group = Group(points.network, points.gpu_type)
    # `now` follows every reading; `planned` moves in steps, so that plans do not follow noise.
    if before is None or _is_taken_over(snapshot, points, before.planned, now):
        return FitHealth(
            group=group,
            now=now,
            planned=Correction(group=group, health=now, at=snapshot.at),
        )
    return replace(before, now=now)


def _is_taken_over(
    snapshot: Snapshot, points: OperatingPoints, planned: Correction, now: FitState
) -> bool:
    """Whether planning follows what was learned since it last did."""
    sigma = np.array(sigma_of(snapshot, points))
    keys = row_keys(points)
    z = normal_deviate(snapshot.settings)
    before = log_factors(planned.health, keys, sigma, z)
    change = log_factors(now, keys, sigma, z) - before
    age_s = (snapshot.at - planned.at).total_seconds()
    return (
        # An alarm widens what is planned for at once, and its end gives the room back at once.
        now.is_alarmed != planned.health.is_alarmed
        or float(change.max()) > RISE
        or (float(change.min()) < -FALL and age_s >= FALL_AFTER_S)
    )


def _forgotten(
    snapshot: Snapshot, known: Mapping[Group, FitHealth], until_s: float
) -> list[Group]:
    """What plans stayed away from for so long that what was learned of it is out of date."""
    target = snapshot.target.gpus if snapshot.target else ()
    planned = {
        Group(replica.network, gpu.gpu_type)
        for gpu in target
        for replica in gpu.replicas
    }
    stated = {Group(points.network, points.gpu_type) for points in snapshot.points}
    return [
        group
        # Stated alone: what has no profile any more cannot be planned for, so that nothing has to be forgotten.
        for group in sorted(known.keys() & stated - planned)
        if known[group].now.readings
        and until_s - known[group].now.seen_until_s >= FORGET_AFTER_S
    ]


def _forgotten_event(at: datetime, group: Group) -> AuditEvent:
    reason = f"on {group.gpu_type} it was not planned for a day: its learned times are discarded"
    return AuditEvent(
        at=at,
        actor=ACTOR,
        kind="FitForgotten",
        subject=f"network/{group.network}",
        reason=reason,
    )


def _drift_events(
    at: datetime, known: Mapping[Group, FitHealth], learned: Iterable[FitHealth]
) -> Iterator[AuditEvent]:
    """One line per fit whose alarm came or went."""
    for row in learned:
        before = known.get(row.group)
        was_alarmed = before is not None and before.now.is_alarmed
        if was_alarmed != row.now.is_alarmed:
            yield _drift_event(at, row)


def _drift_event(at: datetime, after: FitHealth) -> AuditEvent:
    network, gpu_type = after.group
    now = after.now
    # The operator reads what planning does about it, and not only by how much the times are off.
    if not now.is_alarmed:
        effect = "they are learned"
    elif now.shortfall > 0.0:
        effect = "more headroom is kept until they are learned"
    else:
        effect = "plans assume no shorter times until they are learned"
    return AuditEvent(
        at=at,
        actor=ACTOR,
        kind="FitDrifted" if now.is_alarmed else "FitRecovered",
        subject=f"network/{network}",
        reason=f"on {gpu_type} times were {100 * now.error:.1f} % off (band {100 * now.band:.1f} %); {effect}",
    )


def _stretch(
    learner: OnlineLearner, now_s: float, known: Iterable[FitHealth]
) -> tuple[float, float]:
    """From the end of the last period that was read to that of the last one whose windows are all here."""
    # Periods begin at multiples of PERIOD_S, so that another leader reads the same ones.
    until_s = PERIOD_S * math.floor((now_s - SETTLE_S) / PERIOD_S)
    read_s = (
        max([learner.read_until_s, *(row.now.seen_until_s for row in known)])
        or until_s - PERIOD_S
    )
    return max(read_s, until_s - MAX_S), until_s


def _note_settled(learner: OnlineLearner, snapshot: Snapshot) -> Mapping[str, float]:
    """Since when each GPU of the target has been meant to run what it runs, as far as this process saw."""
    now_s = snapshot.at.timestamp()
    settled: dict[str, tuple[Settings, float]] = {}
    for gpu in snapshot.target.gpus if snapshot.target else ():
        settings = (
            gpu.clock_mhz,
            tuple((each.id, each.sm_percent, each.batch) for each in gpu.replicas),
        )
        # The moment of the first look, not that of the push: what ran in between is not certain.
        before = learner.settled.get(gpu.id)
        settled[gpu.id] = (
            before
            if before is not None and before[0] == settings
            else (settings, now_s)
        )
    learner.settled = settled
    return {gpu: since_s for gpu, (_, since_s) in settled.items()}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
