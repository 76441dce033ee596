"""The control loop: one tick in numbered steps, and nothing else.

Start-up, steady state and recovery run the same `tick()`. It takes no input but the store; the API writes rows and
wakes it. A crash between two steps loses nothing: whatever is not written is decided again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from app.base.clock import ControlClock
from app.loop.budgets import words_on_degraded
from app.loop.deliver import effective_mode, make_commands
from app.loop.events import (
    describe_hold,
    held_event,
    pushed_event,
    refused_event,
    refused_events,
    repartition_events,
    silence_events,
)
from app.loop.forecast import make_demands, without_headroom, without_reserves
from app.loop.observe import (
    HeardNodes,
    HoldKind,
    asking_gpus,
    observe,
    silent_nodes,
    without_silent_nodes,
)
from app.loop.plan import Decision, decide, same_state, with_words
from app.loop.predict import PlannedPoints, cordoned_gpus, make_problem
from app.loop.tasks import tasks_of, tasks_to_fill, with_tasks
from app.solver.process import Solver
from app.store.store import PlanRecord, PlanState, Snapshot, Store
from solvers.policies.registry import fill_of
from solvers.predict.data.samples import LayerCounts
from solvers.types.outcome import PlanReport, Reason, Violation
from solvers.types.plan import WANT_OF_GPUS, BoundPlan, Plan
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, Demand, Mode

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
    proposed: "Proposal | None" = None
    planned_points: PlannedPoints = field(default_factory=PlannedPoints)
    layers: tuple[LayerCounts, ...] = ()
    """Of training networks, by which training that was never profiled is judged."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever decides in this process, the tick or the dispatcher of jobs, so that neither's plan is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The newest plan that waits for a person."""

    plan_id: int
    bound: BoundPlan
    catalogue_revision: int
    """Approved at any other revision, it would lose."""


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
    """Of the decision, without prices; None: there was none."""
    unserved_rps: float = 0.0
    violations: tuple[Violation, ...] = ()


async def tick(loop: Loop) -> TickOutcome:
    """One round: read, hold or decide, write, push."""
    watch = _Stopwatch(loop.now_s)
    # 1. Read everything in one snapshot.
    snapshot = await loop.store.load_snapshot(loop.clock.now())
    watch.lap("snapshot")
    # 2. Hold when the operator or the telemetry says so.
    reason = loop.telemetry.operator_or_telemetry(snapshot)
    if reason is not None:
        return await _held(loop, snapshot, reason, watch)
    loop.held_for = None
    # 3. Push a plan that a person approved meanwhile.
    if snapshot.approved is not None and snapshot.approved_id is not None:
        return await _push_approved(loop, snapshot, watch)
    # 4. Observe and forecast; GPUs of silent nodes are planned without.
    silent = silent_nodes(snapshot)
    await _tell_silence(loop, snapshot, silent)
    await _tell_requests(loop, snapshot)
    state = without_silent_nodes(snapshot.state, silent)
    demands = await asyncio.to_thread(loop.forecast, snapshot)
    watch.lap("forecast")
    # 5. Predict, plan, check, bind; fill what is left over with tasks.
    problem, decision, demands = await _decide(loop, snapshot, state, demands)
    decision = with_words(
        decision, words_on_degraded(state.services, snapshot.degradations)
    )
    fill = fill_of(snapshot.settings.policy)
    decision = await asyncio.to_thread(
        with_tasks,
        decision,
        problem,
        replace(state, tasks=tasks_to_fill(snapshot, state.tasks)),
        fill=fill,
        points=snapshot.points,
        target=snapshot.target,
        layers=loop.layers,
        promises_may_break=loop.promises_may_break,
    )
    await tell_refused_tasks(loop, snapshot, decision)
    decision = _unless_proposed(loop, snapshot, decision)
    watch.lap("decide")
    # 6. Write the decision down, then what the policy wants to remember.
    record = PlanRecord(
        at=snapshot.at,
        state=decision.state,
        policy_version=snapshot.settings.version,
        catalogue_revision=state.catalogue_revision,
        plan=decision.plan,
        report=decision.report,
        bound=decision.bound,
        demands=demands,
        problem=None if decision.state == "kept" else problem,
        violations=decision.violations,
        reason=decision.reason,
    )
    plan_id = await loop.store.record_plan(record)
    await _save_memory(loop.store, snapshot, decision)
    watch.lap("record")
    # 7. Push it where the mode says so.
    return await _finish(loop, snapshot, decision, plan_id, watch)


