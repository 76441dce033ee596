"""The control loop: one tick in numbered steps, and nothing else.

Start-up, steady state and recovery run the same `tick()`. It takes no input but the store; the API writes rows and
wakes it. A crash between two steps loses nothing: whatever is not written is decided again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from app.base.clock import ControlClock, Stopwatch
from app.loop.budgets import describe_degraded
from app.loop.demand_fallbacks import DecidedOn, decide_with_fallbacks, unserved_rps
from app.loop.events import (
    describe_hold,
    drained_events,
    held_event,
    refused_event,
    refused_events,
    repartition_events,
    silence_events,
)
from app.loop.forecast import make_demands
from app.loop.leftovers import CompleteDecision, with_leftovers
from app.loop.make_problem import PlannedPoints
from app.loop.observe import (
    HeardNodes,
    HoldKind,
    asking_gpus,
    describe_late,
    silent_nodes,
)
from app.loop.plan import Decision, with_messages
from app.loop.planning.draining import drained_nodes
from app.loop.planning.llm_rows import ModelRows, SizedModels, with_rows
from app.loop.planning.reschedule import without_starts_on
from app.loop.push import (
    GivenCommands,
    following,
    push_target,
    record_of,
    why_it_stays,
)
from app.solver.process import Solver
from app.store.plan_states import PlanState
from app.store.store import Proposal, Snapshot, Store
from solvers.predict.data.samples import LayerCounts
from solvers.types.outcome import PlanReport, Reason, Violation
from solvers.types.plan import BoundPlan
from solvers.types.state import Demand, Mode

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Loop:
    """The parts that a tick works with. Between ticks it remembers only whom it heard and what it complained about."""

    store: Store
    solver: Solver
    clock: ControlClock
    promises_may_break: bool = False
    """Only in simulation, for baselines that learn from misses."""
    forecast: Callable[[Snapshot], tuple[Demand, ...]] = make_demands
    """Only simulations put another one here."""
    now_s: Callable[[], float] = time.perf_counter
    telemetry: HeardNodes = field(default_factory=HeardNodes)
    held_for: HoldKind | None = None
    """What it told last, while it holds."""
    silent: tuple[str, ...] = ()
    refused_tasks: frozenset[str] = frozenset()
    asking: tuple[str, ...] = ()
    proposed: Proposal | None = None
    """What it proposed last, or found waiting when it took the lead."""
    has_resumed: bool = False
    """Whether it looked for what waits since it took the lead."""
    planned_points: PlannedPoints = field(default_factory=PlannedPoints)
    models: SizedModels = field(default_factory=SizedModels)
    given: GivenCommands = field(default_factory=GivenCommands)
    layers: tuple[LayerCounts, ...] = ()
    """Layers of training networks; training that was never profiled is judged by them."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the decider in this process, the tick or the dispatcher of jobs, so that neither's plan is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOutcome:
    """What one tick did."""

    state: PlanState | None
    """None: the loop held."""
    reason: str = ""
    generation: int = 0
    """Generation of the target after the tick; 0 = none."""
    plan_id: int | None = None
    cost_usd_per_hour: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds per step, `total` among them."""
    policy: str = ""
    report: PlanReport | None = None
    """The decision's report, without prices; None: nothing was decided."""
    unserved_rps: float = 0.0
    violations: tuple[Violation, ...] = ()


async def tick(loop: Loop) -> TickOutcome:
    """One round: read, hold or decide, write, push."""
    watch = Stopwatch(loop.now_s)

    # 1. Read everything in one snapshot.
    snapshot = await loop.store.load_snapshot(loop.clock.now())
    watch.lap("snapshot")

    # 2. Hold when the operator or the telemetry says so.
    reason = loop.telemetry.operator_or_telemetry_hold(snapshot)
    if reason is not None:
        return await _held(loop, snapshot, reason, watch)
    # Forgotten as soon as it decides again, so that the next outage gets its own line in the audit.
    loop.held_for = None

    # 3. Push a plan that a person approved meanwhile.
    if snapshot.approved is not None and snapshot.approved_id is not None:
        return await _push_approved(loop, snapshot, watch)

    # 4. Take up what waits since before a restart; observe and forecast.
    await _resume(loop, snapshot)
    await _record_nodes(loop, snapshot)
    snapshot = replace(
        snapshot,
        late_too_long=loop.telemetry.late_too_long(snapshot),
        flapping=loop.telemetry.flapping(snapshot),
    )
    # Before anything else is asked of the solver: services of language models are planned by what they are sized at.
    rows = await loop.models.of(loop.solver, snapshot)
    snapshot = with_rows(snapshot, rows)
    demands = await asyncio.to_thread(loop.forecast, snapshot)
    watch.lap("forecast")

    # 5. Predict, plan, check, bind; what is left over goes to tasks.
    outcome, mode = await _decide(loop, snapshot, demands, rows)
    renewal = await loop.given.renewal(loop.store, snapshot, outcome, mode)
    if renewal is not None and mode is not None:
        snapshot, outcome = await _tell_first(loop, snapshot, outcome, renewal)
    elif renewal is not None:
        # A person need not approve what is in force.
        outcome, mode = outcome._replace(decision=renewal), Mode.AUTO
    watch.lap("decide")

    # 6. Write the decision down, with what the policy wants to remember.
    plan_id = await loop.store.record_plan(record_of(snapshot, outcome, mode))
    watch.lap("record")

    # 7. Push it where the mode says so.
    return await _finish(loop, snapshot, outcome.decision, plan_id, watch, mode=mode)


