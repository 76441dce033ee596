"""Small clusters of measured GPUs, and a run that holds the loop's laws against every tick."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from agents.sim.cluster import ClusterScript
from agents.sim.load.arrivals import ArrivalProcess, LoadShape, Spike
from agents.sim.queues.tally import ServiceTotals
from agents.sim.spec import Fault, make_node
from agents.sim.truth.truth import load_truth
from app.base.clock import ManualControlClock
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.loop.tick import TickOutcome
from app.simulate.run.closed_loop import ClosedLoop, ClusterPlan
from app.solver.inline import InlineSolver
from app.store.store import PolicySettings
from solvers.forecast.room import Room
from solvers.types.plan import BoundPlan
from solvers.types.state import Scaling, Service, Slo

PERIOD_S = 5.0
TYPE = "V100-32GB"
LAUNCH_S = 5.0
RATES_RPS = {"inception_v3": 200.0, "resnet50": 300.0, "vgg16": 60.0}

Counts = Mapping[str, ServiceTotals]


@dataclass
class Scene:
    """A running cluster with what happened so far."""

    closed: ClosedLoop
    clock: ManualControlClock
    outcomes: list[TickOutcome] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)
    """Totals after every period."""

    def play(self, seconds: float) -> None:
        """Agents and the loop act once per period; every tick is checked."""
        asyncio.run(self._play(round(seconds / PERIOD_S)))

    def attainment(self, since_s: float, until_s: float) -> float:
        """Share of the requests finished between two moments that met their SLO; multiples of the period, from 5 s."""
        first, last = (
            self.counts[round(moment / PERIOD_S) - 1] for moment in (since_s, until_s)
        )
        in_slo = sum(last[name].in_slo - first[name].in_slo for name in last)
        finished = sum(
            last[name].served
            + last[name].rejected
            - first[name].served
            - first[name].rejected
            for name in last
        )
        return in_slo / finished

    @property
    def target(self) -> BoundPlan:
        """The newest target."""
        return self.closed.store.pushed[-1][1]

    async def _play(self, periods: int) -> None:
        for _ in range(periods):
            await self.closed.pass_time(PERIOD_S)
            await self.closed.step()
            self.outcomes.append(await self.closed.tick())
            self.counts.append(
                {totals.service: totals for totals in self.closed.cluster.totals()}
            )
            self._check()

    def _check(self) -> None:
        _check_plans(self)
        _check_devices(self)
        for totals in self.counts[-1].values():
            assert totals.arrivals == totals.served + totals.rejected + totals.queued
            assert math.isclose(
                totals.present_s, totals.sojourn_s, rel_tol=1e-9, abs_tol=1e-6
            )


def _check_plans(scene: Scene) -> None:
    store = scene.closed.store
    outcome = scene.outcomes[-1]
    assert outcome.state in (None, "target", "kept"), outcome.reason
    if outcome.plan_id is not None:
        assert store.plans[outcome.plan_id].violations == ()
    generations = [bound.generation for _, bound in store.pushed]
    assert all(later == earlier + 1 for earlier, later in pairwise(generations))
    assert outcome.generation == (generations[-1] if generations else 0)
    for gpu in store.pushed[-1][1].gpus if store.pushed else ():
        services = [replica.service for replica in gpu.replicas]
        assert len(set(services)) == len(services)
        assert sum(replica.sm_percent for replica in gpu.replicas) <= 100.0


def _check_devices(scene: Scene) -> None:
    for node in scene.closed.cluster.nodes.values():
        for gpu in node.gpus:
            assert gpu.memory_used_mib <= gpu.spec.memory_mib
    for agent in scene.closed.agents:
        in_force = agent.command.generation if agent.command else 0
        assert in_force <= scene.outcomes[-1].generation


def a_scene(
    *,
    seed: int = 1,
    nodes: int = 3,
    gpus: int = 2,
    rates_rps: Mapping[str, float] = RATES_RPS,
    spikes: Mapping[str, Spike] | None = None,
    faults: tuple[Fault, ...] = (),
    policy: str = "hetsev",
    change_plan: Callable[[ClusterPlan], ClusterPlan] = lambda plan: plan,
) -> Scene:
    """Nodes n1, n2, ... with V100s, a service per network, SLO 300 ms at the 98th percentile."""
    (gpu_type,) = load_gpu_types([TYPE])
    loads = {
        name: ArrivalProcess(
            shape=LoadShape(
                mean_rps=rate, spikes=(spikes[name],) if name in (spikes or {}) else ()
            ),  # type: ignore[index]
            duration_s=1000,
            seed=seed,
            stream=stream,
        )
        for stream, (name, rate) in enumerate(sorted(rates_rps.items()))
    }
    plan = ClusterPlan(
        nodes=tuple(
            make_node(
                f"n{number}",
                TYPE,
                gpus=gpus,
                memory_mib=gpu_type.memory_mib,
                launch_s=LAUNCH_S,
            )
            for number in range(1, nodes + 1)
        ),
        gpu_types=(gpu_type,),
        points=load_profiles(rates_rps, [TYPE]),
        services=tuple(a_service(name) for name in sorted(rates_rps)),
        scenario=ClusterScript(loads=loads, seed=seed, faults=faults),
        settings=PolicySettings(
            policy=policy,
            period_s=PERIOD_S,
            window_s=PERIOD_S,
            stale_after_s=3 * PERIOD_S,
            max_replicas_per_gpu=6,
            seed=seed,
        ),
        agent_period_s=PERIOD_S,
        handover_s=20.0,
    )
    clock = ManualControlClock()
    closed = ClosedLoop(
        change_plan(plan),
        world=load_truth(),
        clock=clock,
        solver=InlineSolver(),
        # Of all services at all times: what happens in a scene follows from its events alone.
        room=Room(1.2),
    )
    return Scene(closed=closed, clock=clock)


def a_service(network: str, **scaling: float) -> Service:
    return Service(
        name=network,
        network=network,
        slo=Slo(latency_ms=300.0, percentile=0.98),
        scaling=Scaling(min_replicas=1, downscale_delay_s=30.0, **scaling),  # type: ignore[arg-type]
    )