async def _decide(
    loop: Loop, snapshot: Snapshot, state: ClusterState, demands: tuple[Demand, ...]
) -> tuple[Problem, Decision, tuple[Demand, ...]]:
    """What is decided on which problem and demands; where GPUs are short without reserves, and then without headroom.

    What is kept for bursts must not take room from what is there, nor one service's headroom what another will need.
    """
    problem, decision = await _decide_on(loop, snapshot, state, demands)
    if decision.plan.unserved and any(demand.reserve_rps for demand in demands):
        demands = without_reserves(demands)
        problem, decision = await _decide_on(loop, snapshot, state, demands)
    if _lacks_foreseen(decision.plan, demands):
        demands = without_headroom(demands)
        problem, decision = await _decide_on(loop, snapshot, state, demands)
    return problem, decision, demands


def _lacks_foreseen(plan: Plan, demands: tuple[Demand, ...]) -> bool:
    """Whether a plan leaves out more than headroom for want of GPUs, and there is headroom to give."""
    headroom_rps = {demand.service: demand.headroom_rps for demand in demands}
    return any(headroom_rps.values()) and any(
        entry.reason in WANT_OF_GPUS
        and entry.rate_rps > headroom_rps.get(entry.service, 0.0)
        for entry in plan.unserved
    )


async def _decide_on(
    loop: Loop, snapshot: Snapshot, state: ClusterState, demands: tuple[Demand, ...]
) -> tuple[Problem, Decision]:
    """The problem and what the policy makes of it; without cordoned GPUs where a plan with them finds no place."""
    points = await asyncio.to_thread(loop.planned_points.of, snapshot)
    for without_cordoned in (False, True):
        problem = await asyncio.to_thread(
            make_problem,
            state,
            points,
            demands,
            snapshot.settings,
            target=snapshot.target,
            without_cordoned=without_cordoned,
            at=snapshot.at,
        )
        decision = await decide(
            loop.solver,
            problem,
            state,
            observe(snapshot),
            settings=snapshot.settings,
            target=snapshot.target,
            memory=snapshot.memory,
            group_memory=snapshot.group_memory,
            promises_may_break=loop.promises_may_break,
        )
        if not (decision.is_without_place and cordoned_gpus(state)):
            break
    return problem, decision


async def _save_memory(store: Store, snapshot: Snapshot, decision: Decision) -> None:
    """What policies want to remember, where it is not what they remembered."""
    if decision.memory != snapshot.memory:
        await store.save_memory(snapshot.settings.policy, decision.memory)
    for group in snapshot.settings.groups:
        before = snapshot.group_memory.get(group.name)
        after = decision.group_memory.get(group.name, before)
        if after != before:
            await store.save_memory(group.memory_key, after)


def _unless_proposed(loop: Loop, snapshot: Snapshot, decision: Decision) -> Decision:
    """The decision, or none where the same plan was proposed before and could still be pushed."""
    waiting = loop.proposed
    if waiting is None or decision.bound is None:
        return decision
    made_from = (
        snapshot.target.generation if snapshot.target else 0,
        snapshot.state.catalogue_revision,
    )
    is_fresh = made_from == (waiting.bound.parent, waiting.catalogue_revision)
    is_same = same_state(decision.bound, waiting.bound) and tasks_of(
        decision.bound
    ) == tasks_of(waiting.bound)
    if not is_fresh or not is_same:
        loop.proposed = None
        return decision
    return replace(
        decision,
        state="kept",
        bound=None,
        reason=f"plan {waiting.plan_id} proposed this already",
    )


async def _held(
    loop: Loop, snapshot: Snapshot, reason: Reason, watch: "_Stopwatch"
) -> TickOutcome:
    """Do nothing, and say why, once per kind of reason (its figures may change without a new line)."""
    words = describe_hold(reason)
    if reason.kind != loop.held_for:
        loop.held_for = HoldKind(reason.kind)
        log.warning("loop holds", reason=words)
        await loop.store.add_events(held_event(snapshot.at, reason))
    generation = snapshot.target.generation if snapshot.target else 0
    return TickOutcome(
        state=None, reason=words, generation=generation, seconds=watch.done()
    )


