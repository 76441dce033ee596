"""Nodes with a GPU each, jobs and a dispatcher, for tests of job dispatch."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agents.base.protocol import GpuReading, Observation, TaskReading, TaskState
from app.base.clock import ManualControlClock
from app.dispatch.dispatcher import JobDispatcher
from app.store.memory_store import MemoryStore
from app.store.store import PlanRecord, PolicySettings
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundGpu, BoundPlan, BoundTask, Plan
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuId, NodeId, Task
from tests.app.fleets import FAST, POINTS, a_node
from tests.app.snapshots import a_replica

TYPE = replace(FAST, sm_percent_step=25.0)
SETTINGS = PolicySettings(policy="oltunes")


def points(network: str, *, factor: float = 1.0) -> OperatingPoints:
    """10 ms for four inputs on a quarter of a GPU, less on more of it; a batch of eight takes 1.5 times as long."""
    rows = (
        OperatingPoint(
            percent,
            batch,
            1000.0,
            0.0,
            0.0,
            factor * time_ms * size,
            2000.0,
            percent,
            0.0,
        )
        for percent, time_ms in ((25.0, 10.0), (50.0, 6.0), (100.0, 5.0))
        for batch, size in ((4, 1.0), (8, 1.5))
    )
    return OperatingPoints(
        network=network, gpu_type="fast", sensitivity=0.0, rows=tuple(rows)
    )


def a_job(name: str, **changes: object) -> Task:
    """400 inputs in batches of four."""
    facts: dict[str, object] = {
        "kind": "offline",
        "network": "photo",
        "batch": 4,
        "iterations": 100,
        "weight": 0.75,
    }
    return Task(name=name, **facts | changes)  # type: ignore[arg-type]


class OvertakenStore(MemoryStore):
    """Another planner may push while this one writes its plan down, once."""

    rival: Callable[[], Awaitable[None]] | None = None

    async def record_plan(self, record: PlanRecord) -> int:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()
        return await super().record_plan(record)


class Place:
    """Nodes with one GPU each that were all heard just now, a first target, and a dispatcher."""

    def __init__(self, *nodes: str, settings: PolicySettings = SETTINGS) -> None:
        self.clock = ManualControlClock()
        self.store = OvertakenStore()
        self.store.put_gpu_types([TYPE])
        self.store.put_points([POINTS, points("photo"), points("light", factor=0.5)])
        for name in nodes or ("n1",):
            node, gpus = a_node(name)
            self.store.put_node(node, gpus, at=self.clock.now())
        self.dispatcher = JobDispatcher(
            store=self.store, clock=self.clock, turn=asyncio.Lock()
        )
        self.sequence = 0
        # Under a loop that may push; what the settings allow is the test's.
        self.push()
        self.store.settings = settings

    def push(self, *gpus: BoundGpu) -> None:
        """Another planner's target."""
        target = self.target
        generation = target.generation if target else 0
        plan = BoundPlan(
            generation=generation + 1, parent=generation, policy="oltunes", gpus=gpus
        )
        asyncio.run(self.pushed(plan))

    async def pushed(self, plan: BoundPlan) -> None:
        snapshot = await self.store.load_snapshot(self.clock.now())
        record = PlanRecord(
            at=snapshot.at,
            state="proposed",
            policy_version=1,
            catalogue_revision=snapshot.state.catalogue_revision,
            plan=Plan(policy="oltunes"),
            report=PlanReport(status="greedy", cost_usd_per_hour=0.0),
            bound=plan,
            problem=None,
        )
        plan_id = await self.store.record_plan(record)
        assert await self.store.push_target(plan_id, plan, (), snapshot.at)

    @property
    def target(self) -> BoundPlan | None:
        return self.store.pushed[-1][1] if self.store.pushed else None

    @property
    def tasks(self) -> dict[str, tuple[str, BoundTask]]:
        """Tasks of the target by name, each with its GPU."""
        target = self.target
        return {
            task.name: (gpu.id, task)
            for gpu in (target.gpus if target else ())
            for task in gpu.tasks
        }

    def submit(self, *tasks: Task) -> None:
        self.store.put_tasks(tasks, at=self.clock.now())

    def round(self, after_s: float = 1.0) -> bool:
        self.clock.advance(after_s)
        return asyncio.run(self.dispatcher.round())

    def fall_silent(self, node: str, *, heard: str) -> None:
        """One node is not heard any more while the other goes on reporting, round after round."""
        assert node != heard
        for _ in range(6):
            self.heard(heard)
            self.round(after_s=3.0)
        self.heard(heard)

    def report(
        self,
        name: str,
        state: TaskState,
        done: float,
        *,
        node: str = "n1",
        iteration_ms: float = 10.0,
    ) -> None:
        """What the node says of a task."""
        _, task = self.tasks[name]
        reading = TaskReading(
            name=name,
            gpu_index=0,
            state=state,
            sm_percent=task.sm_percent,
            batch=task.batch,
            done_iterations=done,
            iteration_ms=iteration_ms,
        )
        self.heard(node, reading)

    def heard(self, node: str, *readings: TaskReading) -> None:
        """The node reports of its GPU and these tasks."""
        self.sequence += 1
        gpu = GpuReading(
            index=0,
            gpu_type="fast",
            memory_mib=16_000.0,
            memory_used_mib=0.0,
            power_w=50.0,
            energy_j=1.0,
            clock_mhz=1000.0,
            busy_percent=0.0,
        )
        told = Observation(
            node=node,
            boot="b",
            sequence=self.sequence,
            window_start_s=self.clock.now_s() - 1.0,
            window_s=1.0,
            generation=1,
            gpus=(gpu,),
            tasks=readings,
        )
        asyncio.run(self.store.ingest((told,), self.clock.now()))


def bound_gpu(*tasks: BoundTask, has_replica: bool = False) -> BoundGpu:
    """The GPU of n1."""
    return BoundGpu(
        id=GpuId("n1/gpu-0"),
        node=NodeId("n1"),
        gpu_type="fast",
        clock_mhz=1000.0,
        power_cap_w=250.0,
        replicas=(a_replica("chat-1", sm_percent=50.0, rate_rps=20.0),)
        if has_replica
        else (),
        tasks=tasks,
    )
