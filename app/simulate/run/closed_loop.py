"""A whole cluster in one process: control loop, agents and simulated GPUs, around a store, on a clock that jumps.

Simulations, benchmarks and tests keep everything in memory; the demo keeps it in PostgreSQL, where people see it.
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from agents.base.protocol import Observation, SyncReply
from agents.daemon.loop import AgentSettings, NodeAgent
from agents.sim.cluster import ClusterScript, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.pace import SimulatedWorld
from agents.sim.spec import SimulatedNodeSpec
from agents.sync.ledger import Ledger
from agents.sync.transport import DirectTransport
from app.base.clock import ControlClock
from app.catalogue.catalogue import load_actors, load_training_layers
from app.dispatch.dispatcher import JobDispatcher
from app.dispatch.kernel_classes import load_kernel_ratios
from app.learn.choose_forecasts import JUDGED_S, OPENING_S, REJUDGE_S, HeardLoad
from app.learn.corrections import PERIOD_S as LEARNING_PERIOD_S
from app.learn.corrections import OnlineLearner, learn_once
from app.loop.fill import is_used
from app.loop.forecast import make_demands, make_series
from app.loop.observe import age_s
from app.loop.tick import Loop, TickOutcome, tick
from app.simulate.run.timer import Timer
from app.solver.process import Solver
from app.store.launch_times import LaunchTimes, usual_launch_s
from app.store.memory_store import MemoryStore
from app.store.store import PolicySettings, ServiceWindow, Snapshot, Store
from app.store.trained_actors import wants_actor
from solvers.forecast.choose_technique import TechniqueChoice
from solvers.forecast.room import Outcomes, Room
from solvers.types.plan import BoundPlan
from solvers.types.problem import OperatingPoints
from solvers.types.state import Demand, Gpu, GpuType, Node, NodeId, Service, gpu_id

Ingest: TypeAlias = Callable[[Observation], Awaitable[int]]
"""Makes an observation durable; returns the sequence number that is acknowledged."""

_TICK_S = 1e-3
"""Time passes by so much at least, so that it does pass whatever is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What a simulated cluster consists of and what it is asked to do."""

    nodes: tuple[SimulatedNodeSpec, ...]
    gpu_types: tuple[GpuType, ...]
    points: tuple[OperatingPoints, ...]
    services: tuple[Service, ...]
    scenario: ClusterScript
    settings: PolicySettings
    agent_period_s: float = 5.0
    handover_s: float = 15.0

    def __post_init__(self) -> None:
        if self.settings.window_s < self.agent_period_s:
            raise ValueError(
                f"agents report every {self.agent_period_s:g} s, so windows of {self.settings.window_s:g} s would "
                "count several times what came in; make settings.window_s at least as long"
            )


class ClosedLoop:
    """The cluster; call `step` once per agent period and `tick_if_due` after it, with `pass_time` between.

    As on real nodes, a new command reaches the agents at once, and an agent acts when a replica becomes ready. Time may
    also pass on the clock alone; governors and agents then act only when `step` is called.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        world: SimulatedWorld,
        clock: ControlClock,
        solver: Solver,
        promises_may_break: bool = False,
        store: Store | None = None,
        ingest: Ingest | None = None,
        room: Room | None = None,
    ) -> None:
        """`room`: of all services at all times, in place of what is learned. `store`: what it remembers in, in place of
        its own in memory; the cluster must be known there already, and its maker calls `wake`. `ingest`: takes
        what agents observe; None: one by one into the store.
        """
        self.clock = clock
        self.store = make_store(plan, clock)
        self._begun_s = clock.now_s()
        self.ticks = Timer(plan.settings.period_s, first_s=plan.agent_period_s)
        """Those of the period, in seconds since the loop was made. The first one comes after the first reports: without
        any it could only hold."""
        self._is_woken = False
        self.store.on_wake = self.wake
        self.cluster = SimulatedCluster(
            plan.nodes,
            plan.scenario,
            world=world,
            clock=clock,
        )
        self._known_target: BoundPlan | None = None
        self._launch_times = LaunchTimes()
        self._gpus = {gpu.id: gpu for spec in plan.nodes for gpu in gpus_of(spec)}
        self._ingest = ingest or self._ingest_one
        self.loop = Loop(
            store=store or self.store,
            solver=solver,
            clock=clock,
            promises_may_break=promises_may_break,
            forecast=RememberedForecast(self._launch_times, room),
            layers=load_training_layers(),
        )
        self.dispatcher = JobDispatcher(
            store=self.loop.store,
            clock=clock,
            turn=self.loop.turn,
            kernel_ratios=load_kernel_ratios(),
            layers=self.loop.layers,
        )
        self._dispatches_jobs = is_used(plan.settings)
        self.learner = OnlineLearner(store=self.loop.store, clock=clock)
        self._learned_at_s = clock.now_s()
        self.agents = [self._make_agent(node.name, plan) for node in plan.nodes]

    def wake(self) -> None:
        """Something asks for a tick before the next one is due, as a rate above what was planned for does."""
        self._is_woken = True

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass; agents govern and enforce when that is due, as their own loops would."""
        until_s = self.clock.now_s() + seconds
        while (now_s := self.clock.now_s()) < until_s:
            launches_s = self.cluster.next_launches_s()
            # From event to event, not in small steps: an idle cluster's hour costs nothing.
            due_s = min(
                [
                    until_s,
                    *(agent.next_govern_s for agent in self.agents),
                    *launches_s.values(),
                ]
            )
            await self.clock.sleep(max(due_s - now_s, min(_TICK_S, until_s - now_s)))
            await self._govern()
            # A replica that became ready can take over: its agent lets the old one go now, not a period later.
            for agent in self.agents:
                if launches_s.get(agent.settings.node, math.inf) <= self.clock.now_s():
                    await agent.enforce()

    async def _govern(self) -> None:
        for agent in self.agents:
            if agent.next_govern_s <= self.clock.now_s():
                await agent.govern()

    async def step(self) -> None:
        """Every agent governs where that is due, enforces, observes and syncs once; then jobs are dispatched."""
        self._known_target = None
        await self._govern()
        # Not one after the other: a store that is slow to commit takes what all of them observed at once.
        await asyncio.gather(*(agent.step() for agent in self.agents))
        if self._dispatches_jobs and await self.dispatcher.round():
            await self._deliver_commands()

    async def tick_if_due(self) -> TickOutcome | None:
        """A round where the period's is due, or where something woke the loop after its first one; else None."""
        # As a controller does: whatever woke it is answered at once, and the next period's tick comes all the same.
        is_due = self.ticks.rings(self.clock.now_s() - self._begun_s)
        is_woken = self._is_woken or await self._has_new_silence()
        if is_due or (is_woken and self.ticks.rung):
            return await self.tick()
        return None

    async def _has_new_silence(self) -> bool:
        now, due_at = self.clock.now(), self.loop.telemetry.silence_due_at
        if due_at is None or now <= due_at:
            return False
        snapshot = await self.loop.store.load_snapshot(now)
        return self.loop.telemetry.has_new_silence(snapshot)

    async def tick(self) -> TickOutcome:
        """One round of the control loop, after one of learning where that is due."""
        if self.clock.now_s() - self._learned_at_s >= LEARNING_PERIOD_S:
            self._learned_at_s = self.clock.now_s()
            await learn_once(self.learner)
        self._is_woken = False
        outcome = await tick(self.loop)
        if outcome.state == "target":
            await self._deliver_commands()
        return outcome

    async def _deliver_commands(self) -> None:
        """Give every agent that can be reached its new command, as the answer to a waiting sync."""
        for agent in self.agents:
            node = agent.settings.node
            # A lost node gets its command with the first sync after it returns.
            if self.cluster.is_lost(node, self.clock.now_s()):
                continue
            generation = agent.command.generation if agent.command else 0
            command = await self.loop.store.command_for(node, generation)
            if command is not None:
                await agent.consider(command)
                await agent.enforce()

    async def _sync(self, observation: Observation, wait_s: float) -> SyncReply:  # noqa: ARG002  answers at once
        acknowledged = await self._ingest(observation)
        self._launch_times.take(observation, self._gpus)
        return SyncReply(
            boot=observation.boot,
            acknowledged=acknowledged,
            server_time_s=self.clock.now_s(),
            command=await self.loop.store.command_for(
                observation.node, observation.generation
            ),
            ready_elsewhere=await self._ready_elsewhere(observation),
        )

    async def _ready_elsewhere(self, observation: Observation) -> tuple[str, ...]:
        """Services that a node awaits and whose replicas on other nodes are ready, as the control plane tells it."""
        if not observation.awaited:
            return ()
        # Once a step: of a store on a disk a snapshot is dear, and many nodes may ask.
        if self._known_target is None:
            snapshot = await self.loop.store.load_snapshot(self.clock.now())
            self._known_target = snapshot.target
        target = self._known_target
        if target is None:
            return ()
        missing = {
            replica.service
            for gpu in target.gpus
            if gpu.node != observation.node
            for replica in gpu.replicas
            if not self.cluster.node(gpu.node).is_ready(replica.id)
        }
        return tuple(sorted(set(observation.awaited) - missing))

    async def _ingest_one(self, observation: Observation) -> int:
        result = await self.loop.store.ingest((observation,), self.clock.now())
        return result.acknowledged.get((observation.node, observation.boot), 0)

    def _make_agent(self, node: str, plan: ClusterPlan) -> NodeAgent:
        return NodeAgent(
            AgentSettings(
                node=node,
                boot="simulated",
                period_s=plan.agent_period_s,
                migration_limit_s=plan.handover_s,
            ),
            SimulatedDevice(self.cluster, node),
            transport=DirectTransport(
                self._sync,
                is_lost=lambda report: self.cluster.is_lost(
                    node, report.window_start_s + report.window_s
                ),
            ),
            clock=self.clock,
            ledger=Ledger(None),
        )