async def _tell_silence(
    loop: Loop, snapshot: Snapshot, silent: tuple[str, ...]
) -> None:
    if silent != loop.silent:
        events = silence_events(snapshot.at, before=loop.silent, after=silent)
        log.warning(
            "node silence changes",
            silent=len(silent),
            changed=[event.subject for event in events][:10],
        )
        await loop.store.lose_sight(
            [node for node in silent if node not in loop.silent], snapshot.at
        )
        await loop.store.add_events(*events)
        loop.silent = silent


async def _tell_requests(loop: Loop, snapshot: Snapshot) -> None:
    asking = asking_gpus(snapshot)
    events = repartition_events(snapshot.at, before=loop.asking, after=asking)
    if events:
        log.warning("governors ask for another partition", gpus=asking[:10])
        await loop.store.add_events(*events)
    loop.asking = asking


async def tell_refused_tasks(
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
    loop: Loop, snapshot: Snapshot, watch: "_Stopwatch"
) -> TickOutcome:
    assert snapshot.approved is not None
    assert snapshot.approved_id is not None
    loop.proposed = None
    commands = make_commands(snapshot.approved, snapshot.state)
    won = await loop.store.push_target(
        snapshot.approved_id, snapshot.approved, commands, snapshot.at
    )
    if won:
        await loop.store.add_events(
            pushed_event(snapshot, snapshot.approved, snapshot.approved_id)
        )
    parent = snapshot.target.generation if snapshot.target else 0
    return TickOutcome(
        state="target" if won else "lost",
        reason=""
        if won
        else "the fleet or the target changed since the plan was made; a new one follows",
        generation=snapshot.approved.generation if won else parent,
        plan_id=snapshot.approved_id,
        seconds=watch.done(),
    )


async def _finish(
    loop: Loop,
    snapshot: Snapshot,
    decision: Decision,
    plan_id: int,
    watch: "_Stopwatch",
) -> TickOutcome:
    state: PlanState = decision.state
    generation = snapshot.target.generation if snapshot.target else 0
    reason = decision.reason
    if decision.state == "refused":
        log.error("plan refused", plan_id=plan_id, reason=decision.reason)
        await loop.store.add_events(
            refused_event(snapshot.at, plan_id, decision.reason)
        )
    mode = _mode(snapshot, decision)
    if decision.bound is not None and mode is not Mode.AUTO:
        loop.proposed = Proposal(
            plan_id=plan_id,
            bound=decision.bound,
            catalogue_revision=snapshot.state.catalogue_revision,
        )
        reason = f"mode {mode}: the plan is not pushed" + (
            " before a person approves" if mode is Mode.APPROVE else ""
        )
    if decision.bound is not None and mode is Mode.AUTO:
        commands = await asyncio.to_thread(
            make_commands, decision.bound, snapshot.state
        )
        won = await loop.store.push_target(
            plan_id, decision.bound, commands, snapshot.at
        )
        watch.lap("push")
        if won:
            await loop.store.add_events(pushed_event(snapshot, decision.bound, plan_id))
            state, generation = "target", decision.bound.generation
        else:
            state = "lost"
            reason = "the fleet or the target changed, or a person approved another plan; the next tick decides again"
    return TickOutcome(
        state=state,
        reason=reason,
        generation=generation,
        plan_id=plan_id,
        cost_usd_per_hour=decision.report.cost_usd_per_hour,
        seconds=watch.done(),
        policy=snapshot.settings.policy,
        report=replace(decision.report, prices=None),
        unserved_rps=sum(entry.rate_rps for entry in decision.plan.unserved),
        violations=decision.violations,
    )


def _mode(snapshot: Snapshot, decision: Decision) -> Mode:
    if decision.bound is None:
        return snapshot.settings.mode
    return effective_mode(
        snapshot.settings, snapshot.state, snapshot.target, decision.bound
    )


class _Stopwatch:
    """Laps of one tick."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began = self._last = now_s()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now_s()
        self._laps[name] = now - self._last
        self._last = now

    def done(self) -> dict[str, float]:
        return {**self._laps, "total": self._now_s() - self._began}
