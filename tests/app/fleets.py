"""A small fleet around a MemoryStore, with solvers that answer what a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

from agents.base.protocol import GpuReading, Observation, ServiceReading
from app.base.clock import ManualControlClock
from app.loop.tick import Loop, TickOutcome, tick
from app.solver.process import PlanAnswer, PlanRequest, SolverUnavailable
from app.store.memory_store import MemoryStore
from app.store.store import PolicySettings
from solvers.types.outcome import PlanReport
from solvers.types.plan import BoundReplica, GpuPlan, Plan, ReplicaPlan
from solvers.types.problem import OperatingPoint, OperatingPoints, Problem
from solvers.types.state import Gpu, GpuId, GpuType, Node, NodeId, Scaling, Service, Slo

T = TypeVar("T")

FAST = GpuType(
    name="fast",
    price_usd_per_hour=2.0,
    memory_mib=16_000.0,
    sm_percent_step=50.0,
    idle_w=50.0,
    power_cap_w=250.0,
    clocks_mhz=(1000.0,),
)
# 10 ms on half a GPU, 5 ms on the whole one: next to an SLO of 100 ms either carries tens of requests a second.
POINTS = OperatingPoints(
    network="net",
    gpu_type="fast",
    sensitivity=0.0,
    rows=(
        OperatingPoint(50.0, 1, 1000.0, 0.0, 0.0, 10.0, 4000.0, 60.0, 0.0),
        OperatingPoint(100.0, 1, 1000.0, 0.0, 0.0, 5.0, 4000.0, 90.0, 0.0),
    ),
)
PERIOD_S = 2.0
SETTINGS = PolicySettings(period_s=PERIOD_S, window_s=PERIOD_S)


def a_service(name: str = "chat", **scaling: int | float | None) -> Service:
    return Service(
        name=name,
        network="net",
        slo=Slo(latency_ms=100.0, percentile=0.98),
        scaling=Scaling(**scaling),  # type: ignore[arg-type]
    )


def a_node(name: str, *, gpus: int = 1) -> tuple[Node, list[Gpu]]:
    node = NodeId(name)
    return Node(id=node), [
        Gpu(id=GpuId(f"{name}/gpu-{index}"), node=node, gpu_type="fast", index=index)
        for index in range(gpus)
    ]


def on_half_gpus(problem: Problem) -> Plan:
    """Every service on one half of a GPU of its own; two share a GPU as they come."""
    replicas = [
        ReplicaPlan(
            service=service.name,
            sm_percent=50.0,
            batch=1,
            arrival_rate_rps=service.arrival_rate_rps,
        )
        for service in problem.services
    ]
    pairs = [tuple(replicas[index : index + 2]) for index in range(0, len(replicas), 2)]
    return Plan(
        policy="test",
        gpus=tuple(
            GpuPlan(gpu_type="fast", clock_mhz=1000.0, replicas=pair) for pair in pairs
        ),
    )


def with_rates(plan: Plan, factor: float) -> Plan:
    gpus = tuple(
        replace(
            gpu,
            replicas=tuple(
                replace(each, arrival_rate_rps=each.arrival_rate_rps * factor)
                for each in gpu.replicas
            ),
        )
        for gpu in plan.gpus
    )
    return replace(plan, gpus=gpus)


@dataclass
class Answering:
    """A solver that answers with what `plan` makes of the problem, and keeps what it was asked."""

    plan: Callable[[Problem], Plan] = on_half_gpus
    meanwhile: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
    """Runs between question and answer."""
    asked: list[PlanRequest] = field(default_factory=list)

    async def start(self) -> None:
        """Always ready."""

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        self.asked.append(request)
        await self.meanwhile()
        plan = self.plan(request.problem)
        price = sum(gpu.count for gpu in plan.gpus) * FAST.price_usd_per_hour
        report = PlanReport(status="greedy", cost_usd_per_hour=price, method="test")
        return PlanAnswer(plan=plan, report=report, memory={"calls": len(self.asked)})

    async def close(self) -> None:
        """Nothing to end."""


class Failing:
    """A solver that is gone."""

    async def start(self) -> None:
        raise SolverUnavailable("the solver worker died while it started")

    async def make_plan(self, request: PlanRequest) -> PlanAnswer:
        raise SolverUnavailable(
            "the solver worker was killed after 2.0 s without an answer"
        )

    async def close(self) -> None:
        """Nothing to end."""


@dataclass
class Fleet:
    """Nodes with one GPU each, a store, a clock that tests move, and a loop."""

    store: MemoryStore
    clock: ManualControlClock
    loop: Loop
    sequences: dict[str, int] = field(default_factory=dict)

    def pass_time(
        self,
        seconds: float = PERIOD_S,
        *,
        heard: Sequence[str] = ("n1", "n2"),
        rates_rps: dict[str, float] | None = None,
    ) -> None:
        """Let time pass in whole periods; the nodes in `heard` report their part of the services' rates."""
        for _ in range(round(seconds / PERIOD_S)):
            self.clock.advance(PERIOD_S)
            for node in heard:
                part = {
                    name: rate / len(heard) for name, rate in (rates_rps or {}).items()
                }
                asyncio.run(
                    self.store.ingest(
                        (self._observation(node, part),), self.clock.now()
                    )
                )

    def tick(self) -> TickOutcome:
        return asyncio.run(tick(self.loop))

    def report_lost_gpu(self, node: str) -> None:
        """The node says that its GPU does not answer."""
        self.clock.advance(PERIOD_S)
        asyncio.run(
            self.store.ingest(
                (self._observation(node, {}, healthy=False),), self.clock.now()
            )
        )

    def change_settings(self, **changes: object) -> None:
        self.store.settings = replace(self.store.settings, **changes)  # type: ignore[arg-type]

    @property
    def generation(self) -> int:
        """Generation of the target; 0 = none."""
        return self.store.pushed[-1][1].generation if self.store.pushed else 0

    def replicas(self) -> list[BoundReplica]:
        """Those of the target."""
        _, bound = self.store.pushed[-1]
        return [replica for gpu in bound.gpus for replica in gpu.replicas]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.events]

    def _observation(
        self, node: str, rates_rps: dict[str, float], *, healthy: bool = True
    ) -> Observation:
        self.sequences[node] = self.sequences.get(node, 0) + 1
        readings = tuple(
            ServiceReading(service=name, arrivals=count, served=count, in_slo=count)
            for name, rate in sorted(rates_rps.items())
            for count in [round(rate * PERIOD_S)]
        )
        gpu = GpuReading(
            index=0,
            gpu_type="fast",
            memory_mib=16_000.0,
            memory_used_mib=0.0,
            power_w=50.0,
            energy_j=100.0,
            clock_mhz=1000.0,
            busy_percent=0.0,
            healthy=healthy,
        )
        start = self.clock.now() - timedelta(seconds=PERIOD_S)
        return Observation(
            node=node,
            boot="b",
            sequence=self.sequences[node],
            window_start_s=start.timestamp(),
            window_s=PERIOD_S,
            generation=self.generation,
            gpus=(gpu,),
            services=readings,
        )


def a_fleet(
    *services: Service,
    solver: Answering | Failing | None = None,
    nodes: Sequence[str] = ("n1", "n2"),
    **settings: object,
) -> Fleet:
    """A fleet whose nodes report from the first call of `pass_time` on."""
    clock = ManualControlClock()
    store = MemoryStore(settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]
    store.put_gpu_types([FAST])
    store.put_points([POINTS])
    for name in nodes:
        store.put_node(*a_node(name), at=clock.now())
    store.put_services(services or (a_service(),))
    loop = Loop(
        store=store, solver=solver or Answering(), clock=clock, now_s=lambda: 0.0
    )
    return Fleet(store=store, clock=clock, loop=loop)