async def _resume(loop: Loop, snapshot: Snapshot) -> None:
    """A proposal outlives the process that made it, where a person can still approve it; older ones are withdrawn."""
    if loop.has_resumed:
        return
    loop.proposed = snapshot.proposal
    keep = None if snapshot.proposal is None else snapshot.proposal.plan_id
    await loop.store.withdraw_proposals(keep=keep, at=snapshot.at)
    loop.has_resumed = True


async def _record_nodes(loop: Loop, snapshot: Snapshot) -> None:
    """What changed about nodes and governors goes to the audit."""
    await _record_silence(loop, snapshot, silent_nodes(snapshot))
    await _record_requests(loop, snapshot)
    if drained := drained_nodes(snapshot):
        await loop.store.note_drained(drained_events(snapshot.at, drained))


async def _decide(
    loop: Loop, snapshot: Snapshot, demands: tuple[Demand, ...], rows: ModelRows
) -> tuple[DecidedOn, Mode | None]:
    """What is decided for services, with tasks on what they leave over, and how far the loop may go."""
    points = await asyncio.to_thread(loop.planned_points.of, snapshot)
    outcome = await decide_with_fallbacks(
        loop.solver,
        snapshot,
        demands,
        points=points,
        promises_may_break=loop.promises_may_break,
    )
    messages = (
        *describe_degraded(snapshot.state.services, snapshot.degradations),
        *describe_late(snapshot),
        *rows.messages(outcome.decision.plan),
    )
    complete = await asyncio.to_thread(
        with_leftovers,
        snapshot,
        with_messages(outcome.decision, messages),
        outcome.problem,
        # To serve comes before the fear of another silence; tasks can wait.
        without_starts_on(outcome.state, snapshot.flapping),
        layers=loop.layers,
        promises_may_break=loop.promises_may_break,
    )
    await record_refused_tasks(loop, snapshot, complete.decision)
    kept = _unless_proposed(loop, snapshot, complete)
    return outcome._replace(decision=kept), complete.mode if kept.bound else None


async def _tell_first(
    loop: Loop, snapshot: Snapshot, outcome: DecidedOn, renewal: Decision
) -> tuple[Snapshot, DecidedOn]:
    """Put the plan in force there again; what is decided, which waits for a person, then follows on that."""
    assert renewal.bound is not None
    record = record_of(snapshot, outcome._replace(decision=renewal), Mode.AUTO)
    plan_id = await loop.store.record_plan(record)
    pushed = await _push_or_propose(loop, snapshot, renewal.bound, plan_id, Mode.AUTO)
    if pushed.state == "target":
        snapshot = replace(snapshot, target=renewal.bound)
        decision = following(outcome.decision, renewal.bound)
        outcome = outcome._replace(decision=decision)
    return snapshot, outcome


def _unless_proposed(
    loop: Loop, snapshot: Snapshot, complete: CompleteDecision
) -> Decision:
    """The decision, or none where a person is still to decide on the plan that waits."""
    waits, decision = loop.proposed, complete.decision
    # What acts by itself, as tasks may, does not wait for a proposal.
    if waits is None or complete.mode in (None, Mode.AUTO):
        return decision
    assert decision.bound is not None
    reason = why_it_stays(waits, snapshot, decision.bound)
    if reason is None:
        loop.proposed = None
        return decision
    return replace(decision, state="kept", bound=None, reason=reason)


async def _held(
    loop: Loop, snapshot: Snapshot, reason: Reason, watch: Stopwatch
) -> TickOutcome:
    """Do nothing, and say why, once per kind of reason (its figures may change without a new line)."""
    message = describe_hold(reason)
    if reason.kind != loop.held_for:
        loop.held_for = HoldKind(reason.kind)
        log.warning("loop holds", reason=message)
        await loop.store.add_events(held_event(snapshot.at, reason))
    return TickOutcome(
        state=None,
        reason=message,
        generation=_generation(snapshot),
        seconds=watch.done(),
    )


