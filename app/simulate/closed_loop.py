"""A whole cluster in one process: control loop, agents and simulated GPUs, around a store in memory.

Used by closed-loop tests (on a clock that they move) and as the baseline that the demo runs beside the real control
plane (on the demo's own clock).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agents.agent import AgentSettings, NodeAgent
from agents.ledger import Ledger
from agents.protocol import Observation, SyncReply
from agents.sim.cluster import Scenario, SimulatedCluster
from agents.sim.device import SimulatedDevice
from agents.sim.pace import World
from agents.sim.spec import NodeSpec
from agents.transport import DirectTransport
from app.catalogue import load_actors, load_training_layers
from app.catalogue.kernel_classes import load_kernel_ratios
from app.clock import Clock
from app.control.actors import wants_actor
from app.control.dispatch import Dispatcher
from app.control.dispatch_jobs import is_used
from app.control.learn import PERIOD_S as LEARNING_PERIOD_S
from app.control.learn import Learner, learn_once
from app.control.loop import Loop, TickOutcome, tick
from app.control.memory_store import MemoryStore
from app.control.store import PolicySettings
from app.control.worker import Solver
from app.simulate.remembered_forecast import RememberedForecast
from solvers.problem import OperatingPoints
from solvers.state import Gpu, GpuType, Node, NodeId, Service, gpu_id

_TICK_S = 1e-3
"""Time passes by so much at least, so that it does pass whatever is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What a simulated cluster consists of and what it is asked to do."""

    nodes: tuple[NodeSpec, ...]
    gpu_types: tuple[GpuType, ...]
    points: tuple[OperatingPoints, ...]
    services: tuple[Service, ...]
    scenario: Scenario
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
    """The cluster; call `step` once per agent period and `tick` once per control period, with `pass_time` between.

    As on real nodes, a new command reaches the agents at once, and an agent acts when a replica becomes ready. Time may
    also pass on the clock alone; governors and agents then act only when `step` is called.
    """

    def __init__(
        self, plan: ClusterPlan, *, world: World, clock: Clock, solver: Solver, promises_may_break: bool = False
    ) -> None:
        self.clock = clock
        self.store = make_store(plan, clock)
        self.cluster = SimulatedCluster(plan.nodes, plan.scenario, world=world, clock=clock)
        self.loop = Loop(
            store=self.store,
            solver=solver,
            clock=clock,
            promises_may_break=promises_may_break,
            forecast=RememberedForecast(),
            layers=load_training_layers(),
        )
        self.dispatcher = Dispatcher(
            store=self.store,
            clock=clock,
            turn=self.loop.turn,
            kernel_ratios=load_kernel_ratios(),
            layers=self.loop.layers,
        )
        self.learner = Learner(store=self.store, clock=clock)
        self._learned_at_s = clock.now_s()
        self.agents = [self._make_agent(node.name, plan) for node in plan.nodes]

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass; agents govern and enforce when that is due, as their own loops would."""
        until_s = self.clock.now_s() + seconds
        while (now_s := self.clock.now_s()) < until_s:
            launches_s = self.cluster.next_launches_s()
            due_s = min([until_s, *(agent.next_govern_s for agent in self.agents), *launches_s.values()])
            await self.clock.sleep(max(due_s - now_s, min(_TICK_S, until_s - now_s)))
            await self._govern()
            for agent in self.agents:
                if launches_s.get(agent.settings.node, math.inf) <= self.clock.now_s():
                    await agent.enforce()

    async def _govern(self) -> None:
        for agent in self.agents:
            if agent.next_govern_s <= self.clock.now_s():
                await agent.govern()

    async def step(self) -> None:
        """Every agent governs where that is due, enforces, observes and syncs once; then jobs are dispatched."""
        await self._govern()
        for agent in self.agents:
            await agent.step()
        if is_used(self.store.settings) and await self.dispatcher.round():
            await self._hand_over()

    async def tick(self) -> TickOutcome:
        """One round of the control loop, after one of learning where that is due."""
        if self.clock.now_s() - self._learned_at_s >= LEARNING_PERIOD_S:
            self._learned_at_s = self.clock.now_s()
            await learn_once(self.learner)
        outcome = await tick(self.loop)
        if outcome.state == "target":
            await self._hand_over()
        return outcome

    async def _hand_over(self) -> None:
        """Give every agent that can be reached its new command, as the answer to a waiting sync."""
        for agent in self.agents:
            node = agent.settings.node
            if self.cluster.is_lost(node, self.clock.now_s()):
                continue
            generation = agent.command.generation if agent.command else 0
            command = await self.store.command_for(node, generation)
            if command is not None:
                await agent.consider(command)
                await agent.enforce()

    async def _sync(self, observation: Observation, wait_s: float) -> SyncReply:  # noqa: ARG002  answers at once
        result = await self.store.ingest((observation,), self.clock.now())
        return SyncReply(
            boot=observation.boot,
            acknowledged=result.acknowledged.get((observation.node, observation.boot), 0),
            server_time_s=self.clock.now_s(),
            command=await self.store.command_for(observation.node, observation.generation),
        )

    def _make_agent(self, node: str, plan: ClusterPlan) -> NodeAgent:
        return NodeAgent(
            AgentSettings(node=node, boot="simulated", period_s=plan.agent_period_s, handover_s=plan.handover_s),
            SimulatedDevice(self.cluster, node),
            transport=DirectTransport(
                self._sync, is_lost=lambda told: self.cluster.is_lost(node, told.window_start_s + told.window_s)
            ),
            clock=self.clock,
            ledger=Ledger(None),
        )


def make_store(plan: ClusterPlan, clock: Clock) -> MemoryStore:
    """A store that knows the cluster's inventory."""
    store = MemoryStore(settings=plan.settings)
    store.put_gpu_types(plan.gpu_types)
    store.put_points(plan.points)
    for spec in plan.nodes:
        store.put_node(Node(id=NodeId(spec.name)), gpus_of(spec), at=clock.now())
    store.put_services(plan.services)
    if wants_actor(plan.settings):
        store.actors.update(load_actors())
    return store


def gpus_of(spec: NodeSpec) -> Sequence[Gpu]:
    """The GPUs of a simulated node as the control plane knows them."""
    return [
        Gpu(id=gpu_id(spec.name, index), node=NodeId(spec.name), gpu_type=gpu.gpu_type, index=index)
        for index, gpu in enumerate(spec.gpus)
    ]