def make_store(plan: ClusterPlan, clock: ControlClock) -> MemoryStore:
    """A store that knows the cluster's inventory."""
    store = MemoryStore(settings=plan.settings)
    store.put_gpu_types(plan.gpu_types)
    store.put_points(plan.points)
    for spec in plan.nodes:
        store.put_node(Node(id=NodeId(spec.name)), gpus_of(spec), at=clock.now())
    store.put_services(plan.services)
    # The weights are files of some MB, which most policies have no use for.
    if wants_actor(plan.settings):
        store.actors.update(load_actors())
    return store


def gpus_of(spec: SimulatedNodeSpec) -> Sequence[Gpu]:
    """The GPUs of a simulated node as the control plane knows them."""
    return [
        Gpu(
            id=gpu_id(spec.name, index),
            node=NodeId(spec.name),
            gpu_type=gpu.gpu_type,
            index=index,
        )
        for index, gpu in enumerate(spec.gpus)
    ]


@dataclass(slots=True)
class RememberedForecast:
    """Makes the demands of one snapshot after the other; rooms are renewed every REJUDGE_S, or are as given."""

    _launch_times: LaunchTimes = field(default_factory=LaunchTimes)
    room: Room | None = None
    """All services have it at all times, in place of what is learned."""
    _windows: dict[str, deque[ServiceWindow]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    _since: dict[str, datetime] = field(default_factory=dict)
    """The start of each service's first window."""
    _bursting: set[str] = field(default_factory=set)
    """Projects whose load was seen to burst."""
    _rooms: Mapping[str, Room] = field(default_factory=dict)
    _judged_s: float | None = None

    def __call__(self, snapshot: Snapshot) -> tuple[Demand, ...]:
        """One Demand per service."""
        self._remember(snapshot)
        now_s = snapshot.at.timestamp()
        if self.room is not None:
            self._rooms = {each.name: self.room for each in snapshot.state.services}
        # As often as a real control plane judges each service again.
        elif self._judged_s is None or now_s - self._judged_s >= REJUDGE_S:
            self._judged_s, self._rooms = now_s, self._judge(snapshot)
        choices = {
            name: replace(snapshot.choices.get(name, TechniqueChoice()), room=room)
            for name, room in self._rooms.items()
        }
        return make_demands(replace(snapshot, choices={**snapshot.choices, **choices}))

    def _remember(self, snapshot: Snapshot) -> None:
        for window in snapshot.windows:
            mine = self._windows[window.service]
            # Agents report after a window is over: the newest two may be incomplete.
            is_complete = age_s(window, snapshot.at) >= 2.0 * window.window_s
            # Snapshots overlap: each window is kept once, in the order of time.
            if is_complete and (not mine or window.start > mine[-1].start):
                mine.append(window)
                self._since.setdefault(window.service, window.start)
        for mine in self._windows.values():
            while mine and age_s(mine[0], snapshot.at) > JUDGED_S:
                mine.popleft()

    def _judge(self, snapshot: Snapshot) -> Mapping[str, Room]:
        """The room of each service that was heard."""
        services = [
            each for each in snapshot.state.services if self._windows.get(each.name)
        ]
        loads = {each.name: self._load(each, snapshot.settings) for each in services}
        self._bursting |= {
            each.project for each in services if loads[each.name].has_burst
        }
        return {
            each.name: loads[each.name].room(bursts=each.project in self._bursting)
            for each in services
        }

    def _load(self, service: Service, settings: PolicySettings) -> HeardLoad:
        windows = self._windows[service.name]
        launch_s = usual_launch_s(
            self._launch_times.of(service.name), is_model=service.llm is not None
        )
        return HeardLoad(
            windows=make_series(windows),
            outcomes=self._outcomes(service.name, launch_s),
            percentile=service.slo.target(settings.target_attainment),
            scaling=service.scaling,
            launch_s=launch_s,
        )

    def _outcomes(self, service: str, launch_s: float) -> Outcomes:
        """What became of the requests of the last hour, but for those of the opening."""
        begin = self._since[service] + timedelta(seconds=OPENING_S + launch_s)
        counted = [each for each in self._windows[service] if each.start >= begin]
        finished = sum(each.served + each.rejected for each in counted)
        return Outcomes(
            finished=finished,
            late=finished - sum(each.in_slo for each in counted),
            heard_s=sum(each.window_s for each in counted),
        )