async def _record_silence(
    loop: Loop, snapshot: Snapshot, silent: tuple[str, ...]
) -> None:
    if silent == loop.silent:
        return
    fell = [node for node in silent if node not in loop.silent]
    loop.telemetry.note_silences(fell, snapshot.at)
    events = silence_events(
        snapshot.at,
        before=loop.silent,
        after=silent,
        flapping=loop.telemetry.flapping(snapshot),
    )
    log.warning(
        "node silence changes",
        silent=len(silent),
        changed=[event.subject for event in events][:10],
    )
    # It is unknown what replicas use on a node that has just fallen silent.
    await loop.store.lose_sight(fell, snapshot.at)
    await loop.store.add_events(*events)
    loop.silent = silent
    # A plan that waits puts work on a node that is gone; one that was made without the node stays.
    if loop.proposed and any(gpu.node in fell for gpu in loop.proposed.bound.gpus):
        loop.proposed = None


async def _record_requests(loop: Loop, snapshot: Snapshot) -> None:
    asking = asking_gpus(snapshot)
    events = repartition_events(snapshot.at, before=loop.asking, after=asking)
    if events:
        log.warning("governors ask for another partition", gpus=asking[:10])
        await loop.store.add_events(*events)
    loop.asking = asking


async def record_refused_tasks(
    loop: Loop, snapshot: Snapshot, decision: Decision
) -> None:
    """Once for each as long as it is refused in every tick: the fill proposes the same again."""
    new = [
        entry for entry in decision.refused_tasks if entry[0] not in loop.refused_tasks
    ]
    if new:
        await loop.store.add_events(*refused_events(new, snapshot.at))
    loop.refused_tasks = frozenset(name for name, _ in decision.refused_tasks)


async def _push_approved(
    loop: Loop, snapshot: Snapshot, watch: Stopwatch
) -> TickOutcome:
    assert snapshot.approved is not None
    assert snapshot.approved_id is not None
    # Whether it wins or loses, it no longer waits: the next plan is made from what is in force then.
    loop.proposed = None
    plan_id = snapshot.approved_id
    won = await push_target(loop.store, snapshot, snapshot.approved, plan_id)
    return TickOutcome(
        state="target" if won else "lost",
        reason="" if won else _LOST,
        generation=snapshot.approved.generation if won else _generation(snapshot),
        plan_id=snapshot.approved_id,
        seconds=watch.done(),
    )


class _Pushed(NamedTuple):
    """What became of a decision after it was written down."""

    state: PlanState
    reason: str
    generation: int


async def _finish(
    loop: Loop,
    snapshot: Snapshot,
    decision: Decision,
    plan_id: int,
    watch: Stopwatch,
    *,
    mode: Mode | None,
) -> TickOutcome:
    # A decision without a bound plan, kept or refused, is over once it is written down: the target stays.
    pushed = _Pushed(decision.state, decision.reason, _generation(snapshot))
    if decision.state == "refused":
        log.error("plan refused", plan_id=plan_id, reason=decision.reason)
        await loop.store.add_events(
            refused_event(snapshot.at, plan_id, decision.reason)
        )
    if decision.bound is not None and mode is not None:
        pushed = await _push_or_propose(loop, snapshot, decision.bound, plan_id, mode)
        # Making commands takes time on a large fleet, whether or not the push wins; advice makes none.
        if pushed.state != "proposed":
            watch.lap("push")
    return TickOutcome(
        state=pushed.state,
        reason=pushed.reason or decision.reason,
        generation=pushed.generation,
        plan_id=plan_id,
        cost_usd_per_hour=decision.report.cost_usd_per_hour,
        seconds=watch.done(),
        policy=snapshot.settings.policy,
        # The outcome goes through a pipe to the API's process after every tick, where prices are not read, of which
        # every service has one.
        report=replace(decision.report, prices=None),
        unserved_rps=unserved_rps(decision.plan),
        violations=decision.violations,
    )


async def _push_or_propose(
    loop: Loop, snapshot: Snapshot, bound: BoundPlan, plan_id: int, mode: Mode
) -> _Pushed:
    """Push the plan in mode auto; in any other mode it waits for a person, or is advice only."""
    if mode is not Mode.AUTO:
        # Remembered, so that the next ticks do not propose the same to the person again.
        loop.proposed = Proposal(
            plan_id=plan_id,
            bound=bound,
            at=snapshot.at,
            catalogue_revision=snapshot.state.catalogue_revision,
            policy_version=snapshot.settings.version,
        )
        reason = f"mode {mode}: the plan is not pushed" + (
            " before a person approves" if mode is Mode.APPROVE else ""
        )
        return _Pushed("proposed", reason, _generation(snapshot))
    if await push_target(loop.store, snapshot, bound, plan_id):
        loop.given.note(snapshot, bound.generation)
        return _Pushed("target", "", bound.generation)
    # Nothing is lost: the next tick sees what came first, and decides on top of it.
    return _Pushed("lost", _LOST, _generation(snapshot))


# The audit and the plan itself say which.
_LOST = "what the plan was made from changed, or another plan goes first; the next tick decides again"


def _generation(snapshot: Snapshot) -> int:
    """The generation in force; 0 = none."""
    return snapshot.target.generation if snapshot.target else 0
